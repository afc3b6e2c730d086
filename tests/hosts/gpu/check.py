"""Runs the cases of scripts/test-gpu and judges them."""

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 120


class Failed(Exception):
    """A case that is not as it should be."""


def need(condition, message):
    if not condition:
        raise Failed(message)


class Lab:
    def __init__(self, folder, pc_rate):
        self.program = os.path.join(folder, "gpu_cases")
        self.command = os.path.join(folder, "parcagpu")
        self.library = os.path.join(folder, "libparcagpu.so")
        self.environment = dict(os.environ)
        self.environment.pop("LD_PRELOAD", None)
        self.preloaded = dict(
            self.environment,
            LD_PRELOAD=self.library,
            PARCAGPU_RATE_LIMIT="1e9",
            PARCAGPU_GRAPH_RATE_LIMIT="1e9",
        )
        if pc_rate:
            self.preloaded["PARCAGPU_PC_SAMPLING_RATE"] = pc_rate

    def start(self, words, environment):
        return subprocess.Popen(
            [self.program, *words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, words, environment):
        process = self.start(words, environment)
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            stacks = subprocess.run(["sh", "-c", f"cat /proc/{process.pid}/task/*/stack"], capture_output=True, text=True)
            process.kill()
            process.communicate()
            raise Failed(f"{words} hangs\n{stacks.stdout}") from None
        return process.returncode, out, err

    def bare(self, *words):
        result = self.run(words, self.environment)
        need(result[0] == 0, f"bare: {result}")
        return result

    def consumer(self):
        return Consumer(self)

    def same(self, *words):
        """Bare, and with the library under a consumer; gives what was told."""
        bare = self.bare(*words)
        with self.consumer() as consumer:
            result = self.run(words, self.preloaded)
            need(result == bare, f"with the library {result}, bare {bare}")
        return consumer.events


class Consumer:
    def __init__(self, lab):
        self.lab = lab

    def __enter__(self):
        self.file = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [self.lab.command, "trace", "--json", "--lib", self.lab.library],
            env=self.lab.environment, text=True, stdout=self.file, stderr=subprocess.PIPE,
        )
        line = self.process.stderr.readline()
        need("attached" in line, f"the consumer says {line!r}")
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        self.process.stderr.close()
        self.file.seek(0)
        self.events = [json.loads(line) for line in self.file]


def by_id(events, probe):
    return collections.Counter(e["correlation_id"] for e in events if e["probe"] == probe)


def whole(events):
    """Each launch told once, each with its kernels, no kernel without launch."""
    launches, kernels = by_id(events, "cuda_correlation"), by_id(events, "activity_batch")
    need(launches and max(launches.values()) == 1, "a launch is told twice, or none is")
    need(set(launches) == set(kernels), f"{len(launches)} launches, {len(kernels)} with kernels")
    return launches, kernels


def no_errors(events, allowed=()):
    errors = {e["message"] for e in events if e["probe"] == "error" and e["component"] not in allowed}
    need(not errors, f"errors: {errors}")


def errors(lab, _):
    no_errors(lab.same("errors"), allowed=("cubin", "pc sampling"))
    return "results are those of bare runs"


def entry_points(lab, _):
    events = lab.same("entry-points")
    launches, _ = whole(events)
    need(len(launches) == 80, f"{len(launches)} launches of 80")
    return "80 launches by eight entry points, each told once with its kernel"


def capture(lab, _):
    events = lab.same("capture")
    launches, kernels = whole(events)
    need(len(launches) == 10 and set(kernels.values()) == {3}, f"{len(launches)} replays: {kernels}")
    return "a capture with a first launch inside has its nodes, and ten replays three kernels each"


def graphs(lab, args):
    turns, stay, away = (20, 2, 2) if args.full else (5, 1.5, 1)
    # It is ended when it is no longer needed.
    seconds = turns * (stay + away + 8) + 20
    process = lab.start(["graphs", str(seconds)], lab.preloaded)
    try:
        for turn in range(turns):
            with lab.consumer() as consumer:
                time.sleep(stay + 1)
            launches = by_id(consumer.events, "cuda_correlation")
            kernels = by_id(consumer.events, "activity_batch")
            matched = [kernels[i] for i in launches if i in kernels]
            need(matched, f"turn {turn}: no replay was told")
            odd = [n for n in matched if n != 24]
            # Those at the edges of the consumer's time may be cut.
            need(len(odd) <= max(2, len(matched) // 50), f"turn {turn}: kernels of replays: {collections.Counter(matched)}")
            graph_ids = {e["graph_id"] for e in consumer.events if e["probe"] == "activity_batch"}
            need(0 not in graph_ids, "a kernel without graph id")
            no_errors(consumer.events, allowed=("pc sampling",))
            time.sleep(away)
            need(process.poll() is None, f"turn {turn}: it ended: {process.stderr.read() if process.poll() is not None else ''}")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    return f"{turns} consumers came and went beside replays of graphs old and new"


def contexts(lab, args):
    rounds = 200 if args.full else 20
    events = lab.same("contexts", str(rounds))
    no_errors(events, allowed=("pc sampling",))
    launches, _ = whole(events)
    need(len(launches) == 4 * rounds, f"{len(launches)} launches of {4 * rounds}")
    devices = [e["device_id"] for e in events if e["probe"] == "gpu_config"]
    return f"{4 * rounds} contexts of four threads on all devices, each with its launch; devices with gpu_config: {sorted(set(devices))}"


def cost(lab, args):
    """Roughly; scripts/bench measures it."""
    ratios = []
    for _ in range(5 if args.full else 3):
        rates = []
        for environment in (lab.environment, dict(lab.environment, LD_PRELOAD=lab.library)):
            code, _, err = lab.run(["rate", "2"], environment)
            need(code == 0, err)
            rates.append(float(err.split()[0]))
        ratios.append(rates[1] / rates[0])
    median = sorted(ratios)[len(ratios) // 2]
    need(median > 0.9, f"launches with the library and nobody listening: {median:.3f} of bare")
    return f"nobody listening: {median:.3f} of bare launches a second (median of {len(ratios)})"


CASES = {
    "errors": errors,
    "entry-points": entry_points,
    "capture": capture,
    "graphs": graphs,
    "contexts": contexts,
    "cost": cost,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--pc")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    names = args.only.split(",")
    for name in names:
        if name not in CASES:
            sys.exit(f"no such case: {name}")
    lab = Lab(os.path.realpath(args.folder), args.pc)
    failed = 0
    for name in names:
        began = time.monotonic()
        try:
            words = CASES[name](lab, args)
            print(f"ok      {name}: {words} ({time.monotonic() - began:.1f} s)", flush=True)
        except (Failed, subprocess.TimeoutExpired) as problem:
            failed += 1
            print(f"FAILED  {name}: {problem}", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
