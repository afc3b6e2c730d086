"""Rounds of the PyTorch rows. PyTorch takes seconds to start, so processes are started in sets: one for each
state, all at once. Each stays up and measures a burst when told by a line (microbenchmarks/steps.py); one
measures at a time, the others wait in read(). After some rounds the set ends and the next one starts, so that the
spread between processes is in the intervals.

No threads. A worker leads a process group of its own, with its consumer in it, and ends as a whole.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time

from ratios import order_of
from states import PROCESS_LIMIT_S, RECORDED, fail, has_ended, note

# The first of these two goes for a start with a cold file cache.
READY_LIMIT_S, ANSWER_LIMIT_S = 180, 30
# Not counted, at the beginning of a set: the GPU was idle.
WARM_S = 0.1
NO_WORKLOAD = 3
# So long a recorder may go on resolving stacks; one that was is enough.
RESOLVE_S = 8


class Missing(Exception):
    """The workload cannot run here."""


class Worker:
    """A program that takes orders, `way` says how it runs."""

    def __init__(self, way, scratch):
        self.way, self.kept, self.dismissed = way, b"", None
        self.errors = tempfile.TemporaryFile(dir=scratch)
        self.process = subprocess.Popen(
            way.command,
            env=way.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )

    def answer(self, limit):
        """The next line, which is one JSON object, within so many seconds."""
        until = time.monotonic() + limit
        while b"\n" not in self.kept:
            if not select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))[0]:
                fail(f"{self.way.state}: no answer within {limit} s\n{self.told()}")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                status = self.end(ANSWER_LIMIT_S)
                if status == NO_WORKLOAD:
                    raise Missing(self.told().strip())
                fail(f"{self.way.state}: ended with status {status}\n{self.told()}")
            self.kept += data
        line, self.kept = self.kept.split(b"\n", 1)
        return json.loads(line)

    def ask(self, order, limit=ANSWER_LIMIT_S):
        try:
            self.process.stdin.write(f"{order}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says how it ended.
        return self.answer(limit)

    def told(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def dismiss(self):
        """The end of stdin ends it."""
        self.dismissed = self.dismissed or time.monotonic()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def end(self, limit):
        """Waits so long for the end, then brings it about; gives the exit status."""
        self.dismiss()
        if self.process.returncode is None:
            # Not reaped before the last line: until then the number is its own and its group's.
            if not self.has_ended(min(limit, self.dismissed + RESOLVE_S - time.monotonic())) and self.way.state in RECORDED:
                os.kill(self.process.pid, signal.SIGINT)
            self.has_ended(limit)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
        return self.process.returncode

    def has_ended(self, limit):
        """Within so many seconds."""
        until = time.monotonic() + limit
        while not (ended := has_ended(self.process)):
            if time.monotonic() >= until:
                break
            time.sleep(0.01)
        return ended

    def close(self):
        self.end(0)
        self.errors.close()
        self.way.clear()


class Set:
    """The workers of some rounds."""

    def __init__(self, number, states, names, workload):
        self.states, self.workers, self.measurements, self.number = states, {}, [], number
        try:
            for name in names:
                way = states.way(name, workload, states.environment, f"set{number}-{name}")
                self.workers[name] = Worker(way, states.scratch)
        except BaseException:
            self.close()
            raise

    def prepare(self):
        """Waits until all are ready; meanwhile a consumer visits the one that it is to have left."""
        for name in sorted(self.workers, key=lambda name: name != "left"):
            worker = self.workers[name]
            self.states.check_process(name, worker.answer(READY_LIMIT_S))
            if name == "left":
                worker.ask("train")
                self.states.visit(worker.way, worker.process.pid)
                if not worker.ask("stop")["steps"]:
                    fail("left: it did not train during the visit")
                settled = time.monotonic() + self.states.settle_s
        if "left" in self.workers:
            time.sleep(max(0, settled - time.monotonic()))

    def measure(self, number, models, seconds):
        """A round: each state once for each model."""
        values = {name: {} for name in self.workers}
        for place, model in enumerate(models):
            for name in order_of(number + place, list(self.workers)):
                answer = self.workers[name].ask(f"{model} {seconds}", seconds + ANSWER_LIMIT_S)
                values[name][model] = 1e9 / answer["steps_per_s"]
        self.measurements += [
            {"round": number, "set": self.number, "group": "torch", "state": name, "values": values[name]} for name in self.workers
        ]

    def dismiss(self):
        for worker in self.workers.values():
            self.states.await_recorded(worker.way, worker.process)
        for worker in self.workers.values():
            worker.dismiss()

    def collect(self):
        """The measurements, when all have ended and their consumers saw what they should."""
        for name, worker in self.workers.items():
            status = worker.end(PROCESS_LIMIT_S)
            if status != 0:
                fail(f"{name}: exit status {status}\n{worker.told()}")
            lost = self.states.check_consumer(worker.way)
            if lost:
                note(f"torch, {name}: {lost}")
                for one in self.measurements:
                    if one["state"] == name:
                        one["lost"] = lost
        self.close()
        return self.measurements

    def close(self):
        for worker in self.workers.values():
            worker.close()
        self.workers = {}


class Sets:
    """A turn is a set of `size` rounds. A set ends while the next one starts, when nobody measures."""

    def __init__(self, states, names, workload, models, seconds, size):
        self.states, self.names, self.models, self.seconds, self.size = states, names, models, seconds, size
        self.workload = [*workload, *models, "--serve"]
        self.number, self.last = 0, None

    def turn(self, number, most):
        """Gives how many rounds were run, and the measurements of those that have ended."""
        new = Set(self.number, self.states, self.names, self.workload)
        try:
            new.prepare()
            ended = self.finish()
            for model in self.models:
                new.workers["bare"].ask(f"{model} {WARM_S}")
            rounds = min(self.size, most)
            for at in range(rounds):
                new.measure(number + at, self.models, self.seconds)
            new.dismiss()
        except BaseException:
            new.close()
            raise
        self.number, self.last = self.number + 1, new
        return rounds, ended

    def finish(self):
        """The measurements of the set that has ended or is about to."""
        last, self.last = self.last, None
        if not last:
            return []
        try:
            return last.collect()
        finally:
            last.close()

    def close(self):
        if self.last:
            self.last.close()
