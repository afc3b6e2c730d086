"""Rounds of the launch rows: one process per measurement, since bare spreads more between processes than the
effect is large."""

import os
import select
import subprocess
import time

from ratios import order_of
from states import PROCESS_LIMIT_S, fail, note, parse

MEMORY = "rss_kib"
# Where an installed toolkit has libcudart.
TOOLKIT = "/usr/local/cuda/lib64"


class Launches:
    """`rows`: of launch_cost. A turn is one round."""

    def __init__(self, group, rows, names, states, program, seconds, with_memory):
        self.group, self.names, self.states = group, names, states
        self.workload = [program, "--rows", ",".join(rows), "--seconds", str(seconds)]
        self.with_memory = with_memory
        self.environment = states.environment
        if os.path.isdir(TOOLKIT):
            # Last, so that nothing else changes.
            path = self.environment.get("LD_LIBRARY_PATH")
            self.environment = {**self.environment, "LD_LIBRARY_PATH": f"{path}:{TOOLKIT}" if path else TOOLKIT}

    def turn(self, number, _most):
        """Gives how many rounds were run, and their measurements."""
        return 1, [self.measure(number, state) for state in order_of(number, self.names)]

    def finish(self):
        return []

    def close(self):
        pass

    def measure(self, number, state):
        """Values in ns, and of the memory in KiB."""
        way = self.states.way(state, self.workload, self.environment, "launch")
        try:
            if state == "left":
                result = self.measure_after_visit(way)
            else:
                stay = (lambda process: self.states.await_recorded(way, process)) if self.states.expected(way) else None
                done = self.states.execute([*way.command, *(["--stay"] if stay else [])], way.environment, stay)
                result = parse(done.returncode, done.stdout, done.stderr, f"{self.group}, {state}")
            self.states.check_process(state, result)
            lost = self.states.check_consumer(way)
        finally:
            way.clear()
        if lost:
            note(f"{self.group}, {state}: {lost}")
        values = {**result["rows"], **({MEMORY: result["rss_kib"]} if self.with_memory else {})}
        return {"round": number, "group": self.group, "state": state, "values": values, **({"lost": lost} if lost else {})}

    def measure_after_visit(self, way):
        """A consumer attaches to the running program and leaves; then it measures."""
        with subprocess.Popen(
            [*way.command, "--gate"], env=way.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            try:
                if not select.select([program.stdout], [], [], PROCESS_LIMIT_S)[0] or "ready" not in program.stdout.readline():
                    fail("left: the program is not ready")
                self.states.visit(way, program.pid)
                time.sleep(self.states.settle_s)
                output, errors = program.communicate("\n", timeout=PROCESS_LIMIT_S)
            except subprocess.TimeoutExpired:
                fail(f"left: longer than {PROCESS_LIMIT_S} s")
            finally:
                program.kill()
            return parse(program.returncode, output, errors, "left")
