"""Memory snapshots as torch.cuda.memory._dump_snapshot() writes them, made without torch.

A slow and simple caching allocator that follows the rules of PyTorch's, written from their description and sharing
nothing with the model in cli/explain. It records what the real one records: segments, and a trace of events with frames.

    torch_snapshot.py OUT.pickle [--events N] [--depth N]     a large snapshot, for measuring
"""

import argparse
import pickle
import random
import struct

MIB = 1 << 20
UNLIMITED = 1 << 62


class Block:
    def __init__(self, segment, address, size):
        self.segment, self.address, self.size = segment, address, size
        self.requested = 0
        self.used = False
        self.mapped = True


class Segment:
    def __init__(self, address, stream, small, expandable):
        self.address, self.stream, self.small, self.expandable = address, stream, small, expandable
        self.blocks = []  # in order of their addresses, without holes

    def size(self):
        return sum(block.size for block in self.blocks if block.mapped)


class Allocator:
    def __init__(self, expandable=False, max_split=UNLIMITED, seed=0, device=0, divisions=None, addresses="random",
                 oldest_first=False):
        self.expandable, self.max_split, self.device = expandable, max_split, device
        self.divisions = divisions or {}  # roundup_power2_divisions, by MiB
        self.oldest_first = oldest_first  # of equal free blocks, as torch 2.15 does; torch 2.6 takes the lowest address
        self.segments = []
        self.events = []
        self.frames = []
        self.time = 1_000_000
        self.addresses = random.Random(seed) if addresses == "random" else None
        self.taken = []

    # --- what is recorded ---

    def record(self, action, address, size, stream):
        self.time += 7
        self.events.append({"action": action, "addr": address, "size": size, "stream": stream,
                            "time_us": self.time, "frames": self.frames})

    def snapshot(self):
        segments = []
        for segment in self.segments:
            for run in self.mapped_runs(segment):
                blocks = [{"address": block.address, "size": block.size, "requested_size": block.requested,
                           "state": "active_allocated" if block.used else "inactive", "frames": []} for block in run]
                segments.append({"device": self.device, "address": run[0].address,
                                 "total_size": sum(block.size for block in run),
                                 "allocated_size": sum(block.size for block in run if block.used),
                                 "active_size": sum(block.size for block in run if block.used),
                                 "stream": segment.stream, "segment_type": "small" if segment.small else "large",
                                 "segment_pool_id": (0, 0), "is_expandable": segment.expandable, "blocks": blocks})
        return {"segments": segments, "device_traces": [[]] * self.device + [self.events],
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": self.max_split
                                       if self.max_split != UNLIMITED else -1,
                                       "garbage_collection_threshold": 0.0,
                                       "expandable_segments": self.expandable, "roundup_power2_divisions": {
                                           str(1 << i): self.divisions.get(1 << i, 0) for i in range(16)}},
                "external_annotations": []}

    def mapped_runs(self, segment):
        runs, run = [], []
        for block in segment.blocks + [None]:
            if block is not None and block.mapped:
                run.append(block)
            elif run:
                runs.append(run)
                run = []
        return runs

    # --- the rules ---

    def rounded(self, requested):
        interval = 1
        while interval < 1 << 15 and requested >= 2 * interval * MIB:
            interval *= 2
        divisions = self.divisions.get(interval, 0)
        if divisions > 1 and requested > 512 * divisions:
            power = 1
            while 2 * power <= requested:
                power *= 2
            return min(size for size in (power + i * power // divisions for i in range(divisions + 1))
                       if size >= requested)
        return max(512, (requested + 511) // 512 * 512)

    def malloc(self, requested, stream=0):
        size = self.rounded(requested)
        small = size <= MIB
        block = self.best_fit(size, small, stream)
        if block is None:
            block = self.grow(size, small, stream) if self.expandable else self.new_segment(size, small, stream)
        rest = block.size - size
        if (rest >= 512) if small or self.expandable else (size < self.max_split and rest > MIB):
            tail = Block(block.segment, block.address + size, rest)
            block.size = size
            block.segment.blocks.insert(block.segment.blocks.index(block) + 1, tail)
        block.used = True
        block.requested = requested
        self.record("alloc", block.address, requested, stream)
        return block

    def free(self, block):
        for action in ("free_requested", "free_completed"):
            self.record(action, block.address, block.requested, block.segment.stream)
        block.used = False
        block.requested = 0
        self.merge(block.segment)

    def best_fit(self, size, small, stream):
        fits = [block for segment in self.segments if segment.small == small and segment.stream == stream
                for block in segment.blocks if block.mapped and not block.used and block.size >= size]
        age = self.segments.index if self.oldest_first else lambda segment: 0
        fits.sort(key=lambda block: (block.size, age(block.segment), block.address))
        if not fits:
            return None
        best = fits[0]
        if self.expandable:
            for other in fits[1:]:
                if self.can_become(other) >= self.can_become(best):
                    break
                best = other
        if size < self.max_split <= best.size:
            return None
        if size >= self.max_split and best.size >= size + 20 * MIB:
            return None
        return best

    def can_become(self, block):
        blocks = block.segment.blocks
        after = blocks[blocks.index(block) + 1:][:1]
        return block.size + sum(other.size for other in after if not other.mapped)

    def new_segment(self, size, small, stream):
        total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
        while True:  # a driver's addresses follow no order
            slot = len(self.taken) if self.addresses is None else self.addresses.randrange(1 << 14)
            address = 0x7F0000000000 + slot * (512 * MIB)
            if address not in self.taken:
                break
        self.taken.append(address)
        segment = Segment(address, stream, small, False)
        segment.blocks.append(Block(segment, address, total))
        self.segments.append(segment)
        self.record("segment_alloc", address, total, stream)
        return segment.blocks[0]

    def grow(self, size, small, stream):
        page = (2 if small else 20) * MIB
        for segment in self.segments:
            if segment.small != small or segment.stream != stream:
                continue
            for index, block in enumerate(segment.blocks):
                if block.mapped:
                    continue
                first = index - 1 if index > 0 and not segment.blocks[index - 1].used else index
                room = 0
                for other in segment.blocks[first:]:
                    if other.used:
                        break
                    room += other.size
                if room >= size:
                    return self.map_run(segment, segment.blocks[first].address, size, page)
        address = 0x600000000000 + len(self.segments) * (1 << 42)
        segment = Segment(address, stream, small, True)
        unmapped = Block(segment, address, 1 << 41)
        unmapped.mapped = False
        segment.blocks.append(unmapped)
        self.segments.append(segment)
        return self.map_run(segment, address, size, page)

    def map_run(self, segment, address, size, page):
        """Maps pages until the free block at `address` has `size` bytes."""
        while True:
            block = next(each for each in segment.blocks if each.address == address)
            if block.mapped and block.size >= size:
                return block
            index = segment.blocks.index(block)
            hole = block if not block.mapped else segment.blocks[index + 1]
            missing = size if hole is block else size - block.size
            length = min((missing + page - 1) // page * page, hole.size)
            if length < hole.size:
                rest = Block(segment, hole.address + length, hole.size - length)
                rest.mapped = False
                hole.size = length
                segment.blocks.insert(segment.blocks.index(hole) + 1, rest)
            hole.mapped = True
            self.record("segment_map", hole.address, length, segment.stream)
            self.merge(segment)

    def merge(self, segment):
        merged = []
        for block in segment.blocks:
            last = merged[-1] if merged else None
            if last is not None and not last.used and not block.used and last.mapped == block.mapped:
                last.size += block.size
            else:
                merged.append(block)
        segment.blocks = merged

    def empty_cache(self):
        for segment in list(self.segments):
            if not segment.expandable:
                if len(segment.blocks) == 1 and not segment.blocks[0].used:
                    self.record("segment_free", segment.address, segment.blocks[0].size, segment.stream)
                    self.segments.remove(segment)
                continue
            page = (2 if segment.small else 20) * MIB
            for block in list(segment.blocks):
                if block.used or not block.mapped:
                    continue
                begin = segment.address + (block.address - segment.address + page - 1) // page * page
                end = segment.address + (block.address + block.size - segment.address) // page * page
                if begin >= end:
                    continue
                pieces = [(block.address, begin, True), (begin, end, False), (end, block.address + block.size, True)]
                fresh = []
                for low, high, mapped in pieces:
                    if low < high:
                        piece = Block(segment, low, high - low)
                        piece.mapped = mapped
                        fresh.append(piece)
                at = segment.blocks.index(block)
                segment.blocks[at:at + 1] = fresh
                self.record("segment_unmap", begin, end - begin, segment.stream)
            self.merge(segment)


def random_program(allocator, seed, steps, empty_cache=True, streams=1):
    """Allocates and frees as training does: steps of temporaries over a base that grows."""
    rng = random.Random(seed)
    live = []
    sizes = [rng.randrange(1, 4000), rng.randrange(4000, MIB), rng.randrange(MIB, 10 * MIB), rng.randrange(10, 60) * MIB]
    for step in range(steps):
        allocator.frames = [{"filename": "/opt/torch/nn/functional.py", "line": 12, "name": "linear"},
                            {"filename": f"/home/me/train_{rng.randrange(5)}.py", "line": rng.randrange(40), "name": "step"}]
        if live and rng.random() < 0.48:
            allocator.free(live.pop(rng.randrange(len(live))))
        else:
            size = rng.choice(sizes) if rng.random() < 0.7 else int(2 ** rng.uniform(0, 26))
            live.append(allocator.malloc(size, rng.randrange(streams)))
        if empty_cache and rng.random() < 0.005:
            allocator.empty_cache()
    return live


def write(path, snapshot, protocol=4):
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=protocol)


class Pickler:
    """Writes the opcodes of a pickle one after another, for files that are too large to have in memory."""

    def __init__(self, file):
        self.file, self.memo, self.texts = file, 0, {}
        file.write(b"\x80\x04")

    def get(self, index):
        return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)

    def remember(self, opcodes):
        """The opcodes of a new object, and its number."""
        self.memo += 1
        return opcodes + b"\x94", self.memo - 1

    def text(self, value):
        if value in self.texts:
            return self.get(self.texts[value])
        opcodes, self.texts[value] = self.remember(b"\x8c" + bytes([len(value)]) + value.encode())
        return opcodes

    @staticmethod
    def number(value):
        if value < 256:
            return b"K" + bytes([value])
        if value < 65536:
            return b"M" + struct.pack("<H", value)
        if value < 1 << 31:
            return b"J" + struct.pack("<i", value)
        return b"\x8a\x08" + struct.pack("<q", value)

    def dict(self, items):
        opcodes = self.remember(b"}")[0] + b"("
        for key, value in items:
            opcodes += self.text(key) + (self.text(value) if isinstance(value, str) else self.number(value))
        return opcodes + b"u"


def write_large(path, events, depth):
    """A snapshot as long training leaves it: frames are shared, lists of frames are not."""
    rng = random.Random(1)
    with open(path, "wb") as file:
        pickler = Pickler(file)
        file.write(pickler.remember(b"}")[0] + b"(" + pickler.text("segments") + pickler.remember(b"]")[0])
        file.write(pickler.text("device_traces") + pickler.remember(b"]")[0] + pickler.remember(b"]")[0] + b"(")
        # Frames are written where they are met first, and recalled after that.
        numbers = {}

        def frame(i):
            if i in numbers:
                return pickler.get(numbers[i])
            numbers[i] = pickler.memo
            return pickler.dict([("filename", f"/home/me/project/module_{i % 50}.py"), ("line", i),
                                 ("name", f"function_{i}")])

        time = 0
        live = []
        for i in range(events // 2):
            time += rng.randrange(50)
            made = ("alloc", 0x7F0000000000 + i % 4096 * 4 * MIB, rng.randrange(1, 2 * MIB),
                    rng.randrange(2000 - depth))
            live.append(made)
            # Thousands are live at a time, and each is freed after a while.
            freed = live.pop(0) if len(live) > 3000 else None
            for action, address, size, at in (made,) + ((("free_completed",) + freed[1:],) if freed else ()):
                fields = pickler.remember(b"}")[0] + b"(" + pickler.text("action") + pickler.text(action)
                for key, value in (("addr", address), ("size", size), ("stream", 0), ("time_us", time)):
                    fields += pickler.text(key) + pickler.number(value)
                fields += pickler.text("frames") + pickler.remember(b"]")[0] + b"("
                file.write(fields + b"".join([frame(at + d) for d in range(depth)]) + b"eu")
        file.write(b"ea" + b"u.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=40)
    options = parser.parse_args()
    write_large(options.out, options.events, options.depth)
