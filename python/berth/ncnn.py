"""ncnn with Berth as its memory.

    import berth.ncnn

    memory = berth.ncnn.Memory()
    memory.prepare(net)                                        # an ncnn.Net, ncnn.Option or ncnn.Extractor

    with memory.run("detector", mat), net.create_extractor() as extractor:
        extractor.input("data", mat)
        status, output = extractor.extract("output")

The first run of a key with certain shapes is recorded; later ones are served from a planned arena, with the same bits
out. Nets that are prepared with one Memory share its arenas. Threads may run at the same time. In C++ the same is
`berth/engines/ncnn.h`, which costs less: here each request of the engine passes through Python, about a microsecond.
"""

from __future__ import annotations

import contextlib

try:
    import ncnn as _engine
except ImportError as error:
    raise ImportError(f"{error}: berth.ncnn needs the package ncnn. Install it with: pip install ncnn") from error

from . import _berth
from ._report import MemoryReport

__all__ = ["Memory", "MemoryReport"]

# The engine holds the address of an allocator and no reference to it, and a mat may be the last to use it. So a memory
# that the engine was given stays for the life of the process.
_given = []


# The engine's binding lets Python subclass two allocators and override what they do. Nothing of the pool is used.
class Memory(_engine.PoolAllocator):
    """An allocator of ncnn for blobs and workspaces. `report()` says what it did."""

    def __init__(self):
        super().__init__()
        self._memory = _berth._NcnnMemory()
        # What the engine calls. A method of the compiled module is called without a frame of Python.
        self.fastMalloc = self._memory.allocate
        self.fastFree = self._memory.release

    def prepare(self, target):
        """Makes this the allocator of a net's extractors, of an option, or of one extractor.

        A net is prepared before its extractors are created. The memory then stays for the life of the process.
        TypeError for anything else.
        """
        if isinstance(target, _engine.Net):
            target = target.opt
        if isinstance(target, _engine.Option):
            target.blob_allocator = self
            target.workspace_allocator = self
        elif isinstance(target, _engine.Extractor):
            target.set_blob_allocator(self)
            target.set_workspace_allocator(self)
        else:
            error = TypeError(f"prepare() takes an ncnn.Net, ncnn.Option or ncnn.Extractor, not {type(target).__name__}")
            error.code = "TypeMismatch"
            raise error
        if self not in _given:
            _given.append(self)

    @contextlib.contextmanager
    def run(self, key, *inputs):
        """One run, on the thread that enters it, which must also leave it.

        `key` names the model and the outputs that are extracted. `inputs` are what the sizes depend on: mats of the
        engine, or tuples of numbers. Destroy the extractor inside (`with net.create_extractor() as extractor`), so that
        what it holds is planned. A mat that is kept is left out of the next plan.
        """
        key, dimensions = str(key), [number for each in inputs for number in _numbers(each)]
        self._memory.begin(key, dimensions)
        try:
            yield self
        finally:
            self._memory.end(key, dimensions)

    def report(self) -> MemoryReport:
        """What the last run did, and what the memory holds."""
        return MemoryReport({**self._memory.report(), "outside": []})

    def give_back(self):
        """Returns all memory that no run and no mat uses to the system. Returns the bytes."""
        return self._memory.give_back()


def _numbers(value):
    if isinstance(value, _engine.Mat):
        return value.w, value.h, value.d, value.c, value.elemsize
    return tuple(int(number) for number in value)
