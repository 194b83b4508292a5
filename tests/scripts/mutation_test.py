"""scripts/mutate on a small source: which changes it finds, and that each does what it says and the others nothing."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True
from mutation import sites  # noqa: E402
from mutation.source import Source  # noqa: E402

TEXT = r'''
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
// a < b in a comment, and "a < b" in a text
constexpr int kLimit = 3 < 4 ? 1 : 0;
constexpr bool below(int a, int b) { return a < b; }
static_assert(below(1, 2) && kLimit == 1);
struct Log {
  std::vector<int> values{1, 2};
  explicit Log(int first) : values{first} { put(first + 1); }
  void put(int value) { values.push_back(value); }
  bool has(int a, int b) const {
    return values.size() > 1 && values[0] == a
        && values[1] == b;
  }
};
int main(int, char** arguments) {
  const int given = std::atoi(arguments[1]);
  if (given < 0) return 2;
  if constexpr (kLimit == 1) std::puts("constant");
  Log log(given);
  std::printf("%d", given <= 3);
  std::printf("%d", log.has(5, 6));
  for (int i = 0; i < 2; ++i) std::printf("%d", i);
  std::puts(R"(
a < b)");
}
'''


class Mutation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.source = Source("small.cpp", TEXT)
        cls.mutants = sites.find(cls.source)
        for number, mutant in enumerate(cls.mutants, 1):
            mutant.number = number
        cls.folder = tempfile.TemporaryDirectory()
        cls.text = sites.rewrite(cls.source, cls.mutants, set())
        path = pathlib.Path(cls.folder.name)
        (path / "small.cpp").write_text(cls.text)
        subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-w", "-include", ROOT / "scripts/mutation/mutation.h", "small.cpp",
                        "-o", "small"], cwd=path, check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_with(self, number, given):
        run = subprocess.run([pathlib.Path(self.folder.name) / "small", str(given)], capture_output=True, text=True,
                             env={**os.environ, "BERTH_MUTANT": str(number)})
        return run.returncode, run.stdout.replace("constant\n", "").split("\n")[0]

    def mutant(self, change):
        found = [m for m in self.mutants if m.change == change]
        self.assertEqual(len(found), 1, [m.change for m in self.mutants])
        return found[0]

    def test_leaves_constants_texts_and_comments_alone(self):
        lines = {m.line for m in self.mutants}
        self.assertFalse(lines & {6, 7, 8, 9})
        self.assertNotIn("kLimit", " ".join(m.before for m in self.mutants))
        self.assertNotIn("a < b", " ".join(m.before for m in self.mutants if m.operator != sites.CALL))

    def test_keeps_every_line_where_it_was(self):
        self.assertEqual(self.text.count("\n"), TEXT.count("\n"))

    def test_changes_nothing_while_none_is_on(self):
        self.assertEqual(self.run_with(0, 5), (0, "0101"))
        self.assertEqual(self.run_with(0, 3), (0, "1001"))
        self.assertEqual(self.run_with(0, -1), (2, ""))

    def test_each_operator_does_what_it_says(self):
        for change, given, expected in [
            ("given <= 3 -> given < 3", 3, (0, "0001")),
            ("if (given < 0) return 2; -> (nothing)", -1, (0, "1001")),
            ("values[1] == b -> values[1] != b", 5, (0, "0001")),
            ("put(first + 1); -> (nothing)", 5, (0, "0001")),
            ('std::printf("%d", given <= 3); -> (nothing)', 5, (0, "101")),
            ("values.size() > 1 && values[0] == a && values[1] == b -> values.size() > 1 && values[0] == a || values[1] == b",
             3, (0, "1001")),
            ("values.size() > 1 && values[0] == a -> values.size() > 1 || values[0] == a", 6, (0, "0001")),
        ]:
            with self.subTest(change):
                self.assertEqual(self.run_with(self.mutant(change).number, given), expected)

    def test_a_loop_starts_one_later(self):
        loop = [m for m in self.mutants if m.operator == sites.OFF_BY_ONE and "for" in m.before]
        self.assertEqual([self.run_with(m.number, 5) for m in loop], [(0, "011")])

    def test_leaves_out_what_is_refused(self):
        text = sites.rewrite(self.source, self.mutants, {m.number for m in self.mutants})
        self.assertEqual(text, self.source.text)


if __name__ == "__main__":
    unittest.main()
