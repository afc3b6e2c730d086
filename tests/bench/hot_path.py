#!/usr/bin/env python3
"""What a launch and a record cost inside the library: time by criterion, instructions by callgrind, on the
simulated driver. Prints the table of benches/README.md. Started by scripts/bench --hot-path."""

import json
import os
import re
import subprocess
import sys

# Title; name in benches/launch.rs; arguments of benches/instructions.rs; launches or records counted.
ROWS = (
    ("bare launch", "launch/bare", "bare launch", 6400),
    ("no consumer", "launch/idle", "idle launch", 6400),
    ("consumer, refused by the bucket", "launch/refused", "refused launch", 6400),
    ("refused, CUPTI on for another thread", "launch/foreign", "foreign launch", 6400),
    ("sampled, CUPTI switched on and off", "launch/sampled", "sampled launch", 1280),
    ("sampled, CUPTI left on", "launch/everything", "everything launch", 6400),
    ("record walked, not sampled", "records/unmatched", "unmatched records", 5000),
    ("record walked, handed to the probes", "records/matched", "matched records", 5000),
)
# A buffer in benches/common.
RECORDS = 500


def built(root):
    """The two benchmarks, as cargo names them."""
    command = ["cargo", "bench", "--locked", "-p", "parcagpu", "--no-run", "--message-format=json"]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    artefacts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {a["target"]["name"]: a["executable"] for a in artefacts if a.get("executable")}


def nanoseconds(program):
    """Medians by name, ns."""
    done = subprocess.run([program, "--bench"], stdout=subprocess.PIPE, text=True, check=True)
    times = {}
    # A long name stands on a line of its own.
    for name, value, unit in re.findall(r"^(\S[^\n]*?)\s+time:\s+\[\S+ \S+ (\S+) (\S+) \S+ \S+\]", done.stdout, re.M):
        times[name.split(",")[0]] = float(value) * {"ns": 1, "µs": 1e3, "us": 1e3, "ms": 1e6}[unit]
    return times


def instructions(program, arguments, count):
    environment = {**os.environ, "PARCAGPU_DISABLE": "1" if arguments.startswith("bare") else "0"}
    command = ["valgrind", "--tool=callgrind", "--smc-check=all", "--callgrind-out-file=/dev/null"]
    command += ["--toggle-collect=measured", "--toggle-collect=measured_walk", program, *arguments.split(), str(count)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=True)
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1)) / count


def main():
    root = sys.argv[1]
    subprocess.run([os.path.join(root, "scripts/sim"), "--bare", "--", "true"], check=True, stderr=subprocess.DEVNULL)
    programs = built(root)
    times = nanoseconds(programs["launch"])
    print("| | ns | more than bare | instructions | more than bare |\n|---|---|---|---|---|")
    bare = None
    for title, name, arguments, count in ROWS:
        ns, counted = times[name], instructions(programs["instructions"], arguments, count)
        if name.startswith("records"):
            print(f"| {title} | {ns / RECORDS:.0f} | | {counted:.0f} | |")
            continue
        bare = bare or (ns, counted)
        print(f"| {title} | {ns:.0f} | {ns - bare[0]:.0f} | {counted:.0f} | {counted - bare[1]:.0f} |")


if __name__ == "__main__":
    main()
