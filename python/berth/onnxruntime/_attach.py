"""Berth as the memory of the engine's environment, and of the sessions that other libraries make."""

from __future__ import annotations

import os
import threading

import onnxruntime as _engine

from .. import _berth

_lock = threading.Lock()
_has_memory = False
_attached = None        # while attach() is in force: what it was given
_combined = {}
# More runs than processors compute nothing sooner, and each would have an arena of its own.
_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_settings = {"decay": 10.0, "max_arenas": _processors, "when_full": "wait", "max_plans": 256, "max_plan_bytes": 8 << 20}
_FOREVER_MILLISECONDS = (1 << 63) - 1
_MOST = {"max_arenas": (1 << 32) - 1, "max_plans": (1 << 63) - 1, "max_plan_bytes": (1 << 63) - 1}


def give_memory():
    """Makes Berth the memory of the engine's environment, once per process. OSError if the engine refuses."""
    global _has_memory
    with _lock:
        if _has_memory:
            return
        register = getattr(_engine, "register_execution_provider_library", None)
        if register is None:
            raise _too_old()
        # The module is a library of execution providers without a provider. Opening it gives it the engine's interface;
        # its lock is held meanwhile, so the memory is registered afterwards.
        try:
            register("berth", os.path.realpath(_berth.__file__))
        except Exception as error:  # the engine has classes of its own for its failures
            if "already registered" not in str(error):
                raise
        decay = _settings["decay"] * 1000
        _berth._onnxruntime_attach(
            int(decay) if decay < _FOREVER_MILLISECONDS else _FOREVER_MILLISECONDS,
            _settings["max_arenas"] or 0, _settings["when_full"] == "wait", _settings["max_plans"],
            _settings["max_plan_bytes"])
        _has_memory = True


def configure(**settings):
    """Sets what the memory of all sessions of this process does. To be called before the first session is made.

    `decay`: seconds after which memory that no run needed is given back to the system; 0 or infinity: never. 10.
    `max_arenas`: the most runs that have an arena at the same time; None: as many as overlap. The number of processors
    that this process may use.
    `when_full`: what a run does that finds all of these in use: "wait" for one, or be served by the "pool". "wait".
    `max_plans`, `max_plan_bytes`: bounds on the plans that are kept; the one whose last use is longest ago goes first.
    256 plans, 8 MiB.

    ValueError for values that are none of these, TypeError for other names, RuntimeError after the first session.
    """
    checked = {}
    for name, value in settings.items():
        if name not in _settings:
            raise TypeError(f"configure() has no setting {name!r}; it has {', '.join(_settings)}")
        if name == "decay":
            value = float(value)
            if not value >= 0:
                raise ValueError(f"decay is a number of seconds that is not negative, not {value!r}")
            # Less than a millisecond is not never.
            value = max(value, 0.001) if value else value
        elif name == "when_full":
            if value not in ("wait", "pool"):
                raise ValueError(f'when_full is "wait" or "pool", not {value!r}')
        elif not (name == "max_arenas" and value is None):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST[name]:
                raise ValueError(f"{name} is a whole number from 1, not {value!r}")
        checked[name] = value
    with _lock:
        if _has_memory and any(_settings[name] != value for name, value in checked.items()):
            raise RuntimeError("the engine has Berth's memory already: call configure() before the first session")
        _settings.update(checked)


def give_back(now=False):
    """Gives memory that recent runs did not need back to the system, and returns how many bytes.

    Each run does this when it ends. A process without requests calls it from a timer, so that its memory decays too.
    With `now`, all memory that no run in progress and no live output needs, whatever the decay.
    """
    return _berth._onnxruntime_give_back(bool(now))


def _too_old():
    error = OSError(f"ONNX Runtime 1.23 or newer is needed, this is {_engine.__version__}: pip install -U onnxruntime")
    error.code = "DeviceUnavailable"
    return error


def attach(*, weights_cache=None, weights_cache_bytes=None, engine_reuse=None):
    """Makes every onnxruntime.InferenceSession that is created from now on one with Berth's memory.

    This is for libraries that make their own sessions, also if they have imported the class already. Subclasses that
    they have made get it too. `weights_cache`, `weights_cache_bytes` and `engine_reuse` are those of InferenceSession.
    Calling it again changes them. `detach()` ends it; sessions that exist stay as they are.
    """
    global _attached
    from ._options import SessionOptions
    from ._session import InferenceSession
    give_memory()
    with _lock:
        _attached = {"weights_cache": weights_cache, "weights_cache_bytes": weights_cache_bytes,
                     "engine_reuse": engine_reuse}
        _make(_engine.InferenceSession, InferenceSession)
        _make(_engine.SessionOptions, SessionOptions)


def detach():
    """Ends attach(): onnxruntime.InferenceSession makes the engine's own sessions again."""
    global _attached
    with _lock:
        _attached = None


def given(name):
    """An argument that attach() was given."""
    return None if _attached is None else _attached[name]


def _make(stock, ours):
    """Has `stock(...)` make an object of `ours`, and a subclass of `stock` one of itself and `ours`, while attached."""
    if "__new__" in vars(stock) and getattr(vars(stock)["__new__"], "_by_berth", False):
        return
    create = stock.__new__
    plain = create is object.__new__

    def new(cls, *arguments, **named):
        if _attached is not None and not issubclass(cls, ours) and not getattr(cls, "_berth_plain", False):
            cls = ours if cls is stock else _both(cls, ours)
        return create(cls) if plain else create(cls, *arguments, **named)

    # It stays after detach(): a class whose __new__ was deleted again refuses arguments.
    new._by_berth = True
    stock.__new__ = new


def _both(cls, ours):
    key = (cls, ours)
    if key not in _combined:
        _combined[key] = type(cls.__name__, (cls, ours), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    return _combined[key]
