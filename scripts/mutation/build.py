"""The build that has every mutant: a copy of include/ and src/ with the changes in it, and links to everything else."""
import json
import os
import re
import subprocess

from . import sites
from .source import Source

LINKS = ("CMakeLists.txt", "cmake", "tests", "examples", "cli", "python", "bench", "scripts", "docs", "pyproject.toml", "README.md", "LICENSE")
PROGRAMS = {  # target: where it is
    "berth_tests": "tests/berth_tests",
    "berth_metal_tests": "tests/devices/metal/berth_metal_tests",
    "system_faults_test": "tests/system_faults/system_faults_test",
    "allocations_test": "tests/allocations/allocations_test",
    "berth_ncnn_tests": "tests/engines/ncnn/berth_ncnn_tests",  # where scripts/build_ncnn was run
}
SLACK = 32  # numbers a file may gain before all files are numbered anew
MOST = 1 << 16


class Build:
    """A quick one has only the chosen mutants in it, and the compiler and the options of build/release: what has no mutant
    comes from the compiler's cache. It has neither METAL nor mutants of headers."""

    def __init__(self, root, jobs, progress, quick=False):
        self.root, self.jobs, self.progress, self.quick = root, jobs, progress, quick
        self.folder = root / "build" / ("mutate-quick" if quick else "mutate")
        self.tree = self.folder / "tree"
        self.output = self.tree / "build/release" if quick else self.folder / "out"
        self.state_path = self.folder / "state.json"
        self.chosen = None  # of a quick build
        self.state = json.loads(self.state_path.read_text()) if self.state_path.exists() else {"first": {}, "refused": []}
        self.refused = set(tuple(r) for r in self.state["refused"])
        self.sources, self.mutants = {}, []
        self.ncnn = (root / "build/ncnn/lib/libncnn.a").exists()
        self.programs = {name: self.output / path for name, path in PROGRAMS.items()
                         if ("ncnn" not in name or self.ncnn) and ("metal" not in name or not quick)}

    @staticmethod
    def is_quick(mutant):
        """Whether a quick build can have it: a header has too many users, and METAL needs clang."""
        return not mutant.path.endswith(".h") and "/metal" not in mutant.path

    def choose(self, mutants, keep):
        """Says which mutants a quick build has; with `keep`, beside those of the last one."""
        places = {(m.path, m.line, m.operator, m.change) for m in mutants}
        if keep:
            places |= {tuple(place) for place in self.state.get("chosen", [])}
        self.chosen = {m.number for m in self.mutants if (m.path, m.line, m.operator, m.change) in places}
        self.state["chosen"] = sorted(places)

    def find(self):
        """Reads the sources and numbers their mutants. A file keeps its numbers as long as they fit."""
        self.sources, self.mutants = {}, []
        for folder in ("include", "src"):
            for path in sorted((self.root / folder).rglob("*")):
                name = str(path.relative_to(self.root))
                if path.suffix in (".h", ".cpp") and "/os/macos/" not in name:
                    source = Source(name, path.read_text())
                    self.sources[name] = (source, sites.find(source))
        first = self.state["first"]
        if any(name not in first or len(found) > first[name][1] for name, (_, found) in self.sources.items()):
            first.clear()
            number = 1
            for name, (_, found) in self.sources.items():
                first[name] = (number, len(found) + SLACK)
                number += len(found) + SLACK
            if number >= MOST:
                raise SystemExit(f"mutate: {number} mutants; the table in mutation.h has room for {MOST}")
        for name, (_, found) in self.sources.items():
            for i, mutant in enumerate(found):
                mutant.number = first[name][0] + i
            self.mutants += found

    def write(self):
        for name, (source, found) in self.sources.items():
            refused = {m.number for m in found if self.key(m) in self.refused}
            if self.quick:
                refused |= {m.number for m in found} - self.chosen
            text = sites.rewrite(source, found, refused)
            if self.quick and len(refused) < len(found):
                text = f'#include "{self.tree}/mutation.h"\n#line 1\n' + text
            put(self.tree / name, text)
        # What is gone from the repository goes from the copy.
        for folder in ("include", "src"):
            for path in (self.tree / folder).rglob("*"):
                name = str(path.relative_to(self.tree))
                if path.is_file() and name not in self.sources and not (self.root / name).exists():
                    path.unlink()
        for path in (self.root / "src").rglob("CMakeLists.txt"):
            put(self.tree / path.relative_to(self.root), path.read_text())
        for path in (self.root / "src").rglob("*"):
            if path.is_file() and path.suffix not in (".h", ".cpp") and path.name != "CMakeLists.txt":
                link(self.tree / path.relative_to(self.root), path)
        for name in LINKS:
            link(self.tree / name, self.root / name)
        for name in ("venv", "metal-cpp", "ncnn"):
            if (self.root / "build" / name).exists():
                link(self.tree / "build" / name, self.root / "build" / name)
        put(self.tree / "mutation.h", (self.root / "scripts/mutation/mutation.h").read_text())

    def build(self):
        """Builds the test programs. What the compiler refuses is left out, until it refuses nothing."""
        if not (self.output / "build.ninja").exists():
            self.configure()
        for _ in range(12):
            self.write()
            done, text = self.ninja()
            if done:
                self.save()
                return
            if not self.refuse(text):
                (self.folder / "build.log").write_text(text)
                raise SystemExit(f"mutate: the build fails, and not because of a mutant (full log: {self.folder}/build.log)")
            self.save()
        raise SystemExit("mutate: the compiler refused mutants in every round")

    def configure(self):
        self.write()
        if self.quick:
            return self.configure_quick()
        command = ["cmake", "-S", self.tree, "-B", self.output, "-G", "Ninja", "-DCMAKE_C_COMPILER=clang-16",
                   "-DCMAKE_CXX_COMPILER=clang++-16", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1",
                   f"-DCMAKE_CXX_FLAGS=-w -ferror-limit=0 -include {self.tree}/mutation.h", "-DBERTH_METAL=ON",
                   "-DBERTH_METAL_DOUBLE=ON", "-DBERTH_UNITE=OFF", "-DBERTH_TESTS=ON", "-DBERTH_BENCH=OFF", "-DBERTH_CLI=OFF",
                   "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DBERTH_NCNN={'ON' if self.ncnn else 'OFF'}"]
        self.cmake(command)

    def configure_quick(self):
        link(self.tree / "CMakePresets.json", self.root / "CMakePresets.json")
        launcher = self.folder / "ccache"  # by this name the build knows the cache
        # What has mutants is compiled without warnings, of which there are some, and with little optimisation, for time.
        put(launcher, '#!/bin/sh\nfor source; do :; done\n'
                      'case $(head -n 1 "$source") in *mutation.h*) exec ccache "$@" -w -O1 ;; esac\nexec ccache "$@"\n')
        launcher.chmod(0o755)
        self.cmake(["cmake", "-S", self.tree, "--preset", "release", "-DBERTH_TESTS=ON", "-DBERTH_BENCH=ON",
                    "-DBERTH_WERROR=ON", "-DBERTH_UNITE=OFF", f"-DBERTH_NCNN={'ON' if self.ncnn else 'OFF'}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"])

    @staticmethod
    def cmake(command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"mutate: cmake failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}")

    def ninja(self):
        """Returns whether everything was built, and the compiler's messages."""
        environment = {**os.environ, "CCACHE_BASEDIR": str(self.tree), "CCACHE_NOHASHDIR": "1"}
        # The library alone shows what is refused in sources; only then are the tests compiled.
        text = ""
        for targets in (["berth"], list(self.programs)):
            run = subprocess.Popen(["ninja", "-C", self.output, "-j", str(self.jobs), "-k", "0", *targets], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", env=environment)
            for line in run.stdout:
                text += line
                step = re.match(r"\[(\d+)/(\d+)\]", line)
                if step:
                    self.progress(f"building: {step[1]} of {step[2]} files")
            if run.wait() != 0:
                return False, text
        return True, text

    def refuse(self, text):
        """Leaves out the mutants that the messages name; returns how many there are."""
        before = len(self.refused)
        places, failing, used_at = set(), False, None
        for line in text.split("\n"):
            m = re.match(r"(.*?):(\d+):\d+: +required from here", line)  # of g++, before the error
            if m:
                used_at = (m[1], m[2])
            m = re.match(r"(.*?):(\d+):\d+: (fatal error|error|note): (.*)", line)
            if not m:
                continue
            error = m[3] != "note"
            if "mutation.h" in m[1]:
                failing = failing or error  # the place follows in a note
                if not error or used_at is None:
                    continue
                m, used_at = (None, *used_at), None
            if error or (failing and "requested here" in m[4]):
                failing = False
                if str(self.tree) in m[1] or m[1].startswith(("include/", "src/")):
                    places.add((os.path.relpath(m[1], self.tree) if m[1].startswith("/") else m[1], int(m[2])))
        for name, line in places:
            if name not in self.sources:
                continue
            found = [m for m in self.sources[name][1] if self.key(m) not in self.refused]
            here = [m for m in found if line in (m.line, m.last_line)] or [m for m in found if m.line <= line <= m.last_line]
            self.refused |= {self.key(m) for m in here}
        return len(self.refused) - before

    @staticmethod
    def key(m):
        return (m.path, m.operator, m.before, m.after)

    def valid(self):
        """What compiles."""
        return [m for m in self.mutants if self.key(m) not in self.refused]

    def save(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state["refused"] = sorted(self.refused)
        self.state_path.write_text(json.dumps(self.state))


def put(path, text):
    """Writes a file unless it is there with this text: an unchanged file is not compiled again."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)
