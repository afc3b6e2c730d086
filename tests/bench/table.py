"""Measurements as a table, those of one call or of several files."""

import json

from launches import MEMORY
from ratios import rounds_of, sets_of, summarise
from states import TITLES, fail, note

# Group: its rows and what they are. The rows that matter most come first.
GROUPS = {
    "launch": {"runtime": "cudaLaunchKernel", "driver": "cuLaunchKernel", "graph:10": "cuGraphLaunch, 10 kernels"},
    "torch": {"mlp": "PyTorch MLP, step", "transformer": "PyTorch transformer, step"},
    "more": {
        "graph:100": "cuGraphLaunch, 100 kernels",
        "threads:1": "cuLaunchKernel, 1 thread flat out",
        "threads:4": "cuLaunchKernel, 4 threads flat out",
        "threads:16": "cuLaunchKernel, 16 threads flat out",
        "paced:16": "cuLaunchKernel, 16 threads paced to 200,000/s in all, 1 / (rate reached)",
    },
}
# On the simulated driver: these take the place of PyTorch's, to try the benchmark.
STAND_IN = {"short": "10 launches from Python, step", "long": "50 launches from Python, step"}


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


def summaries_of(measurements):
    """Title of the row -> what ratios.summarise gives; and the same of the memory."""
    rows, memory = {}, {}
    for group, titles in GROUPS.items():
        of_group = [one for one in measurements if one["group"] == group]
        rounds, sets = rounds_of(of_group), sets_of(of_group)
        for row, title in [*titles.items(), *(STAND_IN.items() if group == "torch" else [])]:
            summary = summarise(rounds, row, sets)
            if summary:
                rows[title] = summary
        memory = memory or summarise(rounds, MEMORY)
    return rows, memory


def report(measurements, host):
    """Prints it; gives the rows."""
    rows, memory = summaries_of(measurements)
    print(f"Cost on {host['gpu']}, driver {host['driver']}, CUDA {host['cuda']}, kernel {host['kernel']},")
    print(f"{host['cpus']} CPUs, {host['date']}; median per call, and the median over rounds of")
    print("(state / bare of the same round) with its 95 % interval.\n")
    print("| call | state | rounds | time | ratio to bare | 95 % interval | difference |")
    print("|---|---|---|---|---|---|---|")
    for title, summary in rows.items():
        for state in [s for s in TITLES if s in summary]:
            of = summary[state]
            cells = ["1", "", ""]
            if state != "bare":
                cells = [f"{of['ratio']:.3f}", interval_of(of), time_of(of["difference"], "+")]
            print(f"| {title} | {TITLES[state]} | {of['n']} | {time_of(of['value'])} | {' | '.join(cells)} |")
    if sets := max((of.get("sets") or 0 for summary in rows.values() for of in summary.values()), default=0):
        print(f"\nSteps were measured in {sets} sets of processes; their intervals come from drawing sets again (bootstrap).")
    if memory:
        print("\n| resident memory | MiB | more than bare |\n|---|---|---|")
        for state in [s for s in TITLES if s in memory]:
            more = f"{memory[state]['difference'] / 1024:+.1f}" if state != "bare" else ""
            print(f"| {TITLES[state]} | {memory[state]['value'] / 1024:.1f} | {more} |")
    for line in losses_of(measurements):
        print(line)
    return rows


def losses_of(measurements):
    """Where consumers did not get everything: a line per group and state."""
    places = {}
    for one in measurements:
        places.setdefault((one["group"], one["state"]), []).append(one.get("lost"))
    for (group, state), lost in places.items():
        told = [what for what in lost if what]
        if told:
            yield f"\nGroup {group}, {TITLES[state]}: something was lost in {len(told)} of {len(lost)} rounds, last: {told[-1]}."


def interval_of(summary):
    if not summary["interval"]:
        return "too few sets" if summary["sets"] else "too few rounds"
    return "{:.3f} to {:.3f}".format(*summary["interval"])


def time_of(ns, sign=""):
    return f"{ns:{sign}.0f} ns" if abs(ns) < 100_000 else f"{ns / 1000:{sign}.1f} us"
