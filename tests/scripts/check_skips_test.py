"""scripts/check_skips finds what was skipped without being listed, in the log of every kind of test.

    check_skips_test.py CHECK_SKIPS
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = None
ALLOWED = "# a comment\nSuite.Known*  a reason\ntest_known.py  a reason\n"


class CheckSkips(unittest.TestCase):
    def check(self, log, allowed=ALLOWED):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("scripts", "tests"):
                os.mkdir(os.path.join(folder, name))
            script = shutil.copy(SCRIPT, os.path.join(folder, "scripts"))
            for name, text in (("tests/allowed_skips.txt", allowed), ("log", log)):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
            ran = subprocess.run([sys.executable, script, os.path.join(folder, "log")], capture_output=True, text=True)
        return ran.returncode, ran.stdout + ran.stderr

    def test_is_silent_where_nothing_or_only_listed_tests_were_skipped(self):
        self.assertEqual(self.check("[       OK ] Suite.Test (1 ms)\n[  PASSED  ] 1 test.\n"), (0, ""))
        self.assertEqual(self.check("[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] Suite.KnownOne\n"), (0, ""))

    def test_names_what_is_not_listed(self):
        for line in ("[  SKIPPED ] Suite.Lost", "  3/12 Test  #3: Suite.Lost ........***Skipped   0.01 sec",
                     "[  SKIPPED ] All/Suite.Lost/CUDA"):
            code, text = self.check(f"before\n{line}\nafter\n")
            self.assertEqual(code, 1, line)
            self.assertIn("Suite.Lost", text)
        code, text = self.check("SKIPPED [1] ../../python/tests/test_lost.py:9: could not import 'torch'\n"
                                "SKIPPED [1] ../../python/tests/test_known.py:9: could not import 'torch'\n")
        self.assertEqual((code, text.count("\n")), (1, 1))
        self.assertIn("test_lost.py", text)

    def test_wants_a_reason(self):
        code, text = self.check("", "Suite.Lost\n")
        self.assertEqual(code, 1)
        self.assertIn("has no reason", text)


if __name__ == "__main__":
    SCRIPT = sys.argv.pop(1)
    unittest.main()
