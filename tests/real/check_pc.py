"""Checks what `parcagpu run --trace --json` saw of pc_sample_toy: every kernel has samples on its own lines.

    check_pc.py TRACE.jsonl PC_SAMPLE_TOY.cu continuous|serialized

What a kernel mostly waits for is printed beside what it was written to wait for, and decides nothing: GPUs differ.
"""

import collections
import json
import os
import re
import sys

EXPECTED = {
    "memory_dependency": ("long_scoreboard",),
    "math_pipe": ("math_pipe_throttle",),
    "barrier": ("barrier",),
    "shared_conflicts": ("short_scoreboard", "mio_throttle"),
    "fixed_latency": ("wait",),
    "asleep": ("sleeping",),
}
STALLED = "smsp__pcsamp_warps_issue_stalled_"
PART = "_not_issued"


def kernels(source):
    """First and last line of every kernel."""
    found, name = {}, None
    with open(source) as file:
        for number, line in enumerate(file, 1):
            begins = re.match(r"__global__ void (\w+)\(", line)
            if begins:
                name = begins.group(1)
                found[name] = [number, number]
            elif name and line.startswith("}"):
                found[name][1] = number
                name = None
    return found


def main(path, source, mode):
    with open(path) as file:
        events = [json.loads(line) for line in file]
    lines_of = kernels(source)
    samples = [e for e in events if e["probe"] == "pc_sample_batch"]
    records = [e for e in events if e["probe"] == "activity_batch"]
    launches = {e["correlation_id"] for e in events if e["probe"] == "cuda_correlation"}
    problems = [f"error {e['code']} {e['component']}: {e['message']}" for e in events if e["probe"] == "error"]
    placed, total = collections.Counter(), collections.Counter()
    waits, places = collections.defaultdict(collections.Counter), collections.Counter()
    for e in samples:
        kernel = next((k for k in lines_of if k in (e["demangled"] or e["name"])), None)
        reasons = [r for r in e["stall_reasons"] if r["name"] and not r["name"].endswith(PART)]
        count = sum(r["samples"] for r in reasons)
        total[kernel] += count
        places[e["place"]] += count
        for r in reasons:
            waits[kernel][r["name"].removeprefix(STALLED)] += r["samples"]
        own = e["file"] and os.path.basename(e["file"]) == os.path.basename(source)
        if kernel and own and lines_of[kernel][0] <= e["line"] <= lines_of[kernel][1]:
            placed[kernel] += count
    print(f"{mode}: {len(samples)} records, {sum(total.values())} samples, by place {dict(places)}, {len(records)} kernels")
    for kernel in lines_of:
        time = sum(e["end_ns"] - e["start_ns"] for e in records if kernel in (e["demangled"] or e["name"]))
        most = [f"{name} {n}" for name, n in waits[kernel].most_common(3)]
        met = [name for name, _ in waits[kernel].most_common(3) if name in EXPECTED.get(kernel, ())]
        print(
            f"  {kernel:<18} {time / 1e6:8.0f} ms sampled launches, {total[kernel]:8} samples, "
            f"{placed[kernel]:8} on lines {lines_of[kernel][0]}-{lines_of[kernel][1]}; {', '.join(most)}"
            f" ({'as' if met else 'not as'} written)"
        )
        if not placed[kernel]:
            problems.append(f"no sample of {kernel} on its lines")
    for e in samples:
        if mode == "serialized" and e["correlation_id"] not in launches:
            problems.append(f"a sample of launch {e['correlation_id']}, which was not announced")
            break
        if mode == "continuous" and e["correlation_id"] != 0:
            problems.append(f"a sample with correlation id {e['correlation_id']}")
            break
    for probe in ("stall_reason_map", "gpu_config"):
        if not any(e["probe"] == probe for e in events):
            problems.append(f"no {probe}")
    for problem in problems:
        print(f"  wrong: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
