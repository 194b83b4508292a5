"""Berth: the memory layer for tensor runtimes.

>>> import berth, numpy as np
>>> logits = berth.Buffer((2, 4), "f32", zero=True, label="logits")
>>> row = logits.view(0, 16)                    # no copy: its own id, the same storage
>>> row.numpy()[:] = 1.0
>>> logits.numpy().sum()
np.float32(4.0)

Weight files open in about a millisecond and hand out zero-copy buffers::

    w = berth.open("model.safetensors")
    np.from_dlpack(w["embeddings.weight"])      # keeps the file mapped
    tensors = berth.load("model.gguf", "CPU")   # into fresh memory, in parallel

Failures are MemoryError, TypeError, OSError or ValueError; each has a `code` such as "OutOfMemory".
"""

from __future__ import annotations

import os as _os

from ._berth import (  # noqa: F401
    Allocator,
    Arena,
    Buffer,
    BufferPool,
    Device,
    Limit,
    Node,
    Plan,
    Pool,
    Recording,
    Schedule,
    ScheduleBuilder,
    Stats,
    StepRun,
    Trace,
    WeightFile,
    __version__,
    device,
    devices,
    dtype_info,
    dtypes,
    from_dlpack,
    limit,
    plan,
    pool,
    stats,
)
from . import _berth, onnxruntime  # noqa: F401

__all__ = [
    "Allocator", "Arena", "Buffer", "BufferPool", "Device", "Limit", "Node", "Plan", "Pool", "Recording",
    "Schedule", "ScheduleBuilder", "Stats", "StepRun", "Trace", "WeightFile", "convert", "device", "devices",
    "dtype_info", "dtypes", "from_dlpack", "limit", "load", "onnxruntime", "open", "plan", "pool", "read_trace", "save",
    "stats", "trace",
]


def open(path) -> WeightFile:  # noqa: A001
    """Opens a safetensors, GGUF, .npy or .npz file, an index of shards, or a folder with a model.

    Only headers are read. `file[name]` is a zero-copy buffer over the mapped file.

    >>> import berth, numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> berth.save(path, {"w": np.arange(6, dtype=np.float32)}, {"note": "hello"})
    >>> with berth.open(path) as file:
    ...     file.keys(), file["w"].numpy()[5], file.metadata
    (['w'], np.float32(5.0), {'note': 'hello'})
    """
    return _berth._open(_os.fspath(path))


def load(path, device="CPU", names=None, **options):
    """Reads a weight file (or the tensors named) into fresh memory: `{name: Buffer}`. See WeightFile.load."""
    with open(path) as file:
        return file.load(names, device, **options)


def save(path, tensors, metadata=None, progress=None) -> None:
    """Writes buffers or arrays to a .safetensors or .gguf file, replacing it whole or not at all."""
    _berth._save(_os.fspath(path), dict(tensors), metadata, progress)


def convert(source, target, progress=None) -> None:
    """Writes a weight file in the format that `target` ends with."""
    _berth._convert(_os.fspath(source), _os.fspath(target), progress)


def trace(path, inner="CPU") -> Trace:
    """An allocator that records every allocation and free that passes through it to a new file at `path`.

    >>> import berth, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.trace")
    >>> with berth.trace(path) as recorder:
    ...     a = berth.Buffer(1000, "f32", recorder, label="a")
    ...     a.release()
    ...     b = berth.Buffer(500, "f32", recorder)
    >>> recording = berth.read_trace(path)
    >>> recording
    <berth.Recording 3 events, 2 allocations>
    >>> recording[0]["label"], recording[0]["nbytes"], recording[1]["kind"]
    ('a', 4000, 'free')
    >>> berth.plan(recording.lifetimes()).size
    4000
    >>> recording.replay(berth.pool("CPU"))["failures"]
    0
    """
    return _berth._trace(inner, _os.fspath(path))


def read_trace(path) -> Recording:
    """Reads a file that berth.trace() or `berth replay` works with; ValueError says where it breaks the format."""
    return _berth._read_trace(_os.fspath(path))
