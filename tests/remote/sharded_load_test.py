"""load_sharded() with real processes over UCX: started by `berth launch`, each compares its shards with the file.

usage: sharded_load_test.py BERTH SHARDED_RANK
Ends with 77 if UCX is not installed.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

SHARDED_RANK = sys.argv.pop(2)
BERTH = sys.argv.pop(1)
RULES = "*.q row unit 8\n*.o column\n*.experts.#.w expert\n"
SKIPPED = 77


def safetensors(tensors):
    """The bytes of a file with f32 tensors of random contents."""
    header, data = {}, b""
    for name, shape in tensors:
        count = 1
        for extent in shape:
            count *= extent
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += random.randbytes(4 * count)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


class ShardedLoad(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("model.rules", RULES.encode())

    def write(self, name, content):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)

    def run_ranks(self, ranks, name, *arguments):
        """The lines of each rank, by rank."""
        done = subprocess.run(
            [BERTH, "launch", "-n", str(ranks), "--keep-going", "--label", "--", SHARDED_RANK,
             os.path.join(self.folder, name), os.path.join(self.folder, "model.rules"), *map(str, arguments)],
            capture_output=True, text=True, timeout=120)
        lines = {rank: [] for rank in range(ranks)}
        for line in done.stdout.splitlines():
            rank, _, text = line.partition("] ")
            if text.startswith(("ok", "error ")) or text.endswith(" differs"):  # UCX writes to the same stream
                lines[int(rank.removeprefix("["))].append(text)
        return lines, done

    def write_model(self):
        tensors = [("a.q", [64, 300]), ("a.o", [300, 64]), ("a.norm", [1000]), ("a.scale", []), ("a.none", [0, 5])]
        tensors += [(f"a.experts.{i}.w", [5000]) for i in range(5)]
        self.write("model.safetensors", safetensors(tensors))
        return "model.safetensors"

    def test_each_rank_gets_its_shards(self):
        for ranks in (2, 4):
            lines, done = self.run_ranks(ranks, self.write_model())
            self.assertEqual(lines, {rank: ["ok"] for rank in range(ranks)}, done.stderr)

    def test_shards_with_an_index(self):
        parts = {"one.safetensors": [("a.q", [64, 300])], "two.safetensors": [("a.o", [300, 64]), ("a.norm", [1000])]}
        for name, tensors in parts.items():
            self.write(name, safetensors(tensors))
        weight_map = {tensor: name for name, tensors in parts.items() for tensor, _ in tensors}
        self.write("model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": weight_map}).encode())
        lines, done = self.run_ranks(3, "model.safetensors.index.json")
        self.assertEqual(lines, {rank: ["ok"] for rank in range(3)}, done.stderr)

    def test_a_rank_that_is_killed_is_named(self):
        lines, done = self.run_ranks(3, self.write_model(), "kill", 1, 1)
        self.assertIn("rank 1 was ended by signal 9", done.stderr)
        for rank in (0, 2):
            self.assertEqual(len(lines[rank]), 1, (lines, done.stderr))
            self.assertTrue(lines[rank][0].startswith("error DeviceLost"), lines)
            self.assertIn("rank 1", lines[rank][0], lines)

    def test_a_rank_that_cancels_is_named(self):
        lines, _ = self.run_ranks(3, self.write_model(), "cancel", 2, 1)
        self.assertTrue(lines[2][0].startswith("error Cancelled"), lines)
        for rank in (0, 1):
            self.assertTrue(lines[rank][0].startswith("error Cancelled rank 2 failed in a sharded load"), lines)

    def test_a_rank_that_does_not_come_is_named(self):
        lines, _ = self.run_ranks(2, self.write_model(), "stay", 1, 0)
        self.assertRegex(lines[0][0], "error Device(Unavailable|Lost).*rank 1")

    def test_ranks_with_other_rules_are_found(self):
        lines, _ = self.run_ranks(2, self.write_model(), "other", 1, 0)
        for rank in (0, 1):
            self.assertTrue(lines[rank][0].startswith(f"error InvalidArgument rank {1 - rank} loads something else"), lines)


def has_ucx():
    listed = subprocess.run([BERTH, "devices", "--json"], capture_output=True, text=True, timeout=120)
    rows = [row for row in json.loads(listed.stdout) if row["name"].startswith("REMOTE")]
    return not rows or "apt install libucx0" not in rows[0]["description"]


if __name__ == "__main__":
    if not has_ucx():
        sys.exit(SKIPPED)
    unittest.main()
