#!/usr/bin/env python3
"""Compares what a launch call, a PyTorch step and the process's memory cost: bare, with the library preloaded and
nobody listening, with a consumer, with everything sampled, and after a consumer has left.

Started by scripts/bench, which builds. A round runs bare and every state once each, in changing order, and every
figure is a ratio to the bare run of the same round. Rounds are kept as JSON lines, and those of several calls can
be merged. launches.py and sets.py run rounds, states.py has the states, table.py the rows.
"""

import argparse
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time

import plot
from launches import Launches
from schedule import run_rounds
from sets import Missing, Sets
from states import TITLES, States, fail, parse
from table import GROUPS, STAND_IN, read_lines, report

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH_STEPS = os.path.join(HERE, "../../microbenchmarks/torch_steps.py")
# Those that a group has unless --states says others.
STATES = {"launch": ["idle", "consumer", "left", "everything"], "torch": ["idle", "consumer", "agent", "left", "everything", "stacks"]}


def gpu(states, program):
    """What launch_cost --check says; None when there is no GPU."""
    done = states.execute([program, "--check"])
    if done.returncode == 3:
        print(done.stderr.strip(), file=sys.stderr)
        return None
    return parse(done.returncode, done.stdout, done.stderr, "--check")


def driver_version():
    try:
        with open("/proc/driver/nvidia/version") as file:
            return re.search(r"\s(\d+\.\d+(\.\d+)?)\s", file.readline()).group(1)
    except (OSError, AttributeError):
        return "unknown"


def host_of(found):
    return {
        "gpu": found["gpu"],
        "cuda": found["cuda"],
        # Also when LD_LIBRARY_PATH led there.
        "driver": "simulated" if is_simulated(found) else driver_version(),
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d"),
    }


def is_simulated(found):
    return found["gpu"].startswith("Simulated")


class Output:
    """Takes measurements as they come, into a list and the file."""

    def __init__(self, name, host):
        self.run, self.measurements = time.strftime("%Y%m%dT%H%M%S"), []
        self.file = open(name, "a") if name else None
        self.line({"run": self.run, "host": host})

    def line(self, one):
        if self.file:
            print(json.dumps(one), file=self.file, flush=True)

    def write(self, measurements):
        for one in measurements:
            self.measurements.append({"run": self.run, **one})
            self.line(self.measurements[-1])


def chosen_rows(options, stand_in):
    """Group -> its rows, of those that were asked for."""
    known = {**GROUPS, **({"torch": STAND_IN} if stand_in else {})}
    groups = options.groups.split(",")
    wanted = options.rows.split(",") if options.rows else None
    check_names(groups, known, "group")
    check_names(wanted or [], [row for rows in known.values() for row in rows], "row")
    rows = {group: [row for row in known[group] if not wanted or row in wanted] for group in groups}
    rows = {group: of for group, of in rows.items() if of}
    return rows or fail("none of these rows is in these groups", 2)


def check_names(names, known, what):
    for name in names:
        if name not in known:
            fail(f"no such {what}: {name}", 2)


def states_of(group, options):
    states = options.states.split(",") if options.states else STATES.get(group, STATES["launch"])
    check_names(states, TITLES, "state")
    return ["bare", *[s for s in states if s not in ("bare", "rival")], *(["rival"] if options.rival else [])]


def runner_of(group, rows, states, options, simulated):
    names = states_of(group, options)
    if group == "torch":
        workload = [sys.executable, os.path.join(HERE, "driver_steps.py")] if simulated else [options.python, TORCH_STEPS]
        seconds = options.torch_seconds or (0.05 if simulated else 0.4)
        return Sets(states, names, workload, rows, seconds, options.set_rounds or (2 if simulated else 5))
    seconds = options.seconds or (0.05 if simulated else 0.3)
    program = os.path.join(options.bin_dir, "launch_cost")
    return Launches(group, rows, names, states, program, seconds, with_memory=group == "launch")


def measure_all(options):
    if not options.bin_dir:
        fail("--bin-dir is missing", 2)
    for name in ("rounds", "set_rounds"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            fail(f"--{name.replace('_', '-')} must be 1 or more", 2)
    if options.rival and not os.path.isfile(options.rival):
        fail(f"{options.rival} is not there", 2)
    program = os.path.join(options.bin_dir, "launch_cost")
    if not os.path.isfile(program):
        fail(f"{program} is not there", 2)
    # So that what is under way is ended then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="parcagpu-bench-") as scratch:
        states = States(options.bin_dir, scratch, options.rival)
        if options.simulated:
            states.search(options.simulated)
        found = gpu(states, program)
        if found is None:
            # scripts/bench falls back to the simulated driver on this status.
            sys.exit(3)
        simulated, host = is_simulated(found), host_of(found)
        rows = chosen_rows(options, simulated)
        runners = {group: runner_of(group, of, states, options, simulated) for group, of in rows.items()}
        if simulated:
            print("simulated driver: not a measurement of a GPU", flush=True)
            states.visit_s, states.settle_s = 1, 1
        output = Output(options.output, host)
        # There it is tried, no more.
        run_rounds(runners, options.rounds or (3 if simulated else 40), options.limit, Missing, output.write)
        return host, output.measurements


def main():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", help="folder with parcagpu, libparcagpu.so and launch_cost")
    parser.add_argument("--rounds", type=int, help="40; 3 on the simulated driver")
    parser.add_argument("--set-rounds", type=int, help="rounds that share their PyTorch processes, 5; 2 on the simulated driver")
    parser.add_argument("--limit", type=float, default=540, help="stop with what there is before so many seconds")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}; the first has the most rounds")
    parser.add_argument("--rows", help="only these rows of the groups")
    parser.add_argument("--states", help="besides bare, of " + ", ".join(list(TITLES)[1:]))
    parser.add_argument("--seconds", type=float, help="per row and process, 0.3; 0.05 on the simulated driver")
    parser.add_argument("--torch-seconds", type=float, help="per model, state and round, 0.4; 0.05 on the simulated driver")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--rival", help="another profiling library, to be measured in the same rounds")
    parser.add_argument("--output", help="append every measurement to this file, a JSON object a line")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="measure nothing: report what is in such files")
    parser.add_argument("--plot", help="draw the ratios into this SVG file")
    parser.add_argument("--simulated", metavar="DIR", help="folder with the simulated libcuda.so.1 and libcupti.so.13")
    options = parser.parse_args()
    host, measurements = read_lines(options.merge) if options.merge else measure_all(options)
    if not measurements:
        fail("nothing was measured")
    rows = report(measurements, host)
    if options.plot:
        with open(options.plot, "w") as file:
            file.write(plot.svg(rows, TITLES, f"{host['gpu']}, driver {host['driver']}, CUDA {host['cuda']}"))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
