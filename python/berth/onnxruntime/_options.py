"""Session options that remember what was asked of them.

The engine's options can be set and not read back. Whether a model that was optimised before may be used depends on all
of them, so these note each call.
"""

from __future__ import annotations

import contextlib
import threading
import weakref

import onnxruntime as _engine

_ENVIRONMENT_ALLOCATORS = "session.use_env_allocators"
# Options are changed for the time of one construction, each by one thread at a time.
_locks = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()


def _noting(name):
    def method(self, *arguments, **named):
        result = getattr(_engine.SessionOptions, name)(self, *arguments, **named)
        self._calls.append((name, arguments, tuple(sorted(named.items()))))
        return result
    method.__name__ = name
    method.__doc__ = getattr(_engine.SessionOptions, name).__doc__
    return method


class SessionOptions(_engine.SessionOptions):
    """onnxruntime.SessionOptions, noting its calls, so that a weights cache knows what a model was optimised for."""

    def __init__(self):
        super().__init__()
        self._calls = []


# Everything that changes options without an attribute that can be read.
for _name in dir(_engine.SessionOptions):
    if _name.split("_")[0] in ("add", "set", "clear", "register"):
        setattr(SessionOptions, _name, _noting(_name))


def attributes(options):
    """The options that can be read, by name."""
    values = {}
    for name in dir(_engine.SessionOptions):
        if not name.startswith("_") and isinstance(getattr(_engine.SessionOptions, name), property):
            values[name] = getattr(options, name)
    return values


@contextlib.contextmanager
def changed(options, **values):
    """The options with other attributes for a while; then they are the user's again."""
    with _locks_lock:
        lock = _locks.setdefault(options, threading.RLock())
    with lock:
        before = {name: getattr(options, name) for name in values}
        try:
            for name, value in values.items():
                setattr(options, name, value)
            yield options
        finally:
            for name, value in before.items():
                setattr(options, name, value)


def copy(options):
    """New options of the engine, equal to those given. Requires: they are a SessionOptions of this module."""
    made = _engine.SessionOptions()
    for name, value in attributes(options).items():
        if value != getattr(made, name):
            setattr(made, name, value)
    for name, arguments, named in options._calls:
        getattr(made, name)(*arguments, **dict(named))
    return made


def entry(options, key):
    """A config entry, None if there is none."""
    try:
        return options.get_session_config_entry(key)
    except RuntimeError:
        return None


def with_our_memory(options, engine_reuse, **values):
    """Makes sessions of these options allocate from the environment, one request per tensor.

    Unless `engine_reuse`, the engine releases each tensor after its last use. By itself it may keep the memory of a
    dead tensor for a later one of the same shape, so that nothing else can use it in between.

    The entry stays with the options, since the engine has no way to remove it. A session of the engine's own that is
    made with them later then allocates from Berth too, without plans.
    """
    if entry(options, _ENVIRONMENT_ALLOCATORS) != "1":
        _engine.SessionOptions.add_session_config_entry(options, _ENVIRONMENT_ALLOCATORS, "1")
    if not engine_reuse:
        values["enable_mem_reuse"] = False
    return changed(options, enable_mem_pattern=False, **values)


def has_our_memory(options):
    return entry(options, _ENVIRONMENT_ALLOCATORS) == "1" and not options.enable_mem_pattern
