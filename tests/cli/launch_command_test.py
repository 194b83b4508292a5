"""`berth launch`: starts ranks, passes signals on, says which rank ended how, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
import unittest

from command_case import CommandCase

BERTH = sys.argv.pop(1)
WAIT = 60


class LaunchCommand(CommandCase):
    def setUp(self):
        super().setUp()
        self.temporary = self.path("tmp")
        os.mkdir(self.temporary)
        self.environment = dict(os.environ, TMPDIR=self.temporary)

    def tearDown(self):
        self.assertEqual(os.listdir(self.temporary), [], "a folder was left behind")

    def launch(self, *arguments, **options):
        return subprocess.run([BERTH, "launch", *arguments], capture_output=True, text=True, timeout=WAIT,
                              env=self.environment, **options)

    def start(self, *arguments):
        return subprocess.Popen([BERTH, "launch", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment)

    def wait_for(self, name):
        """Waits until a rank made this file."""
        end = time.monotonic() + WAIT
        while not os.path.exists(self.path(name)):
            self.assertLess(time.monotonic(), end, f"no rank made {name}")
            time.sleep(0.01)

    def is_running(self, name):
        """Whether the process whose number a rank wrote to this file is still there."""
        with open(self.path(name)) as file:
            number = int(file.read())
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                os.kill(number, 0)
                with open(f"/proc/{number}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] == "Z":
                        return False
            except (ProcessLookupError, FileNotFoundError):
                return False
            time.sleep(0.05)
        return True

    def test_each_rank_finds_its_place(self):
        self.environment.update(BERTH_RANK="77", BERTH_RANKS="99")
        done = self.launch("-n", "3", "--label", "--", "sh", "-c",
                           'echo "$BERTH_RANK of $BERTH_RANKS ${#BERTH_JOB_TOKEN}"; test -d "$BERTH_EXCHANGE"')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] 0 of 3 32", "[1] 1 of 3 32", "[2] 2 of 3 32"])
        self.assertEqual(done.stderr, "")

    def test_each_job_has_its_own_token(self):
        tokens = [self.launch("-n", "1", "--", "sh", "-c", "echo $BERTH_JOB_TOKEN").stdout for _ in range(2)]
        self.assertNotEqual(*tokens)

    def test_arguments_arrive_as_they_are(self):
        arguments = ["[1,2]", "--", "", "a b", "--label", "-n", "7"]
        done = self.launch("-n", "1", "--", "printf", "<%s>", *arguments)
        self.assertEqual(done.stdout, "".join(f"<{each}>" for each in arguments))

    def test_rank_0_reads_the_input(self):
        done = self.launch("-n", "2", "--label", "--", "sh", "-c", "cat", input="text")
        self.assertEqual(done.stdout, "[0] text\n")

    def test_labels_are_put_before_lines_of_both_streams(self):
        done = self.launch("-n", "1", "--label", "--", "sh", "-c", "printf 'a\\n\\nb'; printf 'c\\n' >&2")
        self.assertEqual((done.stdout, done.stderr), ("[0] a\n[0] \n[0] b\n", "[0] c\n"))

    def test_a_long_line_arrives_whole_but_for_its_labels(self):
        done = self.launch("-n", "1", "--label", "--", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x")
        self.assertEqual(done.stdout.replace("[0] ", "").replace("\n", ""), "x" * 300000)

    def test_a_failure_ends_the_others_and_is_named(self):
        done = self.launch("-n", "3", "--", "sh", "-c", 'if [ $BERTH_RANK = 1 ]; then exit 7; fi; exec sleep 60')
        self.assertEqual(done.returncode, 7)
        self.assertIn("berth launch: rank 1 ended with exit code 7\n", done.stderr)
        self.assertIn("rank 0 was ended by signal 15 (Terminated) after it was asked to end", done.stderr)

    def test_a_killed_rank_is_named(self):
        done = self.launch("-n", "2", "--", "sh", "-c", 'if [ $BERTH_RANK = 1 ]; then kill -9 $$; fi; exec sleep 60')
        self.assertEqual(done.returncode, 128 + signal.SIGKILL)
        self.assertIn("rank 1 was ended by signal 9 (Killed)\n", done.stderr)

    def test_the_others_go_on_if_asked(self):
        done = self.launch("-n", "2", "--keep-going", "--label", "--", "sh", "-c",
                           f'if [ $BERTH_RANK = 1 ]; then exit 3; fi; while ! [ -e {self.path("go")} ]; do '
                           f'sleep 0.3; touch {self.path("go")}; done; echo done')
        self.assertEqual((done.returncode, done.stdout), (3, "[0] done\n"))

    def test_a_rank_that_does_not_end_is_killed(self):
        done = self.launch("-n", "2", "--grace", "0.1", "--", "sh", "-c",
                           f'if [ $BERTH_RANK = 1 ]; then while ! [ -e {self.path("deaf")} ]; do sleep 0.01; done; '
                           f'exit 4; fi; trap "" TERM; touch {self.path("deaf")}; while :; do sleep 1; done')
        self.assertEqual(done.returncode, 4)
        self.assertIn("rank 0 was ended by signal 9", done.stderr)

    def test_what_a_rank_started_ends_with_it(self):
        done = self.launch("-n", "1", "--", "sh", "-c", f'sleep 600 & echo $! > {self.path("number")}')
        self.assertEqual(done.returncode, 0)
        self.assertFalse(self.is_running("number"))

    def test_signals_go_on_to_the_ranks(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            name = f"ready{number}"
            job = self.start("-n", "2", "--", "sh", "-c",
                             f'echo $$ > {self.path(name)}.$BERTH_RANK; exec sleep 600')
            self.wait_for(name + ".0")
            self.wait_for(name + ".1")
            job.send_signal(number)
            _, errors = job.communicate(timeout=WAIT)
            self.assertEqual(job.returncode, 128 + number, errors)
            self.assertIn(f"rank 0 was ended by signal {int(number)}", errors)
            self.assertEqual(os.listdir(self.temporary), [])

    def test_other_signals_do_not_end_the_job(self):
        job = self.start("-n", "1", "--", "sh", "-c",
                         f'trap "echo heard; exit 0" USR1; touch {self.path("ready")}; while :; do sleep 0.05; done')
        self.wait_for("ready")
        job.send_signal(signal.SIGUSR1)
        output, _ = job.communicate(timeout=WAIT)
        self.assertEqual((job.returncode, output), (0, "heard\n"))

    def test_a_second_signal_kills(self):
        job = self.start("-n", "1", "--grace", "600", "--", "sh", "-c",
                         f'trap "touch {self.path("asked")}" INT; touch {self.path("ready")}; while :; do sleep 0.05; done')
        self.wait_for("ready")
        job.send_signal(signal.SIGINT)
        self.wait_for("asked")
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=WAIT)
        self.assertEqual(job.returncode, 128 + signal.SIGINT)

    def test_a_reader_that_goes_ends_the_job(self):
        job = self.start("-n", "2", "--label", "--", "sh", "-c", "while :; do echo text; sleep 0.01; done")
        job.stdout.readline()
        job.stdout.close()
        job.stderr.read()
        job.stderr.close()
        self.assertEqual(job.wait(timeout=WAIT), 128 + signal.SIGPIPE)

    @unittest.skipUnless(sys.platform == "linux", "other systems do not tell a child of its parent's end")
    def test_ranks_end_with_a_killed_launcher(self):
        job = self.start("-n", "1", "--", "sh", "-c", f'echo $$ > {self.path("part")}; '
                         f'mv {self.path("part")} {self.path("number")}; exec sleep 600')
        self.wait_for("number")
        job.kill()
        job.communicate(timeout=WAIT)
        self.assertFalse(self.is_running("number"))
        self.assertEqual(len(os.listdir(self.temporary)), 1)
        self.assertEqual(self.launch("-n", "1", "--", "true").returncode, 0)  # removes what was left

    def test_a_program_that_cannot_be_started(self):
        for name, code, text in ((self.path("absent"), 127, "No such file"),
                                 (self.write("plain", "text"), 126, "Permission denied")):
            done = self.launch("-n", "4", "--", name)
            self.assertEqual(done.returncode, code)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_bad_command_lines(self):
        for arguments in (["-n", "2"], ["-n", "2", "--"], ["--", "true"], ["-n", "0", "--", "true"],
                          ["-n", "2000", "--", "true"], ["-n", "two", "--", "true"], ["-n", "2", "true"],
                          ["-n", "2", "--grace", "-1", "--", "true"], ["-n", "2", "--lable", "--", "true"]):
            done = self.launch(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertNotEqual(done.stderr, "")

    def test_no_folder_can_be_made(self):
        self.environment["TMPDIR"] = self.path("absent")
        done = self.launch("-n", "1", "--", "true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no folder can be made", done.stderr)


if __name__ == "__main__":
    unittest.main()
