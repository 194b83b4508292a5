"""The plan cache and the temporary files of `berth run`: planted links, damage, several starts at once, signals.

Usage: plan_cache_test.py BERTH MODEL. Exits with 77 (skipped) where ONNX Runtime is not installed.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BERTH, MODEL = sys.argv[1:3]
SEED = int(os.environ.get("BERTH_TEST_SEED") or random.SystemRandom().randrange(1 << 32))


class PlanCache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = os.path.join(folder.name, "cache")
        self.temporary = os.path.join(folder.name, "tmp")
        self.elsewhere = os.path.join(folder.name, "elsewhere")
        for name in (self.cache, self.temporary, self.elsewhere):
            os.mkdir(name)
        self.chance = random.Random(SEED)

    def start(self, *arguments, model=MODEL, runs="1"):
        return subprocess.Popen([BERTH, "run", model, "--runs", runs, "--plan-cache", self.cache, "--json", "-", *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                env={**os.environ, "TMPDIR": self.temporary})

    def finish(self, berth):
        out, error = berth.communicate(timeout=240)
        self.assertEqual((berth.returncode, error), (0, b""))
        report = json.loads(out)
        self.assertTrue(report["identical"])
        self.assertEqual(report["weights"], "mapped", report.get("weights_note"))
        return report

    def run_model(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def file(self, ending):
        found = [name for name in os.listdir(self.cache) if name.endswith(ending)]
        self.assertEqual(len(found), 1, os.listdir(self.cache))
        return os.path.join(self.cache, found[0])

    def folders(self):
        """What `berth run` has in the folder for temporary files; the engine leaves files of its own there."""
        return [name for name in os.listdir(self.temporary) if name.startswith("berth")]

    def nothing_is_left(self):
        self.assertEqual(self.folders(), [])
        self.assertEqual(sorted(os.path.splitext(name)[1] for name in os.listdir(self.cache)),
                         [".berth-order", ".berth-plans", ".ort"])

    def test_follows_no_link_that_somebody_planted(self):
        self.run_model()
        names = os.listdir(self.cache)
        victim = os.path.join(self.elsewhere, "victim")
        with open(victim, "w") as file:
            file.write("precious")
        for name in names:
            os.unlink(os.path.join(self.cache, name))
            for planted in (name, name + ".partial"):
                os.symlink(victim, os.path.join(self.cache, planted))
        self.assertTrue(self.run_model()["planned_now"])
        with open(victim) as file:
            self.assertEqual(file.read(), "precious")
        self.assertFalse(self.run_model()["planned_now"])

    def test_several_starts_at_once_share_it(self):
        for report in [self.finish(berth) for berth in [self.start() for _ in range(4)]]:
            self.assertEqual(report["berth"]["held_bytes"], report["plan_bytes"])
        self.nothing_is_left()
        self.assertFalse(self.run_model()["planned_now"])

    def test_finds_every_damage_of_a_model_and_makes_it_anew(self):
        self.run_model()
        path = self.file(".ort")
        with open(path, "rb") as file:
            whole = file.read()
        flipped = []
        for _ in range(3):
            at = self.chance.randrange(len(whole))
            flipped.append(whole[:at] + bytes([whole[at] ^ (1 << self.chance.randrange(8))]) + whole[at + 1:])
        # The highest bits of two words cancel out in a weak checksum.
        twice = bytearray(whole)
        for at in (len(whole) // 2 | 7, (len(whole) // 2 | 7) + 32):
            twice[at] ^= 0x80
        at = next(i for i in range(512, len(whole), 512) if any(whole[i:i + 512]))
        zeros = whole[:at] + bytes(512) + whole[at + 512:]
        for damaged in (*flipped, bytes(twice), zeros, whole[:-1], whole[:len(whole) // 2], b"", whole + b"\0"):
            with open(path, "wb") as file:
                file.write(damaged)
            self.run_model()
            with open(path, "rb") as file:
                self.assertNotEqual(file.read(), damaged, f"seed {SEED}")
        os.unlink(path)
        os.mkfifo(path)
        self.run_model()
        self.assertTrue(os.path.isfile(path))
        self.nothing_is_left()

    def test_replaces_a_sound_model_that_gives_other_bits(self):
        # The model with one weight changed, and its mappable form under the name of the true one.
        other = os.path.join(self.elsewhere, os.path.basename(MODEL))
        with open(MODEL, "rb") as file:
            content = bytearray(file.read())
        content[len(content) // 2] ^= 0x10
        with open(other, "wb") as file:
            file.write(content)
        self.run_model(model=other)
        impostor = self.file(".ort")
        self.run_model()
        true = next(os.path.join(self.cache, name) for name in os.listdir(self.cache)
                    if name.endswith(".ort") and os.path.join(self.cache, name) != impostor)
        self.run_model()
        shutil.copyfile(impostor, true)
        self.run_model()
        self.assertFalse(self.run_model()["planned_now"])

    def test_a_signal_ends_it_and_leaves_nothing(self):
        for number, to_all in ((signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)):
            berth = self.start(runs="1000000")
            while berth.poll() is None and not self.folders():
                time.sleep(0.001)
            time.sleep(self.chance.random())
            (os.killpg if to_all else os.kill)(berth.pid, number)
            out, error = berth.communicate(timeout=60)
            self.assertEqual((berth.returncode, out), (128 + number, b""), (error, f"seed {SEED}"))
            self.assertIn(b"interrupted", error)
            self.assertEqual(self.folders(), [])
            self.assertEqual([name for name in os.listdir(self.cache) if name.startswith(".")], [])
            with self.assertRaises(ProcessLookupError):  # and no worker
                os.killpg(berth.pid, 0)

    def test_a_kill_at_any_point_leaves_a_usable_cache(self):
        for _ in range(12):
            berth = self.start()
            try:
                berth.wait(timeout=self.chance.random() * 1.5)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(berth.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            berth.communicate()
            if self.chance.random() < 0.3:
                for name in os.listdir(self.cache):  # what a crash of the machine leaves of files that were not flushed
                    if os.path.isfile(os.path.join(self.cache, name)) and self.chance.random() < 0.5:
                        os.truncate(os.path.join(self.cache, name), 0)
        self.run_model()
        self.assertFalse(self.run_model()["planned_now"], f"seed {SEED}")
        os.unlink(self.file(".ort"))
        self.run_model()  # writes, and so removes what the killed ones left
        self.nothing_is_left()

    def test_takes_a_model_whose_path_is_not_text(self):
        path = os.path.join(os.fsencode(self.elsewhere), b"\xff\x1b[31m.onnx")
        shutil.copyfile(MODEL, path)
        page = path + b".html"
        report = self.run_model("--html", page, model=path)
        self.assertEqual(len(report["models"]), 1)
        with open(page, encoding="utf-8") as file:
            self.assertIn("With Berth", file.read())
        shown = subprocess.run([BERTH, "run", path, "--runs", "1"], capture_output=True, timeout=240)
        self.assertEqual((shown.returncode, shown.stderr), (0, b""))
        self.assertNotIn(b"\x1b", shown.stdout)
        self.assertIn(b"\\xff\\x1b[31m.onnx", shown.stdout)

    def test_refuses_inputs_without_an_end(self):
        pipe = os.path.join(self.elsewhere, "pipe")
        os.mkfifo(pipe)
        for name in (pipe, "/dev/zero"):
            ran = subprocess.run([BERTH, "run", MODEL, "--input", "x=" + name], capture_output=True, timeout=120)
            self.assertIn(ran.returncode, (1, 2))
            self.assertIn(name.encode(), ran.stderr)
            ran = subprocess.run([BERTH, "run", name], capture_output=True, timeout=120)
            self.assertEqual(ran.returncode, 1)
            self.assertIn(name.encode(), ran.stderr)

    def test_says_that_standard_output_is_full(self):
        for options in ([], ["--json", "-"]):
            with open("/dev/full", "wb") as full:
                ran = subprocess.run([BERTH, "run", MODEL, "--runs", "1", *options], stdout=full, stderr=subprocess.PIPE,
                                     timeout=240)
            self.assertEqual(ran.returncode, 1)
            self.assertIn(b"standard output could not be written", ran.stderr)


if __name__ == "__main__":
    probe = subprocess.run([BERTH, "run", MODEL, "--runs", "1"], capture_output=True, text=True, timeout=240)
    if "pip install onnxruntime" in probe.stderr:
        print(probe.stderr)
        sys.exit(77)
    print(f"seed {SEED}; BERTH_TEST_SEED={SEED} repeats it", file=sys.stderr)
    unittest.main(argv=sys.argv[:1], verbosity=2)
