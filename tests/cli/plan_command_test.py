"""berth plan, from the outside: files in, files out, exit statuses, and what a terminal sees.

    plan_command_test.py BERTH
"""

import csv
import json
import os
import pty
import random
import select
import subprocess
import sys
import tempfile
import unittest

BERTH = None
SMALL = "id,lower,upper,size\na,0,2,4096\nb,1,3,8192\nc,2,4,2048\n"


def guillotine(count, seed, height=1 << 20, width=1 << 12):
    """A full rectangle cut into buffers: they fit into `height` bytes, because they came from there."""
    chance = random.Random(seed)
    pieces = [(0, width, 0, height)]
    while len(pieces) < count:
        at = max(range(len(pieces)), key=lambda i: chance.random() * (pieces[i][1] - pieces[i][0]) * (pieces[i][3] - pieces[i][2]))
        t0, t1, b0, b1 = pieces.pop(at)
        if chance.random() < 0.5 and t1 - t0 > 2:
            cut = chance.randrange(t0 + 1, t1)
            pieces += [(t0, cut, b0, b1), (cut, t1, b0, b1)]
        elif b1 - b0 > 2048:
            cut = chance.randrange(b0 // 1024 + 1, b1 // 1024) * 1024
            pieces += [(t0, t1, b0, cut), (t0, t1, cut, b1)]
        else:
            pieces.append((t0, t1, b0, b1))
    chance.shuffle(pieces)
    rows = [f"{i},{t0},{t1},{b1 - b0}" for i, (t0, t1, b0, b1) in enumerate(pieces)]
    return "id,lower,upper,size\n" + "\n".join(rows) + "\n"


def crowd(count, seed):
    """Random lifetimes, too many of them to be packed to the bound at once."""
    chance = random.Random(seed)
    rows = []
    for i in range(count):
        lower = chance.randrange(count)
        rows.append(f"{i},{lower},{lower + 1 + int(chance.expovariate(1 / 300))},{chance.randrange(1, 1 << 20)}")
    return "id,lower,upper,size\n" + "\n".join(rows) + "\n"


class PlanCommand(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)

    def path(self, name):
        return os.path.join(self._folder.name, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8", newline="") as out:
            out.write(text)
        return self.path(name)

    def plan(self, *arguments, stdin=None, env=None):
        return subprocess.run([BERTH, "plan", *arguments], input=stdin, capture_output=True, text=True,
                              env={**os.environ, **(env or {})}, check=False)

    def check_output(self, path):
        """Reads offsets back and compares every pair. Returns the size."""
        with open(path, encoding="utf-8", newline="") as table:
            rows = [{k: (v if k in ("id", "label") else int(v)) for k, v in row.items()} for row in csv.DictReader(table)]
        for i, a in enumerate(rows):
            for b in rows[:i]:
                apart_in_time = a["upper"] <= b["lower"] or b["upper"] <= a["lower"]
                apart = a["offset"] + a["size"] <= b["offset"] or b["offset"] + b["size"] <= a["offset"]
                self.assertTrue(apart_in_time or apart, (a, b))
        return max(row["offset"] + row["size"] for row in rows)

    def test_writes_the_input_plus_offsets(self):
        done = self.plan(self.write("p.csv", SMALL), "--output", self.path("out.csv"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(self.path("out.csv"), encoding="utf-8") as out:
            lines = out.read().splitlines()
        self.assertEqual(lines[0], "id,lower,upper,size,offset")
        self.assertEqual([line.rsplit(",", 1)[0] for line in lines[1:]], SMALL.splitlines()[1:])
        self.assertEqual(self.check_output(self.path("out.csv")), 12288)
        self.assertIn("12,288 bytes", done.stdout)
        self.assertIn("proven optimal", done.stdout)

    def test_json_says_what_was_found(self):
        done = self.plan(self.write("p.csv", SMALL), "--json", "-")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        plan = json.loads(done.stdout)
        self.assertEqual(plan["size"], 12288)
        self.assertEqual(plan["lower_bound"], 12288)
        self.assertIs(plan["optimal"], True)
        self.assertEqual(plan["count"], 3)
        self.assertGreaterEqual(plan["seconds"], 0)
        self.assertTrue(plan["strategy"])
        self.assertEqual(len(plan["slots"]), 3)

    def test_reads_standard_input_and_writes_standard_output(self):
        done = self.plan("-", "--output", "-", stdin=SMALL)
        self.assertEqual(done.returncode, 0)
        self.assertTrue(done.stdout.startswith("id,lower,upper,size,offset\na,0,2,4096,"))

    def test_exit_0_when_it_fits_the_capacity(self):
        problem = self.write("p.csv", guillotine(60, seed=1))
        done = self.plan(problem, "--capacity", "1MiB", "--output", self.path("out.csv"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.check_output(self.path("out.csv")), 1 << 20)

    def test_exit_3_when_the_limit_is_too_small(self):
        problem = self.write("p.csv", guillotine(300, seed=2))
        done = self.plan(problem, "--capacity", "1048576", "--work-limit", "1", "--json", self.path("p.json"))
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("capacity 1,048,576 bytes", done.stderr)
        with open(self.path("p.json"), encoding="utf-8") as answer:
            self.assertEqual(json.load(answer)["code"], "NotFound")

    def test_exit_4_when_it_is_impossible(self):
        done = self.plan(self.write("p.csv", SMALL), "--capacity", "12287", "--json", "-")
        self.assertEqual(done.returncode, 4)
        self.assertIn("lower bound 12,288 bytes", done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual((answer["code"], answer["lower_bound"], answer["capacity"]), ("Infeasible", 12288, 12287))

    def test_exit_2_names_file_line_and_column(self):
        path = self.write("p.csv", "id,lower,upper,size\na,0,2,4096\nb,1,x,8192\n")
        done = self.plan(path)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr, f"berth plan: {path}:3:5: expected a whole number for upper, found \"x\"\n")

    def test_exit_2_for_every_other_bad_input(self):
        problem = self.write("p.csv", SMALL)
        for arguments, expected in (
                ([self.path("nowhere.csv")], "cannot be opened"),
                ([problem, "--capacity", "many"], "--capacity: expected bytes such as 1048576 or 1MiB, found \"many\""),
                ([problem, "--align", "48"], "--align: expected a power of two, found \"48\""),
                ([problem, "--max-block", "x"], "--max-block: expected bytes"),
                ([problem, "--bank", "sram"], "--bank: expected NAME=BYTES"),
                ([problem, "--output", "/nowhere/out.csv"], "cannot write /nowhere/out.csv"),
                ([problem, "--json", "/nowhere/out.json"], "cannot write /nowhere/out.json"),
                ([problem, "--html", "/nowhere/out.html"], "cannot write /nowhere/out.html"),
                ([problem, "--no-such-option"], "--no-such-option"),
                ([problem, "--time-limit", "-1"], "--time-limit"),
                ([], "problem")):
            with self.subTest(arguments=arguments):
                done = self.plan(*arguments)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertIn(expected, done.stderr)

    def test_align_and_columns_of_the_problem_are_kept(self):
        text = ("id,lower,upper,size,alignment,offset,gaps,label\n"
                "a,0,4,100,,512,,fixed\nb,0,4,100,256,,,\nc,0,4,1,,,1-3,\nd,1,3,1,,,,\n")
        done = self.plan(self.write("p.csv", text), "--align", "64", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        offsets = [slot[1] for slot in json.loads(done.stdout)["slots"]]
        self.assertEqual(offsets[0], 512)
        self.assertEqual(offsets[1] % 256, 0)
        self.assertTrue(all(offset % 64 == 0 for offset in offsets))

    def test_banks_spill(self):
        text = "id,lower,upper,size\n" + "".join(f"{i},0,2,100\n" for i in range(5))
        done = self.plan(self.write("p.csv", text), "--bank", "sram=256", "--bank", "dram=0", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        blocks = {block["bank"]: block["bytes"] for block in json.loads(done.stdout)["blocks"]}
        self.assertEqual(blocks, {0: 200, 1: 300})

    def test_a_work_limit_and_a_seed_give_the_same_plan(self):
        problem = self.write("p.csv", guillotine(120, seed=3))
        slots = [json.loads(self.plan(problem, "--work-limit", "20000", "--seed", "5", "--threads", threads, "--json",
                                      "-").stdout)["slots"] for threads in ("1", "2", "1")]
        self.assertEqual(slots[0], slots[1])
        self.assertEqual(slots[0], slots[2])

    def test_compare_prints_every_strategy_and_none_is_better(self):
        problem = self.write("p.csv", guillotine(40, seed=4))
        done = self.plan(problem, "--compare", "--work-limit", "20000")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("strategy", "size_first_fit", "TFLite", "XLA", "ggml", "berth"):
            self.assertIn(name, done.stdout)
        answer = json.loads(self.plan(problem, "--compare", "--work-limit", "20000", "--json", "-").stdout)
        self.assertGreaterEqual(len(answer["compare"]), 6)
        self.assertGreaterEqual(min(row["size"] for row in answer["compare"]), answer["size"])

    def test_html_is_one_file_that_names_the_buffers(self):
        text = "id,lower,upper,size,label\na,0,2,64,encoder </script> 1\nb,1,3,64,\n"
        done = self.plan(self.write("p.csv", text), "--html", self.path("map.html"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("map.html", done.stdout)
        with open(self.path("map.html"), encoding="utf-8") as page:
            html = page.read()
        self.assertIn("encoder \\u003c/script\\u003e 1", html)
        self.assertIn("p.csv", html)
        self.assertNotIn("http", html.replace("http-equiv", ""))

    def test_a_pipe_sees_no_control_characters(self):
        problem = self.write("p.csv", guillotine(300, seed=2))
        done = self.plan(problem, "--time-limit", "0.5", "--compare", env={"BERTH_PROGRESS": "now", "TERM": "xterm"})
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, "")
        self.assertEqual([c for c in done.stdout if ord(c) < 32 and c != "\n"], [])

    def on_a_terminal(self, *arguments, env=None, interrupt_when=None):
        """Runs with a terminal as standard output and error. Returns the exit status and all it wrote."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([BERTH, "plan", *arguments], stdin=follower, stdout=follower, stderr=follower,
                                   env={**os.environ, "TERM": "xterm", **(env or {})}, start_new_session=True)
        os.close(follower)
        seen = b""
        while True:
            if select.select([leader], [], [], 60)[0] == []:
                process.kill()
                self.fail("no output for a minute")
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                break
            seen += chunk
            if interrupt_when and interrupt_when in seen:
                process.send_signal(2)
                interrupt_when = None
        os.close(leader)
        return process.wait(), seen.decode()

    def test_a_terminal_sees_progress_that_goes_away(self):
        problem = self.write("p.csv", crowd(20000, seed=2))
        code, seen = self.on_a_terminal(problem, "--time-limit", "1", env={"BERTH_PROGRESS": "now"})
        self.assertEqual(code, 0)
        self.assertIn("\rplanning", seen)
        self.assertIn("%", seen)
        last = seen.rindex("\r\x1b[K")
        self.assertGreater(seen.index("buffers"), last)

    def test_a_terminal_sees_no_progress_for_what_is_quick(self):
        code, seen = self.on_a_terminal(self.write("p.csv", SMALL))
        self.assertEqual(code, 0)
        self.assertNotIn("planning", seen)
        self.assertNotIn("\x1b", seen)

    def test_an_interrupt_keeps_the_best_plan(self):
        problem = self.write("p.csv", crowd(20000, seed=2))
        code, seen = self.on_a_terminal(problem, "--time-limit", "600", env={"BERTH_PROGRESS": "now"},
                                        interrupt_when=b"best")
        self.assertEqual(code, 0, seen)
        self.assertIn("lower bound", seen)


if __name__ == "__main__":
    BERTH = os.path.abspath(sys.argv.pop(1))
    unittest.main()
