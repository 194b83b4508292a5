"""berth inspect and berth convert, from the outside: tables, JSON, both ways between the formats, refusals, Ctrl-C.

    weights_command_test.py BERTH
"""

import json
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BERTH = None


def safetensors(tensors, metadata=None):
    """A file of {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


MODEL = safetensors({"embed.weight": ("F32", [2, 3], bytes(range(24))), "head.bias": ("I8", [4], b"\1\2\3\4")},
                    {"by": "a test"})


class WeightCommands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        return path

    def large(self, name, size):
        """A file with one tensor of `size` bytes, all holes: quick to make, slow to write again."""
        text = json.dumps({"w": {"dtype": "I8", "shape": [size], "data_offsets": [0, size]}}).encode()
        path = self.path(name, struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + size)
        return path

    def run_berth(self, *arguments, **options):
        return subprocess.run([BERTH, *arguments], capture_output=True, text=True, timeout=120, **options)

    def test_inspect_prints_a_row_for_each_tensor(self):
        ran = self.run_berth("inspect", self.path("a.safetensors", MODEL))
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertTrue(ran.stdout.startswith("safetensors, 2 tensors, 28 B\n"), ran.stdout)
        rows = {line.split()[0]: line for line in ran.stdout.splitlines()[3:]}
        self.assertEqual(list(rows), ["embed.weight", "head.bias"])
        self.assertRegex(rows["embed.weight"], r"f32 +\[2, 3\] +24 B +\d+$")
        self.assertNotIn("a test", ran.stdout)

    def test_inspect_shows_metadata_when_asked(self):
        ran = self.run_berth("inspect", "--metadata", self.path("a.safetensors", MODEL))
        self.assertIn('by (string) = "a test"', ran.stdout)

    def test_inspect_prints_json_with_the_byte_ranges(self):
        path = self.path("a.safetensors", MODEL)
        ran = self.run_berth("inspect", "--json", "--metadata", path)
        told = json.loads(ran.stdout)
        self.assertEqual((told["format"], told["files"], told["tensor_count"]), ("safetensors", [path], 2))
        self.assertEqual(told["metadata"], {"by": "a test"})
        for tensor, content in zip(told["tensors"], (bytes(range(24)), b"\1\2\3\4")):
            self.assertEqual(MODEL[tensor["offset"]:tensor["offset"] + tensor["bytes"]], content)
        self.assertNotIn("metadata", json.loads(self.run_berth("inspect", "--json", path).stdout))

    def test_inspect_says_where_a_file_is_broken(self):
        ran = self.run_berth("inspect", self.path("cut.safetensors", MODEL[:-1]))
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertRegex(ran.stderr, r"berth inspect: .*cut\.safetensors: .*bytes \[\d+, \d+\), but the file ends at \d+")

    @unittest.skipIf(os.environ.get("BERTH_SANITIZED"), "a sanitizer needs more addresses than there is memory")
    def test_a_header_that_lies_costs_no_memory(self):
        key = struct.pack("<Q", 1) + b"k"
        liars = {
            "length.safetensors": struct.pack("<Q", 99_000_000) + b"{}",
            "tensors.gguf": b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
            "entries.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
            "string.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IQ", 8, 1 << 60),
            "array.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IIQ", 9, 8, 1 << 60),
            "header.npy": b"\x93NUMPY\2\0" + struct.pack("<I", 0xFFFFFFFF),
            "members.npz": b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xFFFE, 0xFFFE, 0xFFFFFFF0, 0, 0),
        }
        path = self.path("a.safetensors", MODEL)
        least = next(mebibytes for mebibytes in range(16, 4096, 16) if self.fits(path, mebibytes))
        for name, content in liars.items():
            # In the room that an honest file of a few bytes needs, and 16 MiB.
            ran = self.run_berth("inspect", self.path(name, content), preexec_fn=lambda: self.limit(least + 16))
            self.assertEqual((ran.returncode, ran.stdout), (2, ""), name)
            self.assertRegex(ran.stderr, r"at byte \d+", name)

    @staticmethod
    def limit(mebibytes):
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))

    def fits(self, path, mebibytes):
        return self.run_berth("inspect", path, preexec_fn=lambda: self.limit(mebibytes)).returncode == 0

    def test_convert_goes_to_gguf_and_back(self):
        source, middle, back = self.path("a.safetensors", MODEL), self.path("b.gguf"), self.path("c.safetensors")
        ran = self.run_berth("convert", source, middle)
        self.assertEqual((ran.returncode, ran.stderr, ran.stdout), (0, "", f"{middle}: 2 tensors, 28 B\n"))
        self.assertEqual(self.run_berth("convert", middle, back).returncode, 0)
        told = json.loads(self.run_berth("inspect", "--json", "--metadata", back).stdout)
        with open(back, "rb") as file:
            content = file.read()
        self.assertEqual(told["metadata"], {"by": "a test"})
        self.assertEqual({t["name"]: content[t["offset"]:t["offset"] + t["bytes"]] for t in told["tensors"]},
                         {"embed.weight": bytes(range(24)), "head.bias": b"\1\2\3\4"})

    def test_convert_names_a_tensor_that_the_format_cannot_hold(self):
        source = self.path("a.safetensors", safetensors({"flags": ("BOOL", [2], b"\0\1")}))
        ran = self.run_berth("convert", source, self.path("b.gguf"))
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertIn('tensor "flags" is of bool, which GGUF cannot hold', ran.stderr)
        self.assertEqual(os.listdir(self.folder), ["a.safetensors"])

    def test_convert_keeps_the_old_file_when_it_fails(self):
        source = self.path("a.safetensors", safetensors({"flags": ("BOOL", [2], b"\0\1")}))
        self.assertEqual(self.run_berth("convert", source, self.path("b.gguf", b"old")).returncode, 2)
        with open(self.path("b.gguf"), "rb") as file:
            self.assertEqual(file.read(), b"old")

    def test_ctrl_c_ends_a_conversion_and_leaves_no_half_file(self):
        source = self.large("large.safetensors", 4 << 30)
        target = self.path("large.gguf")
        berth = subprocess.Popen([BERTH, "convert", source, target], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        while berth.poll() is None and not any(name.endswith(".partial") for name in os.listdir(self.folder)):
            time.sleep(0.001)
        berth.send_signal(signal.SIGINT)
        out, error = berth.communicate(timeout=60)
        self.assertEqual((berth.returncode, out), (130, ""))
        self.assertIn("cancelled", error)
        self.assertEqual(os.listdir(self.folder), ["large.safetensors"])

    def test_convert_shows_a_bar_on_a_terminal_and_takes_it_away(self):
        source = self.large("large.safetensors", 256 << 20)
        leader, follower = pty.openpty()
        environment = {**os.environ, "BERTH_PROGRESS": "now", "TERM": "xterm"}
        berth = subprocess.Popen([BERTH, "convert", source, self.path("b.gguf")], stdout=subprocess.PIPE,
                                 stderr=follower, env=environment, text=True)
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            seen += piece
        os.close(leader)
        self.assertEqual(berth.wait(timeout=60), 0)
        self.assertIn("1 tensors, 256.0 MiB", berth.stdout.read())
        berth.stdout.close()
        self.assertRegex(seen.decode(), r"\rwriting  .*% .*of 256\.0 MiB")
        self.assertTrue(seen.endswith(b"\r\x1b[K"), seen[-80:])


if __name__ == "__main__":
    BERTH = os.path.abspath(sys.argv.pop(1))
    unittest.main()
