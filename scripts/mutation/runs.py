"""Runs tests against mutants: which tests reach which mutant, and whether one of them fails when it is on."""
import concurrent.futures
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zlib

from .build import MOST

MEMORY = 8 << 30  # of one test process; a mutant may allocate for ever


class Runs:
    def __init__(self, build, jobs, seed, progress):
        self.build, self.jobs, self.progress = build, jobs, progress
        self.path = build.folder / "reached.pickle"
        self.environment = {**os.environ, "BERTH_TEST_SEED": str(seed), "NODEVICE_SELECT": "1", "GTEST_FAIL_FAST": "1",
                            "GTEST_BRIEF": "1"}
        self.tests = {}  # (program, test): (seconds, set of numbers as the bits of an int)
        self.patience = {}  # (program, test): how long it took while others ran
        self.failing = []  # tests that fail without a mutant; they judge nothing
        self.lock = threading.Lock()

    def execute(self, program, tests, timeout, **variables):
        """Runs tests of one program in a process of their own. Returns "passed", "skipped" (one of them), "failed",
        "crashed" or "hung", and the seconds of processor time, which other programs of the machine hardly change."""
        scratch = tempfile.mkdtemp(prefix="mutate.")
        flags, report = os.path.join(scratch, "flags"), os.path.join(scratch, "report.json")
        with open(flags, "w") as file:
            file.write("--gtest_filter=" + ":".join(tests) + "\n")
        environment = {**self.environment, "TMPDIR": scratch, **variables}
        run = subprocess.Popen([self.build.programs[program], f"--gtest_flagfile={flags}", f"--gtest_output=json:{report}"],
                               cwd=scratch, env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True, preexec_fn=limit)
        late = threading.Event()

        def stop():
            late.set()
            kill_group(run.pid)
        timer = threading.Timer(timeout, stop)
        timer.start()
        try:
            _, status, usage = os.wait4(run.pid, 0)
            skipped = has_skipped(report)
        finally:
            timer.cancel()
            timer.join()
            kill_group(run.pid)  # the children it left
            shutil.rmtree(scratch, ignore_errors=True)
        run.returncode = os.waitstatus_to_exitcode(status)
        result = {0: "skipped" if skipped else "passed", 1: "failed"}.get(run.returncode, "hung" if late.is_set() else "crashed")
        return result, usage.ru_utime + usage.ru_stime

    def reach(self):
        """Runs every test by itself and records what it reaches. Tests of an earlier run are kept while the sources, the
        file of the test and the files that tests share are the same. In a quick build the tests of a suite are taken for
        one test, unless one of them fails or is skipped."""
        known = {}
        sources = zlib.crc32("".join((self.build.tree / name).read_text() for name in self.build.sources).encode())
        if self.path.exists():
            saved = pickle.loads(self.path.read_bytes())
            if saved["sources"] == sources:
                known = saved["tests"]
        version = test_versions(self.build.root / "tests")
        versions, members = {}, {}
        for program, path in self.build.programs.items():
            for test, file in list_tests(path).items():
                whole = (program, test.split(".")[0] + ".*") if self.build.quick else (program, test)
                # The compiler's cache makes names of files relative to where they were compiled.
                versions[(program, test)] = versions[whole] = version(self.build.output / file)
                members.setdefault(whole, []).append((program, test))

        def one(name):
            with tempfile.NamedTemporaryFile(prefix="mutants.") as file:
                file.truncate(MOST)
                started = time.monotonic()
                result, seconds = self.execute(name[0], [name[1]], 600, BERTH_MUTANTS_REACHED=file.name)
                patience = time.monotonic() - started
                bits = 0
                for number, byte in enumerate(file.read()):
                    if byte:
                        bits |= 1 << number
                return name, result, seconds, patience, bits

        def record(names):
            remaining = [name for name in names if name not in known or known[name][4] != versions[name]]
            with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
                for done, (name, result, seconds, patience, bits) in enumerate(pool.map(one, remaining)):
                    self.progress(f"tests that reach a mutant: {done + 1} of {len(remaining)}")
                    known[name] = (seconds, patience, bits, result, versions[name])

        record(members)
        names = []
        for whole, tests in members.items():
            names += [whole] if known[whole][3] == "passed" else tests
        record(names)
        for name in names:
            seconds, patience, bits, result, _ = known[name]
            if result == "passed":
                self.tests[name] = (seconds, bits)
                self.patience[name] = patience
            elif result != "skipped":
                self.failing.append(name)
        self.path.write_bytes(pickle.dumps({"sources": sources, "tests": known}))
        self.cost = {name: seconds * (20 + bits.bit_count()) for name, (seconds, bits) in self.tests.items()}

    def judge(self, number, most_seconds, active=None):
        """Whether a test notices this mutant: (result, test or None, how many tests were run, how many reach it)."""
        names = [name for name, (_, bits) in self.tests.items() if bits >> number & 1]
        # The cheap ones and those that reach little first: they are about this code.
        names.sort(key=self.cost.get)
        ran, budget, at, size = 0, most_seconds, 0, 8
        while at < len(names) and budget > 0:
            batch, at, size = names[at:at + size], at + size, size * 6
            for program in self.build.programs:
                some, patience = [], 20
                for name in batch:
                    if name[0] == program and self.tests[name][0] <= budget:
                        some.append(name[1])
                        patience += 8 * self.patience[name]
                        budget -= self.tests[name][0]
                if not some:
                    continue
                ran += len(some)
                mutant = str(number if active is None else active)
                result, _ = self.execute(program, some, patience, BERTH_MUTANT=mutant)
                # What does not end without the mutant either is slow: the machine has other work.
                if result == "hung" and self.execute(program, some, patience, BERTH_MUTANT="0")[0] != "passed":
                    result, _ = self.execute(program, some, 8 * patience, BERTH_MUTANT=mutant)
                if result != "passed":
                    return result, f"{program}: " + (some[0] if len(some) == 1 else f"one of {len(some)} tests, {some[0]} ..."), ran, len(names)
        return ("survived" if names else "unreached"), None, ran, len(names)

    def judge_all(self, mutants, most_seconds, refused, active=None):
        """Yields each mutant with its result. `refused` says whether a compiler of the repository refuses it."""
        done = killed = 0

        def one(m):
            if refused(m):
                return "refused by the thread-safety analysis", None, 0, 0
            return self.judge(m.number, most_seconds, active)

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            runs = {pool.submit(one, m): m for m in mutants}
            for run in concurrent.futures.as_completed(runs):
                m = runs[run]
                m.result, m.killer, m.ran, m.reaching = run.result()
                done += 1
                killed += m.result not in ("survived", "unreached")
                self.progress(f"mutants: {done} of {len(runs)}, {killed} killed")
                yield m


def has_skipped(report):
    """Whether a test was skipped. Without a mutant it was not, so that this is noticed: ./test allows no new skips."""
    try:
        with open(report) as file:
            return any(test["result"] == "SKIPPED" for suite in json.load(file)["testsuites"] for test in suite["testsuite"])
    except (OSError, ValueError):
        return False  # it crashed before


def kill_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def list_tests(program):
    """The tests of a program, each with the file it is in."""
    with tempfile.TemporaryDirectory(prefix="mutate.") as scratch:
        path = os.path.join(scratch, "tests.json")
        subprocess.run([program, "--gtest_list_tests", f"--gtest_output=json:{path}"], capture_output=True, check=True)
        with open(path) as file:
            suites = json.load(file)["testsuites"]
    names = {f"{suite['name']}.{test['name']}": test["file"] for suite in suites for test in suite["testsuite"]}
    return {name: file for name, file in names.items() if "DISABLED_" not in name}


def test_versions(folder):
    """Returns what says of a test's file whether it, or a file that tests share, has changed."""
    shared = 0
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".h", ".cpp") and not path.name.endswith("_test.cpp"):
            shared = zlib.crc32(path.read_bytes(), shared)
    versions = {}

    def version(file):
        if file not in versions:
            with open(file, "rb") as opened:
                versions[file] = zlib.crc32(opened.read(), shared)
        return versions[file]
    return version
