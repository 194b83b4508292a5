"""berth replay, from the outside: a trace as a program records it, policies side by side, and refusals.

    replay_command_test.py BERTH
"""

import os
import subprocess
import sys
import unittest

from command_case import CommandCase, number

BERTH = None


def trace(*records):
    return b"BRTHTRC1" + b"".join(b"".join(number(part) for part in record) for record in records)


def allocation(size):
    return (2, 100, 0, size, 6, 0)


def free(back):
    return (3, 100, 0, back)


class ReplayCommand(CommandCase):
    def replay(self, content, *arguments):
        path = self.write("run.trace", content)
        return subprocess.run([BERTH, "replay", path, *arguments], capture_output=True, text=True, timeout=120)

    def rows(self, output):
        """The table's rows by policy, without its heading."""
        table = output.split("\n\n")[1].splitlines()
        return {line.split()[0]: line for line in table[1:]}

    def test_tells_the_peak_under_each_policy_side_by_side(self):
        # Two blocks at once, then one alone: 3 MiB at the highest.
        content = trace(allocation(1 << 20), allocation(2 << 20), free(2), free(1), allocation(1 << 20), free(1))
        ran = self.replay(content, "--policy", "system", "--policy", "pool", "--policy", "limit=64MiB")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertIn("3 allocations, 6 events", ran.stdout)
        rows = self.rows(ran.stdout)
        self.assertEqual(list(rows), ["system", "pool", "limit=64MiB"])
        for row in rows.values():
            self.assertIn("3.0 MiB", row)
            self.assertTrue(row.endswith(" 0"), row)

    def test_counts_what_a_limit_refuses(self):
        content = trace(allocation(1 << 20), allocation(2 << 20), free(2), free(1))
        ran = self.replay(content, "--policy", "limit=2MiB")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertTrue(self.rows(ran.stdout)["limit=2MiB"].endswith(" 1"), ran.stdout)

    def test_compares_the_system_with_the_pool_when_no_policy_is_named(self):
        ran = self.replay(trace(allocation(4096), free(1)))
        self.assertEqual(list(self.rows(ran.stdout)), ["system", "pool"])

    def test_says_where_a_trace_breaks_off(self):
        ran = self.replay(trace(allocation(4096))[:-2])
        self.assertEqual(ran.returncode, 2)
        self.assertRegex(ran.stderr, r"berth replay: .*\d")
        self.assertEqual(ran.stdout, "")

    def test_refuses_a_file_that_is_no_trace(self):
        ran = self.replay(b"not a trace at all")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("berth replay:", ran.stderr)

    def test_refuses_an_unknown_policy_and_names_the_known_ones(self):
        ran = self.replay(trace(allocation(4096), free(1)), "--policy", "limit=lots")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("system, pool, or limit=SIZE", ran.stderr)

    def test_names_a_file_that_is_not_there(self):
        ran = subprocess.run([BERTH, "replay", os.path.join(self.folder, "none")], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("none", ran.stderr)


if __name__ == "__main__":
    BERTH = os.path.abspath(sys.argv.pop(1))
    unittest.main()
