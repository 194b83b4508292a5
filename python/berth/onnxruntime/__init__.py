"""ONNX Runtime with Berth as its memory.

    import berth.onnxruntime as ort             # instead of: import onnxruntime as ort

    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})
    session.memory                              # what it took; in a notebook, the memory map

`InferenceSession` is a subclass of the engine's own: options, providers, I/O binding, profiling, strings and sequences
are the engine's. Every other name of the package onnxruntime is here too, as it is there. `attach()` gives Berth's
memory to the sessions that other libraries make.
"""

from __future__ import annotations

try:
    import onnxruntime as _engine
except ImportError as error:
    raise ImportError(f"{error}: berth.onnxruntime needs the package onnxruntime 1.23 or newer. "
                      "Install it with: pip install onnxruntime") from error

from ._attach import attach, configure, detach, give_back
from ._options import SessionOptions
from .._report import MemoryReport
from ._session import InferenceSession

__all__ = ["InferenceSession", "MemoryReport", "SessionOptions", "attach", "configure", "detach", "give_back"]


def __getattr__(name):
    return getattr(_engine, name)


def __dir__():
    return sorted({*globals(), *dir(_engine)})
