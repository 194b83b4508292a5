"""The engine's session, with Berth as its memory."""

from __future__ import annotations

import contextlib

import onnxruntime as _engine

from .. import _berth
from . import _attach, _options, _weights
from .._report import MemoryReport

_CPU = "CPUExecutionProvider"
_SHRINK = "memory.enable_memory_arena_shrinkage"


class InferenceSession(_engine.InferenceSession):
    """onnxruntime.InferenceSession with Berth as its CPU memory. All arguments and methods are the engine's.

    The first run with certain input shapes is recorded and planned; later ones are served from a planned arena, with
    the same bits out. `memory` says what it took.

    `weights_cache` shares the weights, and what the engine packs from them, with all processes that load the same
    model: a folder, or True for `$XDG_CACHE_HOME/berth`. By default it is what attach() was given, else the environment
    variable BERTH_WEIGHTS_CACHE, else there is none. False: none. A cache that cannot be read or written is not used,
    and `memory.weights` says why. `weights_cache_bytes` bounds the folder: after a load, what was used longest ago is
    deleted until the rest is within it. By default it is what attach() was given, else BERTH_WEIGHTS_CACHE_BYTES, else
    there is no bound.

    `engine_reuse=True` lets the engine keep the memory of a dead tensor for a later one of the same shape, as its own
    sessions do; then nothing else can use it in between. The default is what attach() was given, else False.
    """

    def __init__(self, path_or_bytes, sess_options=None, providers=None, provider_options=None, *, weights_cache=None,
                 weights_cache_bytes=None, engine_reuse=None, **kwargs):
        _attach.give_memory()
        self._runs = _berth._OnnxRuntimeRuns()
        self._async_runs = 0
        self._weights = None
        if sess_options is None:
            sess_options = _options.SessionOptions()
        self._engine_reuse = bool(_attach.given("engine_reuse") if engine_reuse is None else engine_reuse)
        folder = _weights.folder(_attach.given("weights_cache") if weights_cache is None else weights_cache)
        most = _weights.bound(_attach.given("weights_cache_bytes") if weights_cache_bytes is None
                              else weights_cache_bytes)

        def load(model, values):
            with _options.with_our_memory(sess_options, self._engine_reuse, **values):
                super(InferenceSession, self).__init__(model, sess_options, providers, provider_options, **kwargs)

        if folder is None:
            load(path_or_bytes, {})
        else:
            self._weights = _weights.load(folder, most, path_or_bytes, sess_options, providers, kwargs, load)
            self._weights.show_original(self, path_or_bytes, sess_options)

    def set_providers(self, providers=None, provider_options=None):
        options = self._sess_options_initial
        with _options.with_our_memory(options, self._engine_reuse):
            super().set_providers(providers, provider_options)
        self._weights = None

    def run(self, output_names, input_feed, run_options=None):
        with self._run("run", output_names, input_feed, run_options):
            return super().run(output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names, input_dict_ort_values, run_options=None):
        with self._run("values", output_names, input_dict_ort_values, run_options):
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def run_with_iobinding(self, iobinding, run_options=None):
        kind, dimensions = getattr(iobinding, "_kind", ("binding", ()))
        with self._begun(f"binding {kind}", dimensions, run_options):
            return super().run_with_iobinding(iobinding, run_options)

    def run_with_ortvaluevector(self, run_options, feed_names, feeds, fetch_names, fetches, fetch_devices):
        with self._run("vector", fetch_names, dict(zip(feed_names, feeds)), run_options):
            return super().run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)

    def run_async(self, output_names, input_feed, callback, user_data, run_options=None):
        # It runs on a thread of the engine that cannot be named before it allocates, so a pool serves it.
        self._async_runs += 1
        _keep_arena(run_options)
        return super().run_async(output_names, input_feed, callback, user_data, run_options)

    def io_binding(self):
        return IOBinding(self)

    @property
    def memory(self) -> MemoryReport:
        """What the memory did so far."""
        return MemoryReport({**self._runs.report(), "async_runs": self._async_runs, "outside": self._outside(),
                             "weights": None if self._weights is None else self._weights.report()})

    def _outside(self):
        notes = [f"{name} manages its own memory" for name in self.get_providers() if name != _CPU]
        if not _options.has_our_memory(self._sess_options):
            notes.append("the session options that the model brings along replaced ours, so the engine's own arena "
                         "serves the session")
        return notes

    def _run(self, method, output_names, feed, run_options):
        kind, dimensions = [method], []
        try:
            kind.extend(map(str, output_names or ()))
            for name, value in feed.items():
                kind.append(str(name))
                _describe(value, kind, dimensions)
        except Exception:  # arguments that are not what they should be are for the engine to refuse
            dimensions = []
        return self._begun(" ".join(kind), dimensions, run_options)

    @contextlib.contextmanager
    def _begun(self, kind, dimensions, run_options):
        _keep_arena(run_options)
        kind = kind.encode("utf-8", "backslashreplace").decode()  # a name may be no Unicode text
        self._runs.begin(kind, dimensions)
        failed = True
        try:
            yield
            failed = False
        finally:
            self._runs.end(kind, dimensions, failed)


class IOBinding(_engine.IOBinding):
    """onnxruntime.IOBinding, noting the shapes that are bound: they tell which plan a run needs."""

    def __init__(self, session):
        super().__init__(session)
        self._inputs, self._fixed = {}, {}

    @property
    def _kind(self):
        kind, dimensions = [], []
        for name, value in self._inputs.items():
            kind.append(name)
            kind.append(str(len(value)))
            dimensions.extend(value)
        return " ".join([*kind, ">", *(f"{name}{fixed:d}" for name, fixed in self._fixed.items())]), dimensions

    def _note(self, name, value):
        kind, dimensions = [], []
        _describe(value, kind, dimensions)
        self._inputs[name] = dimensions

    def bind_cpu_input(self, name, arr_on_cpu):
        super().bind_cpu_input(name, arr_on_cpu)
        self._note(name, arr_on_cpu)

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
        super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._inputs[name] = list(_extents(shape))

    def bind_ortvalue_input(self, name, ortvalue):
        super().bind_ortvalue_input(name, ortvalue)
        self._note(name, ortvalue)

    def bind_output(self, name, *arguments, **named):
        super().bind_output(name, *arguments, **named)
        self._fixed[name] = len(arguments) > 4 or named.get("buffer_ptr") is not None

    def bind_ortvalue_output(self, name, ortvalue):
        super().bind_ortvalue_output(name, ortvalue)
        self._fixed[name] = True

    def clear_binding_inputs(self):
        super().clear_binding_inputs()
        self._inputs.clear()

    def clear_binding_outputs(self):
        super().clear_binding_outputs()
        self._fixed.clear()


def _extents(shape):
    # Whatever has a shape may claim any; the engine refuses it later.
    return (max(-1, min(int(extent), 1 << 62)) for extent in shape)


def _describe(value, kind, dimensions):
    """Adds what the requests of a run depend on: numbers to `dimensions`, everything else to `kind`."""
    shape = getattr(value, "shape", None)
    if callable(shape):  # a value of the engine; only tensors have a shape
        try:
            shape = shape()
        except Exception:  # the engine has classes of its own for its failures
            shape = None
    if shape is not None:
        kind.append(str(len(shape)))
        dimensions.extend(_extents(shape))
    elif isinstance(value, (list, tuple)):
        kind.append(f"[{len(value)}")
        for each in value:
            if not hasattr(each, "shape"):
                break
            _describe(each, kind, dimensions)
        kind.append("]")
    else:
        kind.append(type(value).__name__)


def _keep_arena(run_options):
    """Berth's arena is not one that the engine can shrink, and it would refuse a run that asks for it.

    The request is emptied in the options for good: the engine logs a warning whenever an entry is replaced.
    """
    if isinstance(run_options, _engine.RunOptions):
        with contextlib.suppress(RuntimeError):
            if run_options.get_run_config_entry(_SHRINK):
                run_options.add_run_config_entry(_SHRINK, "")
