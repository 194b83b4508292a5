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

import collections.abc as _abc
import os as _os
import typing as _typing

from ._berth import (  # noqa: F401
    Allocator,
    Arena,
    AsyncLoad,
    Buffer,
    CachingPool,
    Cluster,
    Device,
    KvCache,
    Limit,
    Node,
    Plan,
    Recorder,
    Recording,
    Schedule,
    ScheduleBuilder,
    ShardPlan,
    ShardedTensors,
    SharedMemory,
    Statistics,
    StepBuffers,
    StepRun,
    WeightFile,
    __version__,
    caching_pool,
    device,
    devices,
    dtype_info,
    dtypes,
    from_dlpack,
    import_shared,
    limit,
    load_sharded,
    plan,
    reshard,
    shard_plan,
    shareable,
    statistics,
)
from . import _berth

if _typing.TYPE_CHECKING:
    from . import onnxruntime  # noqa: F401

# Held, so that host buffers made one after another are of one device: its last holder closes it.
_host = device("CPU")

__all__ = [
    "Allocator", "Arena", "AsyncLoad", "Buffer", "CachingPool", "Cluster", "Device", "KvCache", "Limit", "Node", "Plan",
    "Recorder", "Recording", "Schedule", "ScheduleBuilder", "ShardPlan", "ShardedTensors", "SharedMemory", "Statistics",
    "StepBuffers", "StepRun", "WeightFile", "caching_pool", "convert", "device", "devices", "dtype_info", "dtypes",
    "from_dlpack", "import_shared", "limit", "load", "load_async", "load_sharded", "open", "plan", "read_recording",
    "record", "reshard", "save", "shard_plan", "shareable", "statistics",
]


def __getattr__(name: str) -> object:
    # Imported on first use: each needs the package of its engine.
    if name in ("ncnn", "onnxruntime"):
        import importlib
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_Path = _typing.Union[str, "_os.PathLike[str]"]
_Progress = _typing.Optional[_abc.Callable[[int, int], object]]


def open(path: _Path) -> WeightFile:  # noqa: A001
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


def load(
    path: _Path,
    device: object = "CPU",
    names: _typing.Optional[_abc.Sequence[str]] = None,
    *,
    threads: int = 0,
    direct: bool = False,
    progress: _Progress = None,
) -> dict[str, Buffer]:
    """Reads a weight file (or the tensors named) into fresh memory. WeightFile.load says what the options are.

    >>> import berth, numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> berth.save(path, {"w": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.float32)})
    >>> berth.load(path, "CPU", names=["w"])
    {'w': <berth.Buffer f32[6] on CPU, 24 B>}
    """
    with open(path) as file:
        return file.load(names, device, threads=threads, direct=direct, progress=progress)


def load_async(
    path: _Path,
    device: object = "CPU",
    names: _typing.Optional[_abc.Sequence[str]] = None,
    *,
    readers: int = 0,
    method: str = "threads",
) -> AsyncLoad:
    """Begins to read a weight file (or the tensors named) into fresh memory, and returns at once.

    >>> import berth, numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> berth.save(path, {"w": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.float32)})
    >>> load = berth.load_async(path, names=["w", "b"])
    >>> load["w"]                                  # waits for it, and not for "b"
    <berth.Buffer f32[6] on CPU, 24 B>
    >>> sorted(load.finish())
    ['b', 'w']
    """
    with open(path) as file:
        return file.load_async(names, device, readers=readers, method=method)


def save(
    path: _Path,
    tensors: _abc.Mapping[str, object],
    metadata: _typing.Optional[_abc.Mapping[str, object]] = None,
    progress: _Progress = None,
) -> None:
    """Writes buffers or arrays to a .safetensors or .gguf file, replacing it whole or not at all.

    >>> import berth, numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.gguf")
    >>> berth.save(path, {"w": np.ones((2, 32), np.float16)}, {"general.architecture": "none", "layers": 2})
    >>> berth.open(path).metadata
    {'general.architecture': 'none', 'layers': 2}
    """
    _berth._save(_os.fspath(path), dict(tensors), None if metadata is None else dict(metadata), progress)


def convert(source: _Path, target: _Path, progress: _Progress = None) -> None:
    """Writes a weight file in the format that `target` ends with, .safetensors or .gguf.

    >>> import berth, numpy as np, tempfile, os
    >>> folder = tempfile.mkdtemp()
    >>> np.savez(os.path.join(folder, "a.npz"), w=np.arange(3, dtype=np.float32))
    >>> berth.convert(os.path.join(folder, "a.npz"), os.path.join(folder, "a.gguf"))
    >>> berth.open(os.path.join(folder, "a.gguf"))["w"].numpy()
    array([0., 1., 2.], dtype=float32)
    """
    _berth._convert(_os.fspath(source), _os.fspath(target), progress)


def record(path: _Path, inner: object = "CPU") -> Recorder:
    """An allocator that records every allocation and free that passes through it to a new file at `path`.

    >>> import berth, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.trace")
    >>> with berth.record(path) as recorder:
    ...     a = berth.Buffer(1000, "f32", recorder, label="a")
    ...     a.release()
    ...     b = berth.Buffer(500, "f32", recorder)
    >>> recording = berth.read_recording(path)
    >>> recording
    <berth.Recording 3 events, 2 allocations>
    >>> recording[0]["label"], recording[0]["nbytes"], recording[1]["kind"]
    ('a', 4000, 'free')
    >>> berth.plan(recording.lifetimes()).size
    4000
    >>> recording.replay(berth.caching_pool("CPU"))["failures"]
    0
    """
    return _berth._record(inner, _os.fspath(path))


def read_recording(path: _Path) -> Recording:
    """Reads a file that berth.record() or `berth replay` works with; ValueError says where it breaks the format.

    >>> import berth, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.trace")
    >>> with berth.record(path) as recorder:
    ...     berth.Buffer(100, "u8", recorder).release()
    >>> len(berth.read_recording(path))
    2
    """
    return _berth._read_recording(_os.fspath(path))
