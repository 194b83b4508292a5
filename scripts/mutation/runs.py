"""Runs tests against mutants: which tests reach which mutant, and whether one of them fails when it is on."""
import concurrent.futures
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

from .build import MOST, PROGRAMS

MEMORY = 8 << 30  # of one test process; a mutant may allocate for ever


class Runs:
    def __init__(self, build, jobs, seed, progress):
        self.build, self.jobs, self.progress = build, jobs, progress
        self.path = build.folder / "reached.pickle"
        self.environment = {**os.environ, "BERTH_TEST_SEED": str(seed), "NODEVICE_SELECT": "1", "GTEST_FAIL_FAST": "1",
                            "GTEST_BRIEF": "1"}
        self.tests = {}  # (program, test): (seconds, set of numbers as the bits of an int)
        self.failing = []  # tests that fail without a mutant; they judge nothing
        self.lock = threading.Lock()

    def execute(self, program, tests, timeout, **variables):
        """Runs tests of one program in a process of their own. Returns "passed", "failed", "crashed" or "hung"."""
        scratch = tempfile.mkdtemp(prefix="mutate.")
        flags = os.path.join(scratch, "flags")
        with open(flags, "w") as file:
            file.write("--gtest_filter=" + ":".join(tests) + "\n")
        environment = {**self.environment, "TMPDIR": scratch, **variables}
        run = subprocess.Popen([self.build.output / PROGRAMS[program], f"--gtest_flagfile={flags}"], cwd=scratch, env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True, preexec_fn=limit)
        try:
            status = run.wait(timeout)
            return "passed" if status == 0 else "failed" if status == 1 else "crashed"
        except subprocess.TimeoutExpired:
            return "hung"
        finally:
            try:
                os.killpg(run.pid, signal.SIGKILL)  # it, and the children it left
            except ProcessLookupError:
                pass
            run.wait()
            shutil.rmtree(scratch, ignore_errors=True)

    def reach(self):
        """Runs every test by itself and records what it reaches. Tests of an earlier run are kept while the sources are
        the same."""
        known = {}
        sources = zlib.crc32("".join((self.build.tree / name).read_text() for name in self.build.sources).encode())
        if self.path.exists():
            saved = pickle.loads(self.path.read_bytes())
            if saved["sources"] == sources:
                known = saved["tests"]
        names = [(program, test) for program in PROGRAMS for test in list_tests(self.build.output / PROGRAMS[program])]
        remaining = [name for name in names if name not in known]
        done = 0

        def one(name):
            with tempfile.NamedTemporaryFile(prefix="mutants.") as file:
                file.truncate(MOST)
                started = time.monotonic()
                result = self.execute(name[0], [name[1]], 300, BERTH_MUTANTS_REACHED=file.name)
                seconds = time.monotonic() - started
                bits = 0
                for number, byte in enumerate(file.read()):
                    if byte:
                        bits |= 1 << number
                return name, result, seconds, bits

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for name, result, seconds, bits in pool.map(one, remaining):
                done += 1
                self.progress(f"tests that reach a mutant: {done} of {len(remaining)}")
                known[name] = (seconds, bits, result)
        for name in names:
            seconds, bits, result = known[name]
            if result == "passed":
                self.tests[name] = (seconds, bits)
            else:
                self.failing.append(name)
        self.path.write_bytes(pickle.dumps({"sources": sources, "tests": {n: known[n] for n in names}}))
        self.cost = {name: seconds * (20 + bits.bit_count()) for name, (seconds, bits) in self.tests.items()}

    def judge(self, number, most_seconds, active=None):
        """Whether a test notices this mutant: (result, test or None, how many tests were run, how many reach it)."""
        names = [name for name, (_, bits) in self.tests.items() if bits >> number & 1]
        # The cheap ones and those that reach little first: they are about this code.
        names.sort(key=self.cost.get)
        ran, budget, at, size = 0, most_seconds, 0, 8
        while at < len(names) and budget > 0:
            batch, at, size = names[at:at + size], at + size, size * 6
            for program in PROGRAMS:
                some, seconds = [], 0
                for name in batch:
                    if name[0] == program and budget > 0:
                        some.append(name[1])
                        seconds += self.tests[name][0]
                        budget -= self.tests[name][0]
                if not some:
                    continue
                ran += len(some)
                result = self.execute(program, some, 20 + 8 * seconds, BERTH_MUTANT=str(number if active is None else active))
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


def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def list_tests(program):
    text = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    suite, tests = "", []
    for line in text.split("\n"):
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            if "DISABLED_" not in suite + name:
                tests.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return tests
