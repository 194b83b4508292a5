"""Compares the tokens of examples/llama with those of a reference in NumPy, on models with random weights.

    reference_test.py PROGRAM MAKE_MODEL_FOLDER

Draws new models in each run: BERTH_TEST_SEED repeats one. A model in which the reference itself decides a token by less
than rounding can change is drawn again.
"""

import os
import random
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import make_model  # noqa: E402
from reference import Reference  # noqa: E402

SEED = int(os.environ.get("BERTH_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
NEAR = 5e-4  # logits have a standard deviation of about 1
NEW_TOKENS = 24


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, encoding="latin-1", timeout=300)


def tokens_of(model, prompts, *options):
    ran = run(model, "--tokens", NEW_TOKENS, *options, *(" ".join(map(str, prompt)) for prompt in prompts))
    if ran.returncode != 0:
        raise AssertionError(ran.stderr)
    return [[int(word) for word in line.split()] for line in ran.stdout.splitlines()]


class ReferenceTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = os.path.join(self.folder.name, "model.gguf")
        self.addCleanup(self.folder.cleanup)

    def compare(self, **sizes):
        chance = random.Random(f"{SEED} {sorted(sizes.items())}")
        for _ in range(20):
            make_model.make(self.model, seed=chance.randrange(1 << 30), **sizes)
            reference = Reference(self.model)
            start = [chance.randrange(320) for _ in range(40)]
            prompts = [start + [chance.randrange(320) for _ in range(chance.randrange(1, 30))] for _ in range(4)]
            prompts += [[7], start[:17]]
            answers = [reference.greedy(prompt, NEW_TOKENS) for prompt in prompts]
            if min(margin for _, margin in answers) > NEAR:
                break
        else:
            self.fail("every model was undecided")
        expected = [tokens for tokens, _ in answers]
        self.assertEqual(tokens_of(self.model, prompts), expected)
        self.assertEqual(tokens_of(self.model, prompts, "--sequences", 1, "--threads", 1, "--batch", 3), expected)
        # Different prompts have different answers, or nothing would have been compared.
        self.assertGreater(len({tuple(tokens) for tokens in expected}), 2)

    def test_f32(self):
        self.compare(kind="f32")

    def test_f16(self):
        self.compare(kind="f16")

    def test_q8_0(self):
        self.compare(kind="q8_0")

    def test_q4_0(self):
        self.compare(kind="q4_0")

    def test_one_head_of_keys_for_each_head(self):
        self.compare(kind="f32", heads_kv=4, layers=3)

    def test_one_head_of_keys_for_all(self):
        self.compare(kind="q8_0", embedding=256, heads=8, heads_kv=1, layers=1)

    def test_qwen2(self):
        self.compare(kind="f16", architecture="qwen2", tied=True)

    def test_bad_arguments(self):
        make_model.make(self.model)
        for arguments in ([], [self.model], [self.model, "1", "--tokens"], [self.model, "1", "--tokens", "-1"],
                          [self.model, "1", "--what"], [self.model, "a"], [self.model, "320"], [self.model, ""],
                          [self.model, "1", "--threads", "0"], [self.model, "1", "--sequences", "9" * 30],
                          [self.model, "9" * 18], [self.folder.name + "/nowhere", "1"], [__file__, "1"]):
            ran = run(*arguments)
            self.assertEqual(ran.returncode, 2, arguments)
            self.assertTrue(ran.stderr.startswith("example_llama: "), ran.stderr)


if __name__ == "__main__":
    print("seed", SEED, file=sys.stderr)
    unittest.main(argv=sys.argv[:1])
