"""ONNX Runtime with Berth as its memory.

    session = berth.onnxruntime.session("model.onnx")
    outputs = session.run(None, {"x": x})       # as with onnxruntime.InferenceSession
    session.memory                              # what it took; in a notebook, the memory map

The first run with certain input shapes is recorded and planned; every later one is served from one arena of exactly the
planned size, with the same bits out. All sessions of a process share the arena, which is as large as the largest plan.
"""

from __future__ import annotations

import importlib.util as _importlib
import os as _os

from . import _berth
from ._dtypes import numpy_dtype as _numpy_dtype

__all__ = ["MemoryReport", "NodeArg", "Session", "session"]

_PROVIDER = "CPUExecutionProvider"
# Where the engine's word for an element type is not NumPy's.
_ENGINE_NAMES = {"float32": "float", "float64": "double"}
# Options that say how the engine's own memory or log behave: nothing to do for them here.
_HARMLESS_OPTIONS = {"enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "log_severity_level",
                     "log_verbosity_level", "logid", "intra_op_num_threads"}


def _failure(kind, code, text):
    error = kind(text)
    error.code = code
    return error


class NodeArg:
    """An input or output of a model: its `name`, `shape` (a string or None where it is dynamic) and `type`."""

    def __init__(self, name, shape, element):
        self.name = name
        self.shape = shape
        self.type = f"tensor({_ENGINE_NAMES.get(element, element)})"
        self._element = element

    def __repr__(self):
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class MemoryReport:
    """What the memory of an `InferenceSession` did. A snapshot.

    Of the last run: `recorded` (its shapes were new), `requests`, `planned` (of these, served from the arena),
    `reordered`, `deviated` (not in the plan: served by a pool), `live_peak` (the most bytes the engine had asked for at
    once: no allocator can do with less) and `plan` (a berth.Plan, None before the first run).
    Of this `InferenceSession`: `runs`, and `problem`, a sentence if there was no memory for a plan.
    Of all of them together: `arena_bytes`, `pool_bytes`, `weight_bytes` and `plans`.
    """

    def __init__(self, fields):
        self.__dict__.update(fields)

    @property
    def planned_bytes(self):
        """Bytes of the arena that the last run's plan needs; 0 before there is one."""
        return 0 if self.plan is None else self.plan.size

    def __repr__(self):
        if self.runs == 0:
            return "<berth.onnxruntime.MemoryReport: no run yet>"
        how = "recorded" if self.recorded else f"{self.planned} from the arena, {self.deviated} off the plan"
        text = (f"arena {self.arena_bytes:,} bytes, live peak {self.live_peak:,} bytes; "
                f"last run: {self.requests} requests, {how}")
        return f"<berth.onnxruntime.MemoryReport: {text}{'; ' + self.problem if self.problem else ''}>"

    def to_html(self, title="Memory map"):
        """The memory map of the last run's plan as one HTML page. ValueError: there is no plan yet."""
        if self.plan is None:
            raise _failure(ValueError, "NotFound", "there is no plan yet: run the session once")
        return self.plan.to_html(title)

    def _repr_html_(self):
        import html
        words = f"<p>{html.escape(repr(self)[1:-1])}</p>"
        return words if self.plan is None else words + self.plan._repr_html_()


class Session:
    """A loaded model. Made by berth.onnxruntime.session(); the methods are those of onnxruntime.InferenceSession.

    Threads may run it at the same time; what one plan cannot serve then comes from a pool, and is counted.
    """

    def __init__(self, core):
        self._core = core
        self._inputs = [NodeArg(*each) for each in core.inputs()]
        self._outputs = [NodeArg(*each) for each in core.outputs()]

    def get_inputs(self):
        return list(self._inputs)

    def get_outputs(self):
        return list(self._outputs)

    def get_providers(self):
        return [_PROVIDER]

    def get_provider_options(self):
        return {_PROVIDER: {}}

    @property
    def memory(self) -> MemoryReport:
        """What the memory did so far."""
        return MemoryReport(self._core.report())

    def run(self, output_names, input_feed, run_options=None):
        """Runs the model: a list of NumPy arrays, one for each name (None or []: for each output of the model).

        Inputs are read where they are if they are contiguous, else copied first. Outputs are copied out of the arena,
        so that they stay as they are whatever runs next. ValueError: a name that the model has not, an input that is
        missing, or a shape that does not fit. TypeError: another element type.
        """
        import numpy as np

        if run_options is not None:
            raise _failure(ValueError, "Unsupported", "run options are not supported: leave run_options at None")
        numbers = self._output_numbers(output_names)
        known = [each.name for each in self._inputs]
        for name in input_feed:
            if name not in known:
                raise _failure(ValueError, "NotFound", f'the model has no input "{name}": it takes {", ".join(known)}')
        feed = []
        for spec in self._inputs:
            if spec.name not in input_feed:
                raise _failure(ValueError, "InvalidArgument",
                               f'input "{spec.name}" is missing: the model takes {", ".join(known)}')
            array = np.asarray(input_feed[spec.name])
            self._check(spec, array)
            # Bytes, because not every dtype has a letter in the buffer protocol.
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            feed.append((array.shape, flat))
        return [flat.view(_numpy_dtype_of(element)).reshape(shape)
                for element, shape, flat in self._core.run(feed, numbers)]

    def _output_numbers(self, names):
        known = [each.name for each in self._outputs]
        if not names:
            return list(range(len(known)))
        if isinstance(names, str):
            raise _failure(TypeError, "TypeMismatch", f'output names are a list, not the string "{names}"')
        for name in names:
            if name not in known:
                raise _failure(ValueError, "NotFound",
                               f'the model has no output "{name}": it has {", ".join(known)}')
        return [known.index(name) for name in names]

    @staticmethod
    def _check(spec, array):
        if spec._element in ("string", "unknown"):
            raise _failure(ValueError, "Unsupported",
                           f'input "{spec.name}" is a {spec.type}: only tensors of numbers can be given')
        if array.dtype != _numpy_dtype_of(spec._element):
            raise _failure(TypeError, "TypeMismatch",
                           f'input "{spec.name}" is {array.dtype}, the model takes {spec._element}: '
                           f'convert it with .astype("{spec._element}")')
        # A model may leave out the shape altogether; the engine then says if it does not fit.
        fits = not spec.shape or (len(spec.shape) == array.ndim and all(
            not isinstance(want, int) or want == have for want, have in zip(spec.shape, array.shape)))
        if not fits:
            raise _failure(ValueError, "InvalidArgument",
                           f'input "{spec.name}" has shape {list(array.shape)}, the model takes {spec.shape}')

    def __repr__(self):
        def names(args):
            return ", ".join(f"{each.name}{each.shape}" for each in args)
        return f"<berth.onnxruntime.Session {names(self._inputs)} -> {names(self._outputs)}>"


def session(path_or_bytes, sess_options=None, providers=None, provider_options=None, *, threads=None) -> Session:
    """Loads a model, as a file or as its bytes, to run with Berth as the engine's memory.

    `threads` inside an operator: by default what `sess_options` say, or as many as the engine likes. Other
    `sess_options` that change how a model runs are refused, and so are `providers` without CPUExecutionProvider: the
    memory is the CPU's. OSError: there is no engine (the sentence has the command that installs it), or it refuses the
    model. FileNotFoundError: no such file.
    """
    if providers is not None:
        wanted = [each if isinstance(each, str) else each[0] for each in providers]
        if wanted and _PROVIDER not in wanted:
            raise _failure(ValueError, "Unsupported",
                           f'Berth is the memory of {_PROVIDER}; asked for was {", ".join(wanted)}')
    if sess_options is not None:
        _refuse_other_options(sess_options)
        if threads is None:
            threads = sess_options.intra_op_num_threads
    path, data = "", None
    if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
        data = path_or_bytes
        if len(data) == 0:
            raise _failure(ValueError, "InvalidArgument", "the model has no bytes")
    else:
        path = _os.fspath(path_or_bytes)
        if not _os.path.exists(path):
            raise _failure(FileNotFoundError, "NotFound", f"there is no model at {path}")
    return Session(_berth._onnxruntime_session(_engine_folder(), path, data, threads or 0))


def _refuse_other_options(options):
    usual = type(options)()
    for name in dir(options):
        value = getattr(options, name)
        if name.startswith("_") or callable(value) or name in _HARMLESS_OPTIONS:
            continue
        if value != getattr(usual, name):
            raise _failure(ValueError, "Unsupported",
                           f"sess_options.{name} is {value}: of the options only intra_op_num_threads can be chosen")


def _engine_folder():
    """Where the wheel of this interpreter has the engine's library; empty if it is not installed."""
    try:
        found = _importlib.find_spec("onnxruntime")
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        return ""
    return _os.path.join(list(found.submodule_search_locations)[0], "capi")


def _numpy_dtype_of(element):
    import numpy as np
    return np.dtype(element) if element != "bfloat16" else _numpy_dtype("bf16")
