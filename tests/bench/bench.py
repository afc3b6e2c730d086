#!/usr/bin/env python3
"""Compares what a launch call, a PyTorch step and the process's memory cost: bare, with the library preloaded and
nobody listening, with a consumer, with everything sampled, and after a consumer has left.

Started by scripts/bench, which builds. One process per measurement: bare spreads more between processes than
the effect, so a round runs bare and every state once each, in changing order, and every figure is a ratio to
the bare run of the same round. Rounds are kept as JSON lines, and those of several calls can be merged.
"""

import argparse
import json
import os
import platform
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

import plot
from ratios import order_of, rounds_of, summarise

PROCESS_LIMIT_S = 90
# The library's own defaults, said here because `parcagpu run` samples everything unless told.
RATE, GRAPH_RATE = 100, 20
# How long the consumer that leaves is there, and how long it may take until everything is off again.
VISIT_S, SETTLE_S = 2, 1.5

TITLES = {
    "bare": "bare",
    "idle": "preloaded, no consumer ever",
    "consumer": f"consumer attached, {RATE}/{GRAPH_RATE} samples/s",
    "left": "consumer left",
    "everything": "everything sampled",
    "rival": "the other library, no consumer",
}
# Group: its rows and what they are. The rows that matter most come first.
GROUPS = {
    "launch": {"runtime": "cudaLaunchKernel", "driver": "cuLaunchKernel", "graph:10": "cuGraphLaunch, 10 kernels"},
    "torch": {"mlp": "PyTorch MLP, step", "transformer": "PyTorch transformer, step"},
    "more": {
        "graph:100": "cuGraphLaunch, 100 kernels",
        "threads:1": "cuLaunchKernel, 1 thread flat out",
        "threads:4": "cuLaunchKernel, 4 threads flat out",
        "threads:16": "cuLaunchKernel, 16 threads flat out",
    },
}
MEMORY = "rss_kib"
# Where an installed toolkit has libcudart.
TOOLKIT = "/usr/local/cuda/lib64"
# With several groups in one call: those after the first have a turn in every so many rounds.
TURN = 3


def fail(message, status=1):
    print(f"bench: {message}", file=sys.stderr)
    sys.exit(status)


def note(message):
    print(f"bench: {message}", file=sys.stderr)


class Bench:
    def __init__(self, options, scratch):
        self.options = options
        self.program = os.path.join(options.bin_dir, "launch_cost")
        self.command = os.path.join(options.bin_dir, "parcagpu")
        self.torch = [options.python, os.path.join(os.path.dirname(__file__), "../../microbenchmarks/torch_steps.py")]
        # A file of our own: a consumer that somebody else attaches by path does not reach it.
        self.library = os.path.join(scratch, "libparcagpu.so")
        self.report = os.path.join(scratch, "report.json")
        for file in (self.program, self.command, os.path.join(options.bin_dir, "libparcagpu.so")):
            if not os.path.isfile(file):
                fail(f"{file} is not there", 2)
        shutil.copy(os.path.join(options.bin_dir, "libparcagpu.so"), self.library)
        self.environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "CUDA_INJECTION64_PATH")}
        # The defaults of the library are what is measured.
        for name in [n for n in self.environment if n.startswith("PARCAGPU_") and n != "PARCAGPU_CUPTI_PATH"]:
            note(f"{name} is not passed on")
            del self.environment[name]
        # On a machine without libelf: the copies from `scripts/bench --collect`, for every state alike.
        if self.execute([self.command, "--version"], self.environment).returncode == 127:
            self.search(os.path.join(options.bin_dir, "lib"))
        if self.execute([self.command, "--version"], self.environment).returncode != 0:
            fail(f"{self.command} does not run", 2)

    def search(self, folder):
        path = self.environment.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = os.path.abspath(folder) + (f":{path}" if path else "")

    def gpu(self):
        """What launch_cost --check says; None when there is no GPU."""
        done = self.execute([self.program, "--check"], self.environment)
        if done.returncode == 3:
            print(done.stderr.strip(), file=sys.stderr)
            return None
        return self.parse(done.returncode, done.stdout, done.stderr, "--check")

    def has_torch(self):
        done = self.execute([*self.torch, "mlp", "--seconds", "0.01"], self.environment)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["it does not run"]
            note(f"no rows of PyTorch: {lines[-1]}")
        return done.returncode == 0

    def workload(self, group):
        seconds = self.options.seconds
        if group == "torch":
            return [*self.torch, *GROUPS[group], "--seconds", str(self.options.torch_seconds)]
        return [self.program, "--rows", ",".join(GROUPS[group]), "--seconds", str(seconds)]

    def measure(self, group, state):
        """The values of a group's rows, in ns, and of the memory, in KiB."""
        workload, environment = self.workload(group), self.environment
        if group != "torch" and os.path.isdir(TOOLKIT):
            # Last, so that nothing else changes. PyTorch brings its own.
            path = environment.get("LD_LIBRARY_PATH")
            environment = {**environment, "LD_LIBRARY_PATH": f"{path}:{TOOLKIT}" if path else TOOLKIT}
        if state in ("idle", "left"):
            environment = {**environment, "LD_PRELOAD": self.library}
        elif state == "rival":
            environment = {**environment, "CUDA_INJECTION64_PATH": os.path.abspath(self.options.rival)}
        elif state in ("consumer", "everything"):
            rates = ("--rate", str(RATE), "--graph-rate", str(GRAPH_RATE)) if state == "consumer" else ()
            watch = ("--json", "--output", self.report)
            workload = [self.command, "run", "--lib", self.library, *rates, *watch, "--", *workload]
        if state == "left":
            result = self.measure_after_visit(workload, environment)
        else:
            done = self.execute(workload, environment)
            result = self.parse(done.returncode, done.stdout, done.stderr, f"{group}, {state}")
        self.check_state(state, result)
        if group == "torch":
            return {model: 1e9 / rate for model, rate in result["steps_per_s"].items()}
        return {**result["rows"], **({MEMORY: result["rss_kib"]} if group == "launch" else {})}

    def measure_after_visit(self, workload, environment):
        """A consumer attaches to the running program and leaves; then it measures."""
        with subprocess.Popen(
            [*workload, "--gate"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            try:
                if not select.select([program.stdout], [], [], PROCESS_LIMIT_S)[0] or "ready" not in program.stdout.readline():
                    raise RuntimeError("the program is not ready")
                visitor = [self.command, "top", "--lib", self.library, "--pid", str(program.pid), "--seconds", str(VISIT_S), "--json"]
                visit = self.execute(visitor, self.environment)
                self.check_report(self.parse(visit.returncode, visit.stdout, visit.stderr, "the visitor"), "left")
                time.sleep(SETTLE_S)
                output, errors = program.communicate("\n", timeout=PROCESS_LIMIT_S)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                program.kill()
                fail(f"left: {error}")
            return self.parse(program.returncode, output, errors, "left")

    def check_state(self, state, result):
        """A comparison of three bare runs would look very good."""
        ours = state not in ("bare", "rival")
        if result["profiled"] != ours and state != "rival":
            fail(f"{state}: the library is {'' if result['profiled'] else 'not '}in the process")
        # PyTorch brings libcupti along, which says nothing then.
        if "cupti" in result and state != "rival" and result["cupti"] != (state not in ("bare", "idle")):
            fail(f"{state}: CUPTI is {'' if result['cupti'] else 'not '}in the process")
        if state in ("consumer", "everything"):
            with open(self.report) as file:
                self.check_report(json.load(file), state)

    @staticmethod
    def check_report(report, state):
        if not any(process["records"] for process in report["processes"]):
            fail(f"{state}: no kernel record came: {json.dumps(report)}")

    def execute(self, command, environment):
        try:
            return subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROCESS_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            fail(f"longer than {PROCESS_LIMIT_S} s: {' '.join(command)}")

    @staticmethod
    def parse(status, output, errors, what):
        if status != 0:
            fail(f"{what}: exit status {status}\n{output}{errors}", 2 if status == 2 else 1)
        return json.loads(output.strip().splitlines()[-1])


def driver_version():
    try:
        with open("/proc/driver/nvidia/version") as file:
            return re.search(r"\s(\d+\.\d+(\.\d+)?)\s", file.readline()).group(1)
    except (OSError, AttributeError):
        return "unknown"


def run_rounds(bench, options, groups, states, host):
    """The measurements of as many rounds as time allows."""
    began, measurements, longest = time.monotonic(), [], {}
    run = time.strftime("%Y%m%dT%H%M%S")
    output = open(options.output, "a") if options.output else None
    if output:
        print(json.dumps({"run": run, "host": host}), file=output, flush=True)
    for number in range(options.rounds):
        for place, group in enumerate(groups):
            if place and number % TURN != (place - 1) % TURN:
                continue
            left = options.limit - (time.monotonic() - began)
            if left < 1.2 * longest.get(group, 0) and measurements:
                if place == 0:
                    note(f"stopped after {number} of {options.rounds} rounds: --limit {options.limit:g}")
                    return measurements
                continue
            start = time.monotonic()
            for state in order_of(number // (TURN if place else 1), states):
                one = {"run": run, "round": number, "group": group, "state": state, "values": bench.measure(group, state)}
                measurements.append(one)
                if output:
                    print(json.dumps(one), file=output, flush=True)
            longest[group] = max(longest.get(group, 0), time.monotonic() - start)
        if sys.stderr.isatty():
            print(f"\rround {number + 1} of {options.rounds}", end="", file=sys.stderr, flush=True)
    return measurements


def read_lines(files):
    hosts, measurements = [], []
    for name in files:
        with open(name) as file:
            for line in file:
                one = json.loads(line)
                if "host" in one:
                    hosts.append(one["host"])
                else:
                    # Two files may have begun in the same second.
                    measurements.append({**one, "run": f"{name}:{one['run']}"})
    if not measurements:
        fail("no measurements in these files", 2)
    if len({(host["gpu"], host["driver"], host["cuda"]) for host in hosts}) != 1:
        note("these files are not from one kind of machine")
    return hosts[0], measurements


def report(measurements, host):
    rounds = rounds_of(measurements)
    print(f"Cost on {host['gpu']}, driver {host['driver']}, CUDA {host['cuda']}, kernel {host['kernel']},")
    print(f"{host['cpus']} CPUs, {host['date']}; median per call, and the median over rounds of")
    print("(state / bare of the same round) with its 95 % interval.\n")
    print("| call | state | rounds | time | ratio to bare | 95 % interval | difference |")
    print("|---|---|---|---|---|---|---|")
    rows = {}
    for titles in GROUPS.values():
        for row, title in titles.items():
            summary = summarise(rounds, row)
            if not summary:
                continue
            rows[title] = summary
            for state in [s for s in TITLES if s in summary]:
                of = summary[state]
                cells = ["1", "", ""]
                if state != "bare":
                    bounds = of["interval"]
                    cells = [f"{of['ratio']:.3f}", f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "too few rounds", time_of(of["difference"], "+")]
                print(f"| {title} | {TITLES[state]} | {of['n']} | {time_of(of['value'])} | {' | '.join(cells)} |")
    memory = summarise(rounds, MEMORY)
    if memory:
        print("\n| resident memory | MiB | more than bare |\n|---|---|---|")
        for state in [s for s in TITLES if s in memory]:
            more = f"{memory[state]['difference'] / 1024:+.1f}" if state != "bare" else ""
            print(f"| {TITLES[state]} | {memory[state]['value'] / 1024:.1f} | {more} |")
    return rows


def time_of(ns, sign=""):
    return f"{ns:{sign}.0f} ns" if abs(ns) < 100_000 else f"{ns / 1000:{sign}.1f} us"


def main():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", help="folder with parcagpu, libparcagpu.so and launch_cost")
    parser.add_argument("--rounds", type=int, help="40; 3 on the simulated driver")
    parser.add_argument("--limit", type=float, default=540, help="stop with what there is before so many seconds")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}; the first has a turn in every round")
    parser.add_argument("--states", help="besides bare, of " + ", ".join(list(TITLES)[1:]))
    parser.add_argument("--seconds", type=float, help="per row and process, 0.3; 0.05 on the simulated driver")
    parser.add_argument("--torch-seconds", type=float, default=1.5, help="per model and process")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--rival", help="another profiling library, to be measured in the same rounds")
    parser.add_argument("--output", help="append every measurement to this file, a JSON object a line")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="measure nothing: report what is in such files")
    parser.add_argument("--plot", help="draw the ratios into this SVG file")
    parser.add_argument("--simulated", metavar="DIR", help="folder with the simulated libcuda.so.1 and libcupti.so.13")
    options = parser.parse_args()
    if options.merge:
        host, measurements = read_lines(options.merge)
    else:
        host, measurements = measure_all(options)
    rows = report(measurements, host)
    if options.plot:
        with open(options.plot, "w") as file:
            file.write(plot.svg(rows, TITLES, f"{host['gpu']}, driver {host['driver']}, CUDA {host['cuda']}"))


def measure_all(options):
    if not options.bin_dir:
        fail("--bin-dir is missing", 2)
    if options.rounds is not None and options.rounds < 1:
        fail("--rounds must be 1 or more", 2)
    groups = options.groups.split(",")
    states = options.states.split(",") if options.states else [s for s in TITLES if s not in ("bare", "rival")]
    for name, known in [(group, GROUPS) for group in groups] + [(state, TITLES) for state in states]:
        if name not in known:
            fail(f"no such group or state: {name}", 2)
    states = ["bare", *[s for s in states if s not in ("bare", "rival")], *(["rival"] if options.rival else [])]
    if options.rival and not os.path.isfile(options.rival):
        fail(f"{options.rival} is not there", 2)

    with tempfile.TemporaryDirectory(prefix="parcagpu-bench-") as scratch:
        bench = Bench(options, scratch)
        if options.simulated:
            bench.search(options.simulated)
        host = bench.gpu()
        if host is None:
            # scripts/bench falls back to the simulated driver on this status.
            sys.exit(3)
        # Also when LD_LIBRARY_PATH led here.
        simulated = host["gpu"].startswith("Simulated")
        if "torch" in groups and (simulated or not bench.has_torch()):
            groups.remove("torch")
        host = {
            "gpu": host["gpu"],
            "cuda": host["cuda"],
            "driver": "simulated" if simulated else driver_version(),
            "kernel": platform.release(),
            "cpus": len(os.sched_getaffinity(0)),
            "date": time.strftime("%Y-%m-%d"),
        }
        if simulated:
            print("simulated driver: not a measurement of a GPU")
        # There it is tried, no more.
        options.rounds = options.rounds or (3 if simulated else 40)
        options.seconds = options.seconds or (0.05 if simulated else 0.3)
        return host, run_rounds(bench, options, groups, states, host)


if __name__ == "__main__":
    main()
