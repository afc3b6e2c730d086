"""Unit tests of sets.py, with workers that need no driver: python3 -m unittest discover -s tests/bench"""

import contextlib
import io
import os
import signal
import sys
import tempfile
import time
import unittest

from sets import Missing, Worker
from states import Way


class Workers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name

    def worker(self, *command):
        files = [os.path.join(self.scratch, name) for name in ("library", "report", "recording")]
        worker = Worker(Way("bare", command, dict(os.environ), *files), self.scratch)
        self.addCleanup(worker.close)
        return worker

    def python(self, program):
        return self.worker(sys.executable, "-c", program)

    @contextlib.contextmanager
    def refused(self, text):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            yield
        self.assertIn(text, said.getvalue())

    def test_orders_are_answered_until_stdin_ends(self):
        worker = self.worker("cat")
        self.assertEqual(worker.ask('{"a": 1}', 10), {"a": 1})
        self.assertEqual(worker.ask('{"a": 2}', 10), {"a": 2})
        self.assertEqual(worker.end(10), 0)

    def test_the_end_before_the_answer_is_told_with_its_words(self):
        with self.refused("ended with status 7\nno luck"):
            self.python("import sys; print('no luck', file=sys.stderr); sys.exit(7)").ask("x", 10)

    def test_no_answer_is_an_error_in_bounded_time(self):
        began = time.monotonic()
        worker = self.worker("sleep", "60")
        with self.refused("no answer within 0.1 s"):
            worker.ask("x", 0.1)
        worker.close()
        self.assertLess(time.monotonic() - began, 40)
        self.assertEqual(worker.process.returncode, -signal.SIGKILL)

    def test_where_the_workload_cannot_run_is_known(self):
        with self.assertRaisesRegex(Missing, "no PyTorch"):
            self.python("import sys; print('no PyTorch', file=sys.stderr); sys.exit(3)").answer(10)

    def test_what_it_started_ends_with_it(self):
        worker = self.worker("sh", "-c", "sleep 600 & echo $!; exec sleep 600")
        child = worker.answer(10)
        worker.close()
        for _ in range(3000):
            # Somebody else reaps it.
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{child}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                    time.sleep(0.01)
                    continue
            return
        self.fail(f"process {child} lives on")


if __name__ == "__main__":
    unittest.main()
