"""berth explain, from the outside: snapshots of PyTorch, recordings, lifetimes, and refusals.

    explain_command_test.py BERTH

The model must reproduce the segments of the snapshots in snapshots/, which torch recorded, and of those in the folder
BERTH_TORCH_SNAPSHOTS, if that is set (scripts/torch_snapshots/record.py makes some).
"""

import glob
import json
import os
import pickle
import subprocess
import sys
import unittest

import torch_snapshot
from command_case import CommandCase, number
from torch_snapshot import MIB, Allocator

BERTH = None
# roundup_power2_divisions: mostly not set.
DIVISIONS = ({}, {}, {1 << i: 4 for i in range(16)}, {1: 8, 4: 2, 16: 16})


class Refused:
    """Something a snapshot never holds; its class would have to be imported to read it."""


class RecordedHistory:
    """What the events of a snapshot add up to. Nothing is known here about the rules of the allocator."""

    def __init__(self, snapshot):
        self.held = sum(segment["total_size"] for segment in snapshot["segments"])
        self.requests = self.peak = self.peak_held = self.requested_at_peak_held = 0
        live, requested, held = {}, 0, 0
        for event in max(snapshot["device_traces"], key=len):
            action, size = event["action"], event["size"]
            if action == "alloc":
                self.requests += 1
                live[event["addr"]] = size
                requested += size
            elif action == "free_completed":
                requested -= live.pop(event["addr"])
            elif action in ("segment_alloc", "segment_map"):
                held += size
            elif action in ("segment_free", "segment_unmap"):
                held -= size
            if action == "alloc":  # before that, a new segment has no request in it
                self.peak = max(self.peak, requested)
                self.peak_held, self.requested_at_peak_held = max((self.peak_held, self.requested_at_peak_held),
                                                                  (held, requested))
        assert held == self.held


class ExplainCommand(CommandCase):
    def run_explain(self, *arguments):
        return subprocess.run([BERTH, "explain", *arguments], capture_output=True, text=True, timeout=240)

    def explain(self, path, *arguments):
        ran = self.run_explain(path, "--json", "-", *arguments)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        return json.loads(ran.stdout)

    def snapshot(self, allocator, name="snapshot.pickle", protocol=4):
        torch_snapshot.write(self.path(name), allocator.snapshot(), protocol)
        return self.path(name)

    def test_finds_the_peak_and_who_holds_it(self):
        allocator = Allocator()
        allocator.frames = [{"filename": "at/native/empty.cpp", "line": 1, "name": "empty"},
                            {"filename": "/x/torch/nn/linear.py", "line": 3, "name": "forward"},
                            {"filename": "/home/me/model.py", "line": 77, "name": "block"}]
        large = allocator.malloc(30 * MIB)
        allocator.frames = [{"filename": "/home/me/data.py", "line": 5, "name": "load"}]
        small = allocator.malloc(1000)
        allocator.free(large)
        allocator.malloc(2 * MIB)
        allocator.free(small)
        result = self.explain(self.snapshot(allocator))
        self.assertEqual(result["kind"], "PyTorch snapshot")
        self.assertEqual(result["peak_bytes"], 30 * MIB + 1000)
        self.assertEqual(result["holders"][0], {"place": "/home/me/model.py:77 block", "bytes": 30 * MIB, "count": 1})
        self.assertEqual(result["holders"][1], {"place": "/home/me/data.py:5 load", "bytes": 1000, "count": 1})
        self.assertEqual(result["plan_bytes"], 30 * MIB + 1000)
        self.assertEqual(result["recorded"]["peak_held_bytes"], 32 * MIB)
        scenarios = {each["name"]: each for each in result["scenarios"]}
        recorded = scenarios["PyTorch, as recorded"]
        self.assertEqual(recorded["held_bytes"], 32 * MIB)
        self.assertEqual(recorded["rounding_bytes"], 24)
        self.assertEqual(recorded["fragmentation_bytes"], 2 * MIB - 1024)
        self.assertEqual(recorded["caching_bytes"], 0)
        text = self.run_explain(self.path("snapshot.pickle")).stdout
        self.assertIn("30.0 MiB", text)
        self.assertIn("/home/me/model.py:77 block", text)
        self.assertLess(len(text.splitlines()), 30, "one screen")

    def test_tells_caching_from_fragmentation(self):
        allocator = Allocator()
        idle = allocator.malloc(30 * MIB)
        kept, gone = allocator.malloc(4 * MIB), allocator.malloc(6 * MIB)
        allocator.free(idle)
        allocator.free(gone)
        allocator.malloc(40 * MIB)
        scenario = self.explain(self.snapshot(allocator))["scenarios"][0]
        self.assertEqual(scenario["held_bytes"], 90 * MIB)
        self.assertEqual(scenario["caching_bytes"], 30 * MIB)
        self.assertEqual(scenario["fragmentation_bytes"], 16 * MIB)
        self.assertEqual(kept.size, 4 * MIB)

    def test_reproduces_the_segments_of_random_programs(self):
        for seed in range(12):
            for expandable, oldest_first in ((False, False), (False, True), (True, False)):
                with self.subTest(seed=seed, expandable=expandable, oldest_first=oldest_first):
                    allocator = Allocator(expandable=expandable, seed=seed, oldest_first=oldest_first,
                                          max_split=(32 * MIB if seed % 3 == 2 and not expandable
                                                     else torch_snapshot.UNLIMITED),
                                          divisions=DIVISIONS[seed % 4])
                    torch_snapshot.random_program(allocator, seed, 600, streams=1 + seed % 3)
                    result = self.explain(self.snapshot(allocator, protocol=2 + seed % 4))
                    model = result["recorded"]["model"]
                    self.assertTrue(model["exact"], model)
                    self.assertEqual(result["scenarios"][0]["held_bytes"], result["recorded"]["peak_held_bytes"])

    def test_counts_what_was_there_before_the_trace_began(self):
        allocator = Allocator()
        before, freed = allocator.malloc(3 * MIB), allocator.malloc(2 * MIB)
        allocator.events = []
        allocator.malloc(1000)
        allocator.free(freed)
        result = self.explain(self.snapshot(allocator))
        self.assertFalse(result["recorded"]["complete"])
        self.assertNotIn("model", result["recorded"])
        self.assertEqual(result["peak_bytes"], 5 * MIB + 1000)
        self.assertEqual(before.requested, 3 * MIB)

    def test_knows_where_blocks_are_that_do_not_say_so(self):
        allocator = Allocator()
        for size in (1000, 3 * MIB, 700, 5 * MIB):
            allocator.malloc(size)
        snapshot = allocator.snapshot()
        for segment in snapshot["segments"]:
            for block in segment["blocks"]:
                del block["address"]  # as torch 2.1 writes them
        torch_snapshot.write(self.path("old.pickle"), snapshot)
        result = self.explain(self.path("old.pickle"))
        self.assertEqual((result["requests"], result["peak_bytes"]), (4, 8 * MIB + 1700))
        self.assertTrue(result["recorded"]["complete"])

    def test_shows_names_that_are_not_unicode_as_far_as_they_are(self):
        allocator = Allocator()
        allocator.frames = [{"filename": "/home/\udcff/模型.py", "line": 3, "name": "naïve\x1b[31m"}]
        allocator.malloc(1000)
        holders = self.explain(self.snapshot(allocator))["holders"]
        self.assertEqual(holders[0]["place"], "/home/???/模型.py:3 naïve?[31m")

    def test_says_that_there_are_private_pools(self):
        allocator = Allocator()
        allocator.malloc(1000)
        snapshot = allocator.snapshot()
        for pool in ((0, 0), (0, 3)):
            snapshot["segments"][0]["segment_pool_id"] = pool
            torch_snapshot.write(self.path("pool.pickle"), snapshot)
            self.assertEqual(self.explain(self.path("pool.pickle"))["recorded"]["private_pools"], pool != (0, 0))
            self.assertEqual("private pools" in self.run_explain(self.path("pool.pickle")).stdout, pool != (0, 0))

    def test_takes_the_last_value_of_a_key_as_python_does(self):
        allocator = Allocator()
        allocator.malloc(1000)
        content = pickle.dumps(allocator.snapshot())
        # The dict gets its "segments" again, with nothing in it.
        again = content[:-1] + b"\x8c\x08segments]s."
        self.assertEqual(pickle.loads(again)["segments"], [])
        again = content[:-1] + b"\x8c\x0ddevice_traces]s."
        self.assertEqual(pickle.loads(again)["device_traces"], [])
        result = self.explain(self.write("again.pickle", again))
        self.assertEqual((result["requests"], result["recorded"]["complete"]), (1, False))

    def test_takes_the_device_with_the_most_memory_or_the_one_asked_for(self):
        one, two = Allocator(device=0), Allocator(device=1)
        one.malloc(1000)
        two.malloc(50 * MIB)
        both = two.snapshot()
        both["segments"] += one.snapshot()["segments"]
        both["device_traces"] = [one.events, two.events]
        torch_snapshot.write(self.path("two.pickle"), both)
        self.assertEqual(self.explain(self.path("two.pickle"))["peak_bytes"], 50 * MIB)
        self.assertEqual(self.explain(self.path("two.pickle"), "--device", "0")["peak_bytes"], 1000)
        refused = self.run_explain(self.path("two.pickle"), "--device", "2")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("2 devices", refused.stderr)

    def test_shows_that_expandable_segments_waste_less_on_growing_requests(self):
        allocator = Allocator()
        last = None
        for size in range(11, 40, 3):  # each needs a new segment, and the old ones stay
            fresh = allocator.malloc(size * MIB)
            if last is not None:
                allocator.free(last)
            last = fresh
        scenarios = {each["name"]: each["held_bytes"] for each in self.explain(self.snapshot(allocator))["scenarios"]}
        self.assertLess(scenarios["PyTorch, expandable segments"], scenarios["PyTorch"] / 2)
        self.assertLess(scenarios["Berth's growable memory"], scenarios["PyTorch"])

    def test_explains_a_recording(self):
        def record(*parts):
            return b"".join(part if isinstance(part, bytes) else number(part) for part in parts)

        content = b"BRTHTRC1" + record(1, 1, 7, b"weights", 2, 1000, 0, 5 * MIB, 6, 1, 2, 1000, 0, 100, 6, 0, 3, 1000, 0, 1)
        result = self.explain(self.write("run.trace", content))
        self.assertEqual(result["kind"], "Berth recording")
        self.assertEqual(result["peak_bytes"], 5 * MIB + 100)
        self.assertEqual(result["holders"][0]["place"], "weights")
        self.assertEqual(result["holders"][1]["place"], "(no label)")

    def test_explains_lifetimes(self):
        path = self.write("problem.csv", b"id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n")
        result = self.explain(path)
        self.assertEqual(result["kind"], "lifetimes")
        self.assertEqual(result["peak_bytes"], 150)
        self.assertEqual(result["plan_bytes"], 150)
        self.assertEqual(result["peak_at"], "level 1")

    def test_plans_lifetimes_with_all_that_the_table_asks_for(self):
        for rows in ("id,lower,upper,size,alignment\na,0,2,100,64\nb,0,2,100,64\n",
                     "id,lower,upper,size,offset\na,0,2,100,4096\nb,0,2,100,\n",
                     "id,lower,upper,size,gaps\na,0,9,100,3-5\nb,3,6,100,\nc,0,9,50,\n"):
            path = self.write("problem.csv", rows)
            ran = subprocess.run([BERTH, "plan", path, "--json", "-"], capture_output=True, text=True, timeout=120)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            planned, result = json.loads(ran.stdout), self.explain(path)
            self.assertEqual((result["plan_bytes"], result["plan_bound_bytes"]),
                             (planned["size"], planned["lower_bound"]), rows)
            self.assertLessEqual(result["peak_bytes"], result["plan_bytes"])

    def test_draws_the_map(self):
        allocator = Allocator()
        torch_snapshot.random_program(allocator, 3, 100)
        ran = self.run_explain(self.snapshot(allocator), "--html", self.path("map.html"))
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        with open(self.path("map.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("PyTorch", page)
        self.assertIn("train_", page)

    def refuses(self, content, *texts):
        ran = self.run_explain(self.write("bad", content))
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        for text in texts:
            self.assertIn(text, ran.stderr)

    def test_refuses_a_pickle_that_would_run_code(self):
        self.refuses(pickle.dumps({"segments": Refused()}), "refused", "byte")
        self.refuses(pickle.dumps({"segments": print}), "refused")
        self.refuses(pickle.dumps({"segments": {1, 2}}), "refused")
        self.refuses(pickle.dumps({"segments": b"bytes"}), "refused")

    def test_takes_a_list_of_one_kind_of_records_for_no_other(self):
        allocator = Allocator()
        allocator.malloc(5000)
        frame = {"filename": "train.py", "line": 3, "name": "step"}
        event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "frames": []}
        for other in ([frame], [event], [frame, event]):
            snapshot = allocator.snapshot()
            snapshot["segments"][0]["blocks"] = other
            torch_snapshot.write(self.path("mixed.pickle"), snapshot)
            self.assertEqual(self.explain(self.path("mixed.pickle"))["requests"], 1)

    def test_refuses_other_pickles_and_broken_ones(self):
        self.refuses(pickle.dumps([1, 2]), "not a dict")
        self.refuses(pickle.dumps({"weights": []}), "no \"segments\"")
        for segments in (5, None, {}, [1], [[]], [{"address": 1}], [{"total_size": 1}]):
            self.refuses(pickle.dumps({"segments": segments}), "segments")
        frame = {"filename": "train.py", "line": 3, "name": "step"}
        for traces in (5, {}, [5], [{}], [[5]], [[frame]], [[{"action": "alloc"}]], [[{"size": 5}]]):
            self.refuses(pickle.dumps({"segments": [], "device_traces": traces}), "device_traces")
        event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "frames": []}
        for traces in ([[event, event]], [[event], [event]]):
            self.refuses(pickle.dumps({"segments": [], "device_traces": traces}), "two places")
        for wrong in ({}, {"addr": None}, {"addr": "0x1000"}):
            for action in ("alloc", "free_completed"):
                event = {"action": action, "size": 512, "stream": 0, "time_us": 1, "frames": [], **wrong}
                self.refuses(pickle.dumps({"segments": [], "device_traces": [[event]]}), "no address")
        nested = []
        nested.append(nested)
        self.refuses(pickle.dumps({"segments": nested}), "segments")
        whole = pickle.dumps(Allocator().snapshot())
        self.refuses(whole[:-1], "cut off")
        self.refuses(b"\x80\x04\x8c\xff", "cut off")
        self.refuses(b"\x80\x04h\x05.", "never remembered")
        self.refuses(b"\x80\x04K\x01a.", "not a list")
        self.refuses(b"\x80\x09N.", "protocol 9")
        self.refuses(b"", "")
        self.refuses(b"no such,format\n", "snapshot of PyTorch")

    def test_refuses_sizes_that_no_memory_has(self):
        allocator = Allocator()
        allocator.malloc(1000)
        for wrong in (-5, 2**62, float("nan"), "many", None):
            snapshot = allocator.snapshot()
            snapshot["segments"][0]["total_size"] = wrong
            self.refuses(pickle.dumps(snapshot), "not a number of bytes")
            snapshot = allocator.snapshot()
            snapshot["device_traces"][0][0]["size"] = wrong
            self.refuses(pickle.dumps(snapshot), "not a number of bytes")
            snapshot = allocator.snapshot()
            snapshot["segments"][0]["blocks"][0]["requested_size"] = wrong
            self.refuses(pickle.dumps(snapshot), "not a number of bytes")

    def test_refuses_a_file_that_is_not_there(self):
        ran = self.run_explain(self.path("absent"))
        self.assertEqual(ran.returncode, 2)
        self.assertIn("cannot be read", ran.stderr)

    def reproduces_what_torch_recorded(self, folder):
        files = sorted(glob.glob(os.path.join(folder, "*.pickle")))
        self.assertTrue(files, "the folder has no snapshots")
        for path in files:
            with self.subTest(path):
                self.same_as_recorded(path)

    def same_as_recorded(self, path):
        with open(path, "rb") as file:
            recorded = RecordedHistory(pickle.load(file))
        result = self.explain(path, "--top", "1000")
        self.assertTrue(result["recorded"]["complete"])
        self.assertTrue(result["recorded"]["model"]["exact"], result["recorded"])
        self.assertEqual(result["recorded"]["model"]["recorded_bytes"], recorded.held)
        self.assertEqual(result["recorded"]["peak_held_bytes"], recorded.peak_held)
        self.assertEqual((result["requests"], result["peak_bytes"]), (recorded.requests, recorded.peak))
        self.assertEqual(sum(holder["bytes"] for holder in result["holders"]), recorded.peak)
        scenario = result["scenarios"][0]
        self.assertEqual(scenario["held_bytes"], recorded.peak_held)
        self.assertEqual(scenario["requested_bytes"], recorded.requested_at_peak_held)
        self.assertEqual(sum(scenario[key] for key in scenario if key.endswith("_bytes")) - scenario["held_bytes"],
                         recorded.peak_held)

    def test_reproduces_kept_snapshots_that_torch_recorded(self):
        self.reproduces_what_torch_recorded(os.path.join(os.path.dirname(os.path.abspath(__file__)), "snapshots"))

    def test_reproduces_further_snapshots_that_torch_recorded(self):
        folder = os.environ.get("BERTH_TORCH_SNAPSHOTS")
        if not folder:
            self.skipTest("BERTH_TORCH_SNAPSHOTS names no folder of recorded snapshots")
        self.reproduces_what_torch_recorded(folder)

    def test_other_settings_hold_what_a_program_with_them_holds(self):
        for seed in range(20):
            with self.subTest(seed=seed):
                # As in torch 2.15, the older of two segments has the lower address here.
                programs = {}
                for expandable in (False, True):
                    programs[expandable] = Allocator(expandable=expandable, addresses="ascending")
                    torch_snapshot.random_program(programs[expandable], seed, 400, empty_cache=False,
                                                  streams=1 + seed % 3)
                for expandable, other in ((False, True), (True, False)):
                    result = self.explain(self.snapshot(programs[expandable]))
                    held = {each["name"]: each["held_bytes"] for each in result["scenarios"]}
                    name = "PyTorch, expandable segments" if other else "PyTorch"
                    self.assertEqual(held[name], RecordedHistory(programs[other].snapshot()).peak_held)

    def test_says_that_a_snapshot_has_no_settings_and_no_times(self):
        allocator = Allocator()
        allocator.malloc(1000)
        allocator.malloc(2 * MIB)
        snapshot = allocator.snapshot()
        del snapshot["allocator_settings"]
        for event in snapshot["device_traces"][0]:
            del event["time_us"]  # as torch 2.1 writes it
        torch_snapshot.write(self.path("old.pickle"), snapshot)
        result = self.explain(self.path("old.pickle"))
        self.assertEqual((result["recorded"]["settings"], result["peak_at"]), (False, "event 1"))
        self.assertIn("does not say how the allocator was set up", self.run_explain(self.path("old.pickle")).stdout)
        self.assertTrue(self.explain(self.snapshot(allocator))["recorded"]["settings"])

    def test_losses_are_those_of_the_fullest_moment(self):
        allocator = Allocator()
        for size in (1000, 12 * MIB, 500):
            allocator.malloc(size)
        for scenario in self.explain(self.snapshot(allocator))["scenarios"]:
            self.assertEqual(scenario["requested_bytes"], 12 * MIB + 1500, scenario)


if __name__ == "__main__":
    BERTH = sys.argv.pop(1)
    unittest.main()
