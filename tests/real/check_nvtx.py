"""Checks what `parcagpu trace --json` (or `run --trace --json`) saw of nvtx_programs.py.

    check_nvtx.py TRACE.jsonl
"""

import collections
import json
import sys

LAUNCHES = 20
OWN = ("real outer", "real inner", "real empty")


def main(path):
    with open(path) as file:
        events = [json.loads(line) for line in file]
    ranges, stacks = [], collections.defaultdict(list)
    said = [e for e in events if e["probe"] == "nvtx_event_batch"]
    for e in sorted(said, key=lambda e: e["timestamp_ns"]):
        stack = stacks[e["pid"], e["thread"], e["domain_id"]]
        if e["kind"] == "push":
            stack.append((e["message"], e["timestamp_ns"]))
        elif e["kind"] == "pop" and stack:
            name, begin = stack.pop()
            ranges.append((name, e["thread"], begin, e["timestamp_ns"]))
    launches = [e for e in events if e["probe"] == "cuda_correlation"]
    records = {e["correlation_id"] for e in events if e["probe"] == "activity_batch"}

    def inside(name):
        return [
            e
            for e in launches
            for n, thread, begin, end in ranges
            if n == name and thread == e["tid"] and begin <= e["time_ns"] <= end and e["correlation_id"] in records
        ]

    counts = {name: len(inside(name)) for name in OWN}
    others = collections.Counter(name for name, *_ in ranges if name not in OWN)
    domains = {e["name"] for e in events if e["probe"] == "nvtx_resource_name" and e["kind"] == "nvtx_domain"}
    print(f"kernels inside: {counts}; {len(launches)} launches, {len(said)} NVTX events")
    print(f"other ranges: {sum(others.values())}, of {len(others)} names, such as {[n for n, _ in others.most_common(8)]}")
    print(f"domains: {sorted(domains)}")
    devices = {e["device_id"] for e in said if e["message"] in OWN[1:]}
    print(f"devices after the first launch: {devices}")
    good = counts["real outer"] >= 2 * LAUNCHES and counts["real inner"] >= LAUNCHES and counts["real empty"] == 0
    good = good and 0xFFFFFFFF not in devices
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main(sys.argv[1])
