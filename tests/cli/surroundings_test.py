"""The program berth where its surroundings are hostile: full and closed streams, no memory, pipes and devices for files,
names that are not text, full disks.

    surroundings_test.py BERTH
"""

import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

BERTH = None
PROBLEM = "id,lower,upper,size\na,0,2,4096\nb,1,3,8192\n"


def safetensors(names, metadata=None):
    """A file with a tensor of one byte for each name."""
    header = {} if metadata is None else {"__metadata__": metadata}
    for i, name in enumerate(names):
        header[name] = {"dtype": "I8", "shape": [1], "data_offsets": [i, i + 1]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(len(names))


class Surroundings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.model = self.write("a.safetensors", safetensors(["w", "b"]))
        self.problem = self.write("p.csv", PROBLEM.encode())
        recording = b"BRTHTRC1" + bytes([2, 1, 0, 64, 6, 0, 3, 1, 0, 1])
        self.recording = self.write("r.trace", recording)
        # Every command that prints a result.
        self.commands = [["inspect", self.model], ["inspect", "--json", self.model], ["plan", self.problem],
                         ["plan", self.problem, "--json", "-"], ["plan", self.problem, "--output", "-"],
                         ["plan", self.problem, "--compare"], ["replay", self.recording], ["devices"],
                         ["devices", "--json"], ["convert", self.model, os.path.join(self.folder, "c.gguf")],
                         ["explain", self.recording], ["explain", self.problem, "--json", "-"],
                         ["diff", self.recording, self.recording], ["diff", self.problem, self.problem, "--json", "-"],
                         ["--help"], ["--version"], ["plan", "--help"]]

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def run_berth(self, *arguments, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.run([BERTH, *arguments], timeout=120, **options)

    def test_a_word_that_is_no_command_is_named_with_the_commands_there_are(self):
        for word in ("nonsense", "", "plan\x1b[31m"):
            result = self.run_berth(word)
            self.assertEqual(result.returncode, 2, word)
            self.assertIn(b"there is no command", result.stderr)
            self.assertIn(b"devices, replay, plan", result.stderr)
            self.assertNotIn(b"run-worker", result.stderr)  # the program calls that one itself
            self.assertNotIn(b"\x1b", result.stderr)

    def test_the_commands_below_succeed_where_nothing_is_wrong(self):
        for command in self.commands:
            ran = self.run_berth(*command)
            self.assertEqual((ran.returncode, ran.stderr), (0, b""), command)
            self.assertNotEqual(ran.stdout, b"", command)

    def test_says_that_standard_output_is_full(self):
        for command in self.commands:
            with open("/dev/full", "wb") as full:
                ran = self.run_berth(*command, stdout=full)
            self.assertIn(ran.returncode, (1, 2), command)
            self.assertIn(b"standard output could not be written", ran.stderr, command)
            if "--version" not in command and "--help" not in command:
                self.assertIn(b"No space left on device", ran.stderr, command)

    def test_says_that_standard_output_is_closed(self):
        for command in self.commands:
            ran = self.run_berth(*command, stdout=None, preexec_fn=lambda: os.close(1))
            self.assertIn(ran.returncode, (1, 2), command)
            self.assertIn(b"standard output could not be written", ran.stderr, command)

    def test_no_file_gets_the_number_of_a_closed_stream(self):
        target = os.path.join(self.folder, "out.csv")

        def close_all():
            for stream in (0, 1, 2):
                os.close(stream)

        ran = self.run_berth("plan", self.problem, "--output", target, stdin=None, stdout=None, stderr=None,
                             preexec_fn=close_all)
        self.assertNotEqual(ran.returncode, 0)
        with open(target) as file:
            self.assertEqual(file.readline(), "id,lower,upper,size,offset\n")
            self.assertNotIn("lower bound", file.read())

    def test_ends_quietly_when_the_reader_of_a_pipe_has_gone(self):
        for ignored in (signal.SIG_DFL, signal.SIG_IGN):
            read, write = os.pipe()
            os.close(read)
            ran = self.run_berth("inspect", self.model, stdout=write, restore_signals=False,
                                 preexec_fn=lambda: signal.signal(signal.SIGPIPE, ignored))
            os.close(write)
            self.assertIn(ran.returncode, (-signal.SIGPIPE, 141))
            self.assertEqual(ran.stderr, b"")

    @unittest.skipIf(os.environ.get("BERTH_SANITIZED"), "a sanitizer needs more addresses than there is memory")
    def test_says_that_memory_ran_out(self):
        # A header of some MiB, and limits from too little to enough: the program ends by itself each time.
        large = self.write("large.safetensors", safetensors([f"layer.{i}.weight" for i in range(20000)]))
        outcomes = set()
        for mebibytes in range(8, 400, 4):
            limit = mebibytes << 20
            ran = self.run_berth("inspect", "--json", large,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            if ran.returncode == 127:  # the system's loader had not enough
                continue
            self.assertIn(ran.returncode, (0, 1), (mebibytes, ran.stderr[-300:]))
            if ran.returncode == 1:
                self.assertRegex(ran.stderr, rb"out of memory|Cannot allocate memory|could not be written")
            outcomes.add(ran.returncode)
            if ran.returncode == 0:
                break
        self.assertEqual(outcomes, {0, 1})

    def test_takes_paths_that_are_not_text(self):
        path = os.path.join(os.fsencode(self.folder), b"\xff\xfe\x80.safetensors")
        with open(path, "wb") as file:
            file.write(safetensors(["w"]))
        for options in ([], ["--json"]):
            ran = self.run_berth("inspect", *options, path)
            self.assertEqual((ran.returncode, ran.stderr), (0, b""))
        self.assertEqual(json.loads(ran.stdout)["tensor_count"], 1)
        ran = self.run_berth("convert", path, path + b".gguf")
        self.assertEqual((ran.returncode, ran.stderr), (0, b""))
        self.assertIn(b"\\xff\\xfe\\x80", ran.stdout)
        problem = os.path.join(os.fsencode(self.folder), b"\xff.csv")
        with open(problem, "w") as file:
            file.write(PROBLEM)
        page = problem + b".html"
        ran = self.run_berth("plan", problem, "--html", page, "--json", problem + b".json")
        self.assertEqual((ran.returncode, ran.stderr), (0, b""))
        with open(page, encoding="utf-8") as file:
            self.assertIn("Memory map", file.read())
        for command in ("inspect", "replay", "plan", "explain", "tflite"):
            ran = self.run_berth(command, os.fsencode(self.folder) + b"/absent\xff")
            self.assertEqual(ran.returncode, 2)
            self.assertIn(b"absent\\xff", ran.stderr)

    def test_refuses_pipes_without_a_writer_and_devices_without_an_end(self):
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        for name in (pipe, "/dev/zero", "/dev/urandom", self.folder):
            for command in (["inspect", name], ["plan", name], ["replay", name], ["convert", name, self.model + ".gguf"],
                            ["explain", name], ["diff", name, name], ["tflite", name]):
                if command == ["inspect", self.folder] or command[0] == "convert" and name == self.folder:
                    continue  # a folder with a model
                ran = self.run_berth(*command)
                self.assertIn(ran.returncode, (1, 2), command)
                self.assertIn(name.encode(), ran.stderr, command)
        with open("/dev/zero", "rb") as zero:
            ran = self.run_berth("plan", "-", stdin=zero)
        self.assertEqual(ran.returncode, 2)
        self.assertIn(b"standard input: it is a device", ran.stderr)

    def test_reads_a_problem_from_a_pipe(self):
        ran = subprocess.run(["bash", "-c", '"$0" plan <(cat "$1") --json -', BERTH, self.problem], capture_output=True,
                             timeout=120)
        self.assertEqual((ran.returncode, ran.stderr), (0, b""))
        self.assertEqual(json.loads(ran.stdout)["size"], 12288)
        ran = self.run_berth("plan", "-", "--json", "-", stdin=None, input=PROBLEM.encode())
        self.assertEqual(json.loads(ran.stdout)["size"], 12288)
        ran = self.run_berth("plan", "-", stdin=None, input=b"")
        self.assertEqual(ran.returncode, 2)

    def test_shows_no_control_characters_of_a_file(self):
        # A title for the window, a colour, a new line, a one-byte escape of C1, text from right to left.
        names = ["a\x1b]0;owned\x07b", "\x1b[31mred", "two\nlines", "c1\x9b31m", "rtl\u202eabc", "\x7f", "plain ü"]
        model = self.write("names.safetensors", safetensors(names, {"k\x1b[2J": "v\x1b[2J\x9b"}))
        for options in ([], ["--metadata"], ["--json", "--metadata"]):
            ran = self.run_berth("inspect", *options, model)
            self.assertEqual((ran.returncode, ran.stderr), (0, b""))
            text = ran.stdout.decode()
            self.assertIsNone(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text), options)
            if "--json" in options:
                self.assertEqual([tensor["name"] for tensor in json.loads(text)["tensors"]], names)
            else:
                self.assertIn("plain ü", text)
                self.assertIn("\\x1b[31mred", text)
                self.assertEqual(len([line for line in text.splitlines() if re.search(r" i8 ", line)]), len(names))
        # In messages, too.
        ran = self.run_berth("inspect", self.write("bad\x1b[31m.gguf", b"GGUF"))
        self.assertEqual(ran.returncode, 2)
        self.assertNotIn(b"\x1b", ran.stderr)
        bad = self.write("bad.csv", b"id,lower,upper,size\n\x1b[31m,0,x\x1b[2J,1\n")
        ran = self.run_berth("plan", bad)
        self.assertEqual(ran.returncode, 2)
        self.assertNotIn(b"\x1b", ran.stderr)

    def full_disk(self, bytes_allowed):
        """What a full disk does: writes beyond some bytes of a file fail."""
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, bytes_allowed))

    def test_leaves_the_old_file_where_there_is_no_room_for_the_new(self):
        rows = "".join(f"{i},{i},{i + 2},4096\n" for i in range(4000))
        problem = self.write("large.csv", ("id,lower,upper,size\n" + rows).encode())
        for option, name in (("--output", "o.csv"), ("--json", "o.json"), ("--html", "o.html"), ("explain", "e.json")):
            for old in (b"old", None):
                target = os.path.join(self.folder, name)
                if old is not None:
                    self.write(name, old)
                before = sorted(os.listdir(self.folder))
                command = ["plan", problem, option, target, "--work-limit", "1000"]
                if option == "explain":
                    command = ["explain", problem, "--html", target]
                ran = self.run_berth(*command, preexec_fn=self.full_disk(8192))
                self.assertEqual(ran.returncode, 2, option)
                self.assertIn(b"cannot write", ran.stderr)
                self.assertEqual(sorted(os.listdir(self.folder)), before)
                if old is not None:
                    with open(target, "rb") as file:
                        self.assertEqual(file.read(), old)
                    os.unlink(target)
        large = self.write("large.safetensors", safetensors([f"tensor {i}" for i in range(3000)]))
        before = sorted(os.listdir(self.folder))
        ran = self.run_berth("convert", large, os.path.join(self.folder, "b.gguf"), preexec_fn=self.full_disk(8192))
        self.assertEqual(ran.returncode, 1)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_writes_through_links_and_into_devices_and_keeps_permissions(self):
        real, link = self.write("real.csv", b"old"), os.path.join(self.folder, "link.csv")
        os.chmod(real, 0o600)
        os.symlink(real, link)
        self.assertEqual(self.run_berth("plan", self.problem, "--output", link).returncode, 0)
        self.assertTrue(os.path.islink(link))
        with open(real) as file:
            self.assertTrue(file.read().startswith("id,lower"))
        self.assertEqual(os.stat(real).st_mode & 0o777, 0o600)
        self.assertEqual(self.run_berth("plan", self.problem, "--output", "/dev/null").returncode, 0)
        self.assertFalse(os.path.isfile("/dev/null"))
        ran = self.run_berth("plan", self.problem, "--json", "/dev/full")
        self.assertEqual(ran.returncode, 2)
        self.assertIn(b"No space left on device", ran.stderr)

    def test_devices_says_nothing_on_standard_error_without_a_desktop(self):
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("XDG_RUNTIME_DIR", "NODEVICE_SELECT", "DISPLAY", "WAYLAND_DISPLAY")}
        ran = self.run_berth("devices", env=environment)
        self.assertEqual((ran.returncode, ran.stderr), (0, b""))

    def test_a_signal_that_asks_to_end_leaves_no_half_file(self):
        source = self.write("huge.safetensors", b"")
        text = json.dumps({"w": {"dtype": "I8", "shape": [4 << 30], "data_offsets": [0, 4 << 30]}}).encode()
        with open(source, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
        os.truncate(source, 8 + len(text) + (4 << 30))
        before = sorted(os.listdir(self.folder))
        for number in (signal.SIGTERM, signal.SIGHUP):
            berth = subprocess.Popen([BERTH, "convert", source, os.path.join(self.folder, "b.gguf")],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            while berth.poll() is None and not any(name.endswith(".partial") for name in os.listdir(self.folder)):
                pass
            berth.send_signal(number)
            error = berth.communicate(timeout=60)[1]
            self.assertEqual(berth.returncode, 128 + number)
            self.assertIn(b"cancelled", error)
            self.assertEqual(sorted(os.listdir(self.folder)), before)


if __name__ == "__main__":
    BERTH = os.path.abspath(sys.argv.pop(1))
    unittest.main()
