"""Runs the program of scripts/soak beside consumers that come and go, and says whether what it holds stays flat."""

import argparse
import os
import random
import signal
import subprocess
import sys
import time


def count(folder):
    return len(os.listdir(folder))


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def mappings(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return sum(1 for _ in maps)


def threads(pid):
    """Of the library and of CUPTI; the program's own come and go."""
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        except OSError:
            pass
    return sum(name in ("parcagpu", "cupti-worker") for name in names)


class Consumers:
    """`parcagpu trace` and `parcagpu top`, for one to eight seconds each; one in four is killed."""

    def __init__(self, args):
        self.args = args
        self.random = random.Random(1)
        self.process = None
        self.until = 0
        self.seen = 0

    def look(self):
        now = time.monotonic()
        if now < self.until:
            return
        if self.process is None:
            words = self.random.choice([["trace"], ["trace", "--json"], ["top"]])
            command = [self.args.command, *words, "--lib", f"{self.args.work}/libparcagpu.so"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.seen += 1
            self.until = now + self.random.uniform(1, 8)
        else:
            self.leave(self.random.random() < 0.25)
            self.until = now + self.random.uniform(0, 3)

    def leave(self, kill=False):
        if self.process:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGINT)
            self.process.wait(timeout=30)
            self.process = None


def sample(pid, bare):
    memory, without = resident_kib(pid), resident_kib(bare)
    return {
        "descriptors": count(f"/proc/{pid}/fd"),
        "threads": threads(pid),
        "memory, KiB": memory,
        # The simulated driver keeps something of every module.
        "beyond bare": memory - without,
        "mappings": mappings(pid),
    }


# How much the last quarter may be above the second, on average.
MOST = {"descriptors": 0.9, "threads": 0.9, "beyond bare": 1024, "mappings": 24}
SHOWN = ["descriptors", "threads", "memory, KiB", "beyond bare", "mappings"]


def judge(rows):
    grown = []
    quarter = len(rows) // 4
    for name, most in MOST.items():
        early = [row[name] for row in rows[quarter : 2 * quarter]]
        late = [row[name] for row in rows[-quarter:]]
        growth = sum(late) / len(late) - sum(early) / len(early)
        if growth > most:
            grown.append(f"{name} grew by {growth:.1f} (at most {most})")
    return grown


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--work", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--command", required=True)
    args = parser.parse_args()
    seconds = args.minutes * 60
    environment = dict(os.environ, LD_LIBRARY_PATH=args.sim, LD_PRELOAD=f"{args.work}/libparcagpu.so")
    command = [f"{args.work}/program", str(seconds)]
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    del environment["LD_PRELOAD"]
    # It lasts a little longer, to be compared with until the end.
    bare = subprocess.Popen([command[0], str(seconds + 30)], env=environment, stdout=subprocess.DEVNULL)
    consumers = Consumers(args)
    rows = []
    began = time.monotonic()
    # Many small looks; the table shows every so many.
    step = max(1, seconds / 240)
    print("simulated driver", flush=True)
    try:
        while time.monotonic() - began < seconds - 2 and process.poll() is None:
            consumers.look()
            if time.monotonic() - began >= len(rows) * step:
                try:
                    rows.append(sample(process.pid, bare.pid))
                except OSError:
                    break
            time.sleep(0.1)
        consumers.leave()
        out, err = process.communicate(timeout=60)
    finally:
        consumers.leave(True)
        bare.kill()
        bare.wait()
        if process.poll() is None:
            process.kill()
    print("  minute  " + "  ".join(SHOWN))
    for at in range(0, len(rows), max(1, len(rows) // args.samples)):
        row = rows[at]
        print(f"{at * step / 60:8.1f}  " + "  ".join(f"{row[name]:>{len(name)}}" for name in SHOWN))
    print(out.strip())
    print(f"{consumers.seen} consumers")
    problems = judge(rows) if len(rows) >= 8 else ["too few samples"]
    if process.returncode != 0 or err:
        problems.append(f"the program ended with {process.returncode}: {err}")
    for problem in problems:
        print(f"FAILED: {problem}")
    if not problems:
        print("flat")
    sys.exit(1 if problems else 0)


main()
