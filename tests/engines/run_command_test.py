"""`berth run` as a person sees it: in a pipe, in a pseudo-terminal, and when something is wrong.

Usage: run_command_test.py BERTH MODEL. Exits with 77 (skipped) where ONNX Runtime is not installed.
"""

import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import unittest

BERTH, MODEL = sys.argv[1:3]


def run(*arguments, env=None, cwd=None):
    return subprocess.run([BERTH, "run", *arguments], capture_output=True, text=True, cwd=cwd, timeout=240,
                          env={**os.environ, **(env or {})})


def run_in_terminal(*arguments):
    """Runs with a pseudo-terminal as standard output and error; gives the exit code and what was shown."""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(BERTH, [BERTH, "run", *arguments])
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    assert data[:6] == b"\x93NUMPY"
    length = struct.unpack("<H", data[8:10])[0]
    return eval(data[10:10 + length]), data[10 + length:]  # the header is a Python literal


def write_npy(path, descr, shape, data):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


class RunCommand(unittest.TestCase):
    def test_prints_an_aligned_table_without_control_characters_into_a_pipe(self):
        result = run(MODEL, "--runs", "3", "--dim", "rows=64")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        self.assertIsNone(re.search(r"[\x00-\x09\x0b-\x1f\x7f]", result.stdout))
        self.assertIn("3 runs, outputs identical", result.stdout)
        lines = result.stdout.splitlines()
        header = next(line for line in lines if "live peak" in line)
        for name in ("ONNX Runtime", "with Berth"):
            row = next(line for line in lines if line.startswith(name))
            for column in ("held", "in use", "live peak", "latency"):
                at = header.index(column)
                self.assertNotEqual(row[at], " ", (column, row))
                self.assertEqual(row[at - 1], " ", (column, row))
        self.assertIn("x less", result.stdout)
        self.assertIn("lower bound", result.stdout)
        self.assertIn("process peak over weights", result.stdout)

    def test_shows_progress_on_a_terminal_and_clears_it(self):
        code, shown = run_in_terminal(MODEL, "--runs", "3")
        self.assertEqual(code, 0, shown)
        self.assertIn("running", shown)
        self.assertIn("\r\x1b[K", shown)
        self.assertIn("\x1b[32m", shown, "the bar is coloured")
        after_progress = shown[shown.rindex("\r\x1b[K"):]
        self.assertIn("with Berth", after_progress, "nothing of the progress line is left in the report")

    def test_draws_bars_of_plain_characters_in_the_c_locale(self):
        result = run(MODEL, "--runs", "1", env={"LC_ALL": "C"})
        self.assertTrue(result.stdout.isascii())
        self.assertIn("####", result.stdout)

    def test_gives_the_same_figures_as_json(self):
        for threads in ("1", "2"):
            result = run(MODEL, "--runs", "4", "--threads", threads, "--dim", "rows=128", "--json", "-")
            report = json.loads(result.stdout)
            self.assertTrue(report["identical"])
            self.assertEqual(report["berth"]["held_bytes"], report["plan_bytes"])
            self.assertEqual(report["plan_bytes"], report["live_peak_bytes"])
            self.assertTrue(report["optimal"])
            self.assertEqual(report["deviated_requests"], 0)
            self.assertGreater(report["stock"]["held_bytes"], report["berth"]["held_bytes"])
            self.assertGreater(report["stock"]["process_peak_bytes"], 1 << 20)
            self.assertEqual(report["models"][0]["inputs"], "x 128x64")

    def test_saves_plans_and_records_nothing_at_the_second_start(self):
        with tempfile.TemporaryDirectory() as cache:
            first = json.loads(run(MODEL, "--runs", "1", "--plan-cache", cache, "--json", "-").stdout)
            second = json.loads(run(MODEL, "--runs", "1", "--plan-cache", cache, "--json", "-").stdout)
            self.assertTrue(first["planned_now"])
            self.assertFalse(second["planned_now"])
            self.assertTrue(second["identical"])
            self.assertEqual(first["plan_bytes"], second["plan_bytes"])
            other_shape = json.loads(
                run(MODEL, "--runs", "1", "--plan-cache", cache, "--dim", "rows=7", "--json", "-").stdout)
            self.assertTrue(other_shape["planned_now"])
            plans = [name for name in os.listdir(cache) if name.endswith(".berth-plans")]
            with open(os.path.join(cache, plans[0]), "r+b") as file:
                file.seek(100)
                file.write(b"\xff\xff\xff\xff")
            repaired = json.loads(run(MODEL, "--runs", "1", "--plan-cache", cache, "--json", "-").stdout)
            self.assertTrue(repaired["planned_now"], "a damaged plan is recorded anew")
            self.assertTrue(repaired["identical"])

    def test_takes_inputs_and_writes_outputs_as_npy(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.npy")
            write_npy(path, "<f4", (3, 64), struct.pack("<192f", *[i / 200 for i in range(192)]))
            out = os.path.join(folder, "out")
            result = run(MODEL, "--runs", "1", "--input", "x=" + path, "--output", out)
            self.assertEqual(result.returncode, 0, result.stderr)
            header, data = read_npy(os.path.join(out, "y.npy"))
            self.assertEqual(header["shape"], (3, 64))
            self.assertEqual(header["descr"], "<f4")
            self.assertEqual(len(data), 3 * 64 * 4)
            self.assertTrue(any(data))
            self.assertTrue(os.path.exists(os.path.join(out, "d.npy")))

    def test_runs_several_models_from_one_arena_as_large_as_the_larger(self):
        report = json.loads(run(MODEL, MODEL, "--runs", "1", "--dim", "rows=100", "--json", "-").stdout)
        self.assertTrue(report["identical"])
        self.assertEqual(len(report["models"]), 2)
        self.assertEqual(report["berth"]["held_bytes"], max(model["plan_bytes"] for model in report["models"]))

    def test_writes_the_memory_map(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run(MODEL, "--runs", "1", "--html", "map.html", cwd=folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(os.path.join(folder, "map.html")) as file:
                page = file.read()
            self.assertIn("With Berth", page)
            self.assertIn("ONNX Runtime", page)
            self.assertIn("map.html", result.stdout)

    def test_copies_the_weights_when_told_to(self):
        report = json.loads(run(MODEL, "--runs", "1", "--weights", "copy", "--json", "-").stdout)
        self.assertEqual(report["weights"], "copied")
        self.assertTrue(report["identical"])

    def test_serves_a_mix_of_shapes_from_several_threads(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run(MODEL, "--runs", "4", "--shapes", "16,40,7x64", "--concurrency", "3", "--html", "map.html",
                         "--json", "report.json", cwd=folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("3 shapes, 3 at a time", result.stdout)
            self.assertIn("12 runs, outputs identical", result.stdout)
            with open(os.path.join(folder, "report.json")) as file:
                report = json.load(file)
            self.assertTrue(report["identical"])
            self.assertEqual([shape["inputs"] for shape in report["shapes"]], ["x 16x64", "x 40x64", "x 7x64"])
            for shape in report["shapes"]:
                self.assertGreater(shape["requests"], 0)
                self.assertGreaterEqual(shape["plan_bytes"], shape["lower_bound_bytes"])
                self.assertGreater(shape["plan_bytes"], 0)
            # Each shape runs twice before it is timed, and is recorded at most once.
            self.assertLessEqual(report["recorded_runs"], 3)
            self.assertGreater(report["planned_requests"], report["requests"] / 2)
            self.assertGreater(report["stock"]["process_peak_bytes"], 1 << 20)
            with open(os.path.join(folder, "map.html")) as file:
                page = file.read()
            for shape in report["shapes"]:
                self.assertIn(shape["inputs"], page)

    def test_serves_one_shape_from_several_threads(self):
        report = json.loads(run(MODEL, "--runs", "5", "--concurrency", "2", "--dim", "rows=30", "--json", "-").stdout)
        self.assertTrue(report["identical"])
        self.assertEqual(report["concurrency"], 2)
        self.assertEqual([shape["inputs"] for shape in report["shapes"]], ["x 30x64"])

    def test_says_what_is_wrong_and_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            bad_npy = os.path.join(folder, "bad.npy")
            with open(bad_npy, "w") as file:
                file.write("not an array")
            wrong_shape = os.path.join(folder, "wrong.npy")
            write_npy(wrong_shape, "<f4", (3, 32), b"\0" * 384)
            wrong_type = os.path.join(folder, "type.npy")
            write_npy(wrong_type, "<i8", (3, 64), b"\0" * 1536)
            not_a_model = os.path.join(folder, "text.onnx")
            with open(not_a_model, "w") as file:
                file.write("hello")
            for arguments, code, words in (
                (["/nonexistent/model.onnx"], 1, "name an .onnx file"),
                ([not_a_model], 1, "ONNX Runtime failed to load the model"),
                ([MODEL, "--dim", "rows"], 2, "NAME=N"),
                ([MODEL, "--dim", "rows=many"], 2, "not a size"),
                ([MODEL, "--input", "x=" + bad_npy], 2, "no .npy file"),
                ([MODEL, "--input", "x=" + wrong_shape], 2, "takes shape"),
                ([MODEL, "--input", "x=" + wrong_type], 2, "takes float32"),
                ([MODEL, "--threads", "0"], 2, "threads"),
                ([MODEL, "--concurrency", "0"], 2, "concurrency"),
                ([MODEL, "--shapes", "16x"], 2, "320x320,640x480"),
                ([MODEL, "--shapes", "0"], 2, "320x320,640x480"),
                ([MODEL, "--shapes", "16,"], 2, "320x320,640x480"),
                ([MODEL, "--shapes", "99999999999999999999"], 2, "320x320,640x480"),
                ([MODEL, "--shapes", "16x32"], 2, "or all 2"),
                ([MODEL, "--shapes", "1x2x3"], 2, "or all 2"),
                ([MODEL, "--shapes", "2147483648"], 2, "larger than the memory"),
                ([MODEL, "--dim", "rows=9223372036854775807"], 2, "larger than the memory"),
                ([MODEL, MODEL, "--shapes", "16"], 2, "one model"),
                ([MODEL, "--shapes", "16", "--plan-cache", folder], 2, "--plan-cache"),
                (["/nonexistent/model.onnx", "--shapes", "16"], 1, "name an .onnx file"),
            ):
                result = run(*arguments)
                self.assertEqual(result.returncode, code, (arguments, result.stderr))
                self.assertIn(words, result.stderr)
                self.assertEqual(result.stdout, "")

    def test_says_how_to_install_the_engine_when_it_is_missing(self):
        result = run(MODEL, env={"BERTH_ONNXRUNTIME": "/nonexistent/libonnxruntime.so"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("pip install onnxruntime", result.stderr)
        with tempfile.TemporaryDirectory() as empty:
            result = run(MODEL, env={"BERTH_ONNXRUNTIME": empty})
            self.assertIn("a folder without libonnxruntime.so", result.stderr)
        with open("/proc/self/maps") as maps:
            libc = next(line.split()[-1] for line in maps if "libc.so" in line or "libc-" in line)
        result = run(MODEL, env={"BERTH_ONNXRUNTIME": libc})
        self.assertIn("is not ONNX Runtime", result.stderr)


if __name__ == "__main__":
    probe = run(MODEL, "--runs", "1")
    if "pip install onnxruntime" in probe.stderr:
        print(probe.stderr)
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
