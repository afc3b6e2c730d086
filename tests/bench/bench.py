#!/usr/bin/env python3
"""Compares what a launch call costs: bare, with the library preloaded and nobody listening, and with a consumer.

Started by scripts/bench, which builds. One process per measurement: bare spreads more between processes than
the effect, so the states alternate and every figure is a ratio to the bare run of the same pair.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

from ratios import STATES, order_of, summarise

PROCESS_LIMIT_S = 60
# The library's own defaults, said here because `parcagpu run` samples everything unless told.
RATE, GRAPH_RATE = 100, 20


def fail(message, status=1):
    print(f"bench: {message}", file=sys.stderr)
    sys.exit(status)


class Bench:
    def __init__(self, options, scratch):
        self.options = options
        self.program = os.path.join(options.bin_dir, "launch_cost")
        self.command = os.path.join(options.bin_dir, "parcagpu")
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
            print(f"bench: {name} is not passed on", file=sys.stderr)
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
        return self.parse(done, "--check")

    def measure(self, state):
        workload = [self.program, "--kind", self.options.kind, "--chunks", str(self.options.chunks)]
        environment = self.environment
        if state == "idle":
            environment = {**environment, "LD_PRELOAD": self.library}
        if state == "consumer":
            workload = [
                *(self.command, "run", "--lib", self.library),
                *("--rate", str(RATE), "--graph-rate", str(GRAPH_RATE)),
                *("--json", "--output", self.report, "--", *workload),
            ]
        result = self.parse(self.execute(workload, environment), state)
        self.check_state(state, result)
        return result

    def check_state(self, state, result):
        """A comparison of three bare runs would look very good."""
        if result["profiled"] != (state != "bare"):
            fail(f"{state}: the library is {'' if result['profiled'] else 'not '}in the process")
        if result["cupti"] != (state == "consumer"):
            fail(f"{state}: CUPTI is {'' if result['cupti'] else 'not '}in the process")
        if state == "consumer":
            with open(self.report) as file:
                report = json.load(file)
            if not any(process["records"] for process in report["processes"]):
                fail(f"consumer: no kernel record came: {json.dumps(report)}")

    def execute(self, command, environment):
        try:
            return subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROCESS_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            fail(f"longer than {PROCESS_LIMIT_S} s: {' '.join(command)}")

    @staticmethod
    def parse(done, what):
        if done.returncode != 0:
            fail(f"{what}: exit status {done.returncode}\n{done.stdout}{done.stderr}", 2 if done.returncode == 2 else 1)
        return json.loads(done.stdout)


def driver_version():
    try:
        with open("/proc/driver/nvidia/version") as file:
            return re.search(r"\s(\d+\.\d+(\.\d+)?)\s", file.readline()).group(1)
    except (OSError, AttributeError):
        return "unknown"


def run_pairs(bench, options):
    began, pairs, longest = time.monotonic(), [], 0.0
    for number in range(options.pairs):
        left = options.limit - (time.monotonic() - began)
        if pairs and left < 1.5 * longest:
            print(f"bench: stopped after {len(pairs)} of {options.pairs} pairs: --limit {options.limit:g}", file=sys.stderr)
            break
        start = time.monotonic()
        pairs.append({state: bench.measure(state) for state in order_of(number)})
        longest = max(longest, time.monotonic() - start)
        if sys.stderr.isatty():
            print(f"\rpair {number + 1} of {options.pairs}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return pairs


def report(pairs, host):
    first = pairs[0]["bare"]
    kinds = {"eager_ns": "cuLaunchKernel"}
    if "graph_ns" in first:
        kinds["graph_ns"] = f"cuGraphLaunch, {first['graph_nodes']} kernels"
    kinds = {key: name for key, name in kinds.items() if key in first}
    rows = {name: summarise(pairs, key) for key, name in kinds.items()}

    print(f"Launch cost on {host['gpu']}, driver {host['driver']}, CUDA {host['cuda']}, kernel {host['kernel']},")
    print(f"{host['cpus']} CPUs, {host['date']}: {len(pairs)} pairs, one thread, median ns per call;")
    print("ratio: median over pairs of (state / bare of the same pair) with its 95 % interval.\n")
    print("| call | state | ns | ratio to bare | 95 % interval | difference, ns |")
    print("|---|---|---|---|---|---|")
    titles = {"bare": "bare", "idle": "preloaded, nobody listens", "consumer": f"consumer attached, {RATE}/{GRAPH_RATE} samples/s"}
    for name, by_state in rows.items():
        for state in STATES:
            row = by_state[state]
            cells = ["1", "", ""]
            if state != "bare":
                bounds = row["interval"]
                cells = [
                    f"{row['ratio']:.3f}",
                    f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "too few pairs",
                    f"{row['difference_ns']:+.0f}",
                ]
            print(f"| {name} | {titles[state]} | {row['ns']:.0f} | {' | '.join(cells)} |")
    return rows


def main():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", required=True, help="folder with parcagpu, libparcagpu.so and launch_cost")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--limit", type=float, default=900, help="stop with what there is before so many seconds")
    parser.add_argument("--kind", default="both", help="eager, graph:N or both")
    parser.add_argument("--chunks", type=int, default=400, help="timed chunks per process and kind")
    parser.add_argument("--output", help="write every pair as JSON to this file")
    parser.add_argument("--simulated", metavar="DIR", help="folder with the simulated libcuda.so.1 and libcupti.so.13")
    options = parser.parse_args()
    if options.pairs < 1:
        fail("--pairs must be 1 or more", 2)

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
        pairs = run_pairs(bench, options)
        rows = report(pairs, host)
        if options.output:
            with open(options.output, "w") as file:
                json.dump({"host": host, "rows": rows, "pairs": pairs}, file, indent=1)


if __name__ == "__main__":
    main()
