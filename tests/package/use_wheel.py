"""Uses an installed Berth as its first user would, with Python's standard library alone: import, a buffer, a plan, a
weight file. Any failure is an exception."""

import json
import struct
import tempfile
from pathlib import Path

import berth

numbers = struct.pack("<4f", 1, 2, 3, 4)
buffer = berth.Buffer((4,), "f32")
buffer.copyin(numbers)
assert buffer.tobytes() == numbers

plan = berth.plan([(4096, 0, 2), (8192, 1, 3), (4096, 2, 4)])
assert plan.size == 12288, plan.size  # the third takes the place of the first

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "tiny.safetensors"
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + numbers)
    file = berth.open(str(path))
    assert file["x"].tobytes() == numbers
    assert file.load(["x"])["x"].tobytes() == numbers
print(f"berth {berth.__version__}: a buffer, a plan and a weight file work")
