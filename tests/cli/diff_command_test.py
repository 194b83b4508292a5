"""berth diff, from the outside: plans, reports, recordings and snapshots of two commits, and its exit status.

    diff_command_test.py BERTH
"""

import json
import subprocess
import sys
import unittest

import torch_snapshot
from command_case import CommandCase
from torch_snapshot import MIB, Allocator

BERTH = None


class DiffCommand(CommandCase):
    def diff(self, *arguments):
        return subprocess.run([BERTH, "diff", *arguments], capture_output=True, text=True, timeout=120)

    def lifetimes(self, name, size):
        return self.write(name, f"id,lower,upper,size,label\na,0,2,1000,conv\nb,1,3,{size},relu\n")

    def plan(self, name, size):
        problem = self.lifetimes(name + ".csv", size)
        ran = subprocess.run([BERTH, "plan", problem, "--json", self.path(name)], capture_output=True, text=True, timeout=120)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return self.path(name)

    def test_compares_plans(self):
        small, large = self.plan("small", 500), self.plan("large", 520)
        same = self.diff(small, small)
        self.assertEqual((same.returncode, same.stderr), (0, ""))
        grown = self.diff(small, large)
        self.assertEqual((grown.returncode, grown.stderr), (1, ""))
        self.assertIn("+20", grown.stdout)
        self.assertEqual(self.diff(large, small).returncode, 0, "less is no growth")

    def test_allows_what_the_tolerance_allows_and_no_byte_more(self):
        small, large = self.plan("small", 500), self.plan("large", 530)  # 1,500 and 1,530: 2 % or 30 bytes
        for tolerance, code in (("2%", 0), ("1.99%", 1), ("30", 0), ("29", 1), ("1KiB", 0), ("0", 1)):
            self.assertEqual(self.diff(small, large, "--tolerance", tolerance).returncode, code, tolerance)

    def test_names_the_places_that_grew_in_lifetimes(self):
        ran = self.diff(self.lifetimes("a.csv", 500), self.lifetimes("b.csv", 700), "--json", "-")
        self.assertEqual(ran.returncode, 1)
        result = json.loads(ran.stdout)
        self.assertTrue(result["grew"])
        self.assertEqual(result["places"], [{"place": "relu", "before": 500, "after": 700}])
        self.assertEqual(result["figures"][0], {"name": "peak of the requests", "before": 1500, "after": 1700,
                                                "decides": True, "grew": True})

    def test_compares_snapshots_of_pytorch_by_requests_and_by_what_is_held(self):
        paths = []
        for name, size in (("a.pickle", 12), ("b.pickle", 13)):
            allocator = Allocator()
            allocator.frames = [{"filename": "/home/me/train.py", "line": 9, "name": "step"}]
            allocator.malloc(size * MIB)
            torch_snapshot.write(self.path(name), allocator.snapshot())
            paths.append(self.path(name))
        result = json.loads(self.diff(*paths, "--json", "-").stdout)
        figures = {each["name"]: (each["before"], each["after"]) for each in result["figures"]}
        self.assertEqual(figures["peak of the requests"], (12 * MIB, 13 * MIB))
        self.assertEqual(figures["held at the highest, as recorded"], (12 * MIB, 14 * MIB))
        self.assertEqual(result["places"][0]["place"], "/home/me/train.py:9 step")

    def test_compares_one_device_of_snapshots_with_several(self):
        paths = []
        for name, sizes in (("a.pickle", (50, 20)), ("b.pickle", (50, 70))):
            both = {"segments": [], "device_traces": []}
            for device, size in enumerate(sizes):
                allocator = Allocator(device=device)
                allocator.malloc(size * MIB)
                both["segments"] += allocator.snapshot()["segments"]
                both["device_traces"].append(allocator.events)
            torch_snapshot.write(self.path(name), both)
            paths.append(self.path(name))
        self.assertEqual(self.diff(*paths).returncode, 0, "device 0, as before, although device 1 has more now")
        self.assertEqual(self.diff(*paths, "--device", "1").returncode, 1)
        self.refuses("2 devices", *paths, "--device", "2")

    def report(self, name, plan, peak, process):
        return self.write(name, {"title": "x", "plan_bytes": plan, "live_peak_bytes": peak, "lower_bound_bytes": peak,
                                 "stock": {"held_bytes": 10 * process},
                                 "berth": {"held_bytes": plan, "process_peak_bytes": process},
                                 "models": [{"name": "encoder", "plan_bytes": plan}]})

    def test_compares_run_reports_by_their_plans_and_not_by_resident_memory(self):
        before = self.report("a.json", 1000, 900, 5000)
        self.assertEqual(self.diff(before, self.report("b.json", 1000, 900, 9000)).returncode, 0)
        grown = self.diff(before, self.report("c.json", 1001, 900, 5000))
        self.assertEqual(grown.returncode, 1)
        self.assertIn("plan of encoder", grown.stdout)

    def test_compares_explanations(self):
        for name, size in (("a", 500), ("b", 600)):
            subprocess.run([BERTH, "explain", self.lifetimes(name + ".csv", size), "--json", self.path(name)],
                           check=True, capture_output=True, timeout=120)
        self.assertEqual(self.diff(self.path("a"), self.path("a")).returncode, 0)
        self.assertEqual(self.diff(self.path("a"), self.path("b")).returncode, 1)

    def refuses(self, text, *arguments):
        ran = self.diff(*arguments)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertIn(text, ran.stderr)

    def test_refuses_what_it_cannot_compare(self):
        plan, table = self.plan("plan", 500), self.lifetimes("t.csv", 500)
        self.refuses("two of one kind", plan, table)
        self.refuses("cannot be read", plan, self.path("absent"))
        self.refuses("not a plan", plan, self.write("other.json", {"a": 1}))
        self.refuses("begins like JSON", plan, self.write("broken.json", "{"))
        good = self.report("good.json", 1000, 900, 5000)
        for wrong in (-1, 1.5, 1e300, 2**64, "1000", [], {}):
            self.refuses("not a number of bytes", good, self.report("wrong.json", wrong, 900, 5000))
            self.refuses("not a number of bytes", self.report("wrong.json", 1000, wrong, 5000), good)
        self.refuses("only " + good + " has the figure \"plan\"", good, self.report("null.json", None, 900, 5000))
        for tolerance in ("2 %", "-1%", "%", "many", "nan%", ""):
            self.refuses("--tolerance", plan, plan, "--tolerance", tolerance)


if __name__ == "__main__":
    BERTH = sys.argv.pop(1)
    unittest.main()
