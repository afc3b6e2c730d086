"""What is compared: in which environment and under which command a workload runs in each state, and how it is
known afterwards that the state was what its name says."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

PROCESS_LIMIT_S = 90
# The library's own defaults, said here because `parcagpu run` samples everything unless told.
RATE, GRAPH_RATE = 100, 20
# How long the consumer that leaves is there, and how long it may take until everything is off again.
VISIT_S, SETTLE_S = 2, 1.5

TITLES = {
    "bare": "bare",
    "idle": "preloaded, no consumer ever",
    "consumer": f"consumer attached, {RATE}/{GRAPH_RATE} samples/s",
    "agent": "the same, every probe and CPU stacks",
    "pc": "every probe and CPU stacks, and PCs sampled",
    "left": "consumer left",
    "everything": "everything sampled",
    "stacks": "everything sampled, with CPU stacks",
    "rival": "the other library, no consumer",
}
PRELOADED = ("idle", "left")
WATCHED = ("consumer", "agent", "pc", "everything", "stacks")
# As an agent does it that profiles the whole host all the time, and with all that there is.
AT_DEFAULTS, RECORDED = ("consumer", "agent", "pc"), ("agent", "pc", "stacks")


def fail(message, status=1):
    note(message)
    sys.exit(status)


def note(message):
    print(f"bench: {message}", file=sys.stderr)


class Way:
    """How a workload runs in a state: `command`, `environment`, and the files that are its own, removed by
    `clear`."""

    def __init__(self, state, command, environment, library, report, recording):
        self.state, self.command, self.environment = state, command, environment
        self.library, self.report, self.recording = library, report, recording

    def clear(self):
        for file in (self.library, self.report, self.recording):
            if os.path.exists(file):
                os.remove(file)


class States:
    def __init__(self, bin_dir, scratch, rival=None):
        self.command, self.original = os.path.join(bin_dir, "parcagpu"), os.path.join(bin_dir, "libparcagpu.so")
        self.scratch, self.rival = scratch, rival
        self.visit_s, self.settle_s = VISIT_S, SETTLE_S
        for file in (self.command, self.original):
            if not os.path.isfile(file):
                fail(f"{file} is not there", 2)
        self.environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "CUDA_INJECTION64_PATH")}
        # What a process leaves when it is killed goes with the folder.
        self.environment["TMPDIR"] = scratch
        # The defaults of the library are what is measured.
        for name in [n for n in self.environment if n.startswith("PARCAGPU_") and n != "PARCAGPU_CUPTI_PATH"]:
            note(f"{name} is not passed on")
            del self.environment[name]
        # On a machine without libelf: the copies from `scripts/bench --collect`, for every state alike.
        if self.execute([self.command, "--version"]).returncode == 127:
            self.search(os.path.join(bin_dir, "lib"))
        if self.execute([self.command, "--version"]).returncode != 0:
            fail(f"{self.command} does not run", 2)

    def search(self, folder):
        path = self.environment.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = os.path.abspath(folder) + (f":{path}" if path else "")

    def way(self, state, workload, environment, name):
        """`name`: of its files. Its copy of the library is its own: a consumer of another state, or one that
        somebody else attaches by path, does not reach it. `parcagpu run` makes such a copy itself."""
        of = os.path.join(self.scratch, name)
        library, report, recording = of + ".so", of + ".json", of + ".pgpu"
        if state in PRELOADED:
            shutil.copy(self.original, library)
            environment = {**environment, "LD_PRELOAD": library}
        elif state == "rival":
            environment = {**environment, "CUDA_INJECTION64_PATH": os.path.abspath(self.rival)}
        elif state in WATCHED:
            rates = ["--rate", str(RATE), "--graph-rate", str(GRAPH_RATE)] if state in AT_DEFAULTS else []
            record = ["--record", recording] if state in RECORDED else []
            pcs = ["--pc"] if state == "pc" else []
            watch = [self.command, "run", "--lib", self.original, "--json", "--output", report]
            workload = [*watch, *rates, *record, *pcs, "--", *workload]
        return Way(state, workload, environment, library, report, recording)

    def visit(self, way, pid):
        """A consumer is attached to this process for a while, until records have come, and leaves; after another
        `settle_s` everything is off."""
        visitor = [self.command, "top", "--lib", way.library, "--pid", str(pid)]
        until, attached, told = time.monotonic() + PROCESS_LIMIT_S, None, b""
        with subprocess.Popen(
            visitor, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                while True:
                    now = time.monotonic()
                    came = re.search(rb"\+[1-9][0-9,]* kernel records", told)
                    if came and attached and now >= attached + self.visit_s:
                        break
                    if now > until:
                        fail(f"left: no kernel record came\n{told.decode(errors='replace')}")
                    if select.select([process.stdout], [], [], 0.1)[0]:
                        data = os.read(process.stdout.fileno(), 1 << 16)
                        if not data:
                            fail(f"the visitor ended\n{told.decode(errors='replace')}")
                        told += data
                        attached = attached or (b"attached to " in told and now)
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=PROCESS_LIMIT_S)
            finally:
                process.kill()
        if process.returncode != 0:
            fail(f"the visitor: exit status {process.returncode}")

    def check_process(self, state, result):
        """A comparison of three bare runs would look very good. `result`: what the workload says of its process."""
        ours = state not in ("bare", "rival")
        if result["profiled"] != ours and state != "rival":
            fail(f"{state}: the library is {'' if result['profiled'] else 'not '}in the process")
        # PyTorch brings libcupti along, which says nothing then.
        if "cupti" in result and state != "rival" and result["cupti"] != (state not in ("bare", "idle")):
            fail(f"{state}: CUPTI is {'' if result['cupti'] else 'not '}in the process")

    def check_consumer(self, way):
        """After the end: whether records came, and stacks. Gives what was lost on the way, in words."""
        if way.state not in WATCHED:
            return ""
        with open(way.report) as file:
            report = json.load(file)
        check_report(report, way.state)
        for what, field in self.expected(way):
            if not self.has(way.recording, what, field):
                fail(f"{way.state}: no {what} in the recording: {json.dumps(report)}")
        return losses_of(report, way.state not in AT_DEFAULTS)

    def expected(self, way):
        """Kinds of lines of its recording, and what they have."""
        stacks = [("stack", "frames")] if way.state in RECORDED else []
        return stacks + ([("pc_sample", "stall_reasons")] if way.state == "pc" else [])

    def await_recorded(self, way, process):
        """Until its recording has what it should: stacks are walked while the program is there, be it short."""
        until = time.monotonic() + PROCESS_LIMIT_S
        for what, field in self.expected(way):
            while not (has_ended(process) or time.monotonic() > until or self.has(way.recording, what, field)):
                time.sleep(0.1)

    def has(self, recording, what, field):
        lines = [self.command, "report", "--format", "jsonl", recording]
        with subprocess.Popen(lines, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as reader:
            try:
                for line in reader.stdout:
                    one = json.loads(line)
                    if one["type"] == what and one[field]:
                        return True
            finally:
                reader.kill()
        return False

    def execute(self, command, environment=None, stay=None):
        """Runs it to its end; when that does not come, or we are to end, it is killed with what it started. `stay`: is
        given the process before the end of its stdin."""
        with subprocess.Popen(
            command,
            env=environment or self.environment,
            stdin=subprocess.PIPE if stay else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                if stay:
                    stay(process)
                output, errors = process.communicate(timeout=PROCESS_LIMIT_S)
            except BaseException as error:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    fail(f"longer than {PROCESS_LIMIT_S} s: {' '.join(command)}")
                raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def has_ended(process):
    """It is not reaped by that."""
    return bool(os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))


def check_report(report, state):
    if not any(process["records"] for process in report["processes"]):
        fail(f"{state}: no kernel record came: {json.dumps(report)}")


def losses_of(report, everything):
    """In words, of what `parcagpu run --json` says at the end. `everything`: was to be sampled."""
    counts = (("events_dropped", "events dropped"), ("records_unreadable", "records unreadable"))
    losses = [f"{report[key]} {what}" for key, what in counts if report[key]]
    for process in report["processes"]:
        told, seen = process["launches_told"], process["launches_seen"]
        if everything and seen and told < seen:
            losses.append(f"{told} of {seen} launches told")
        if process["library_losses"]:
            losses.append(process["library_losses"])
    return ", ".join(losses)


def parse(status, output, errors, what):
    if status != 0:
        fail(f"{what}: exit status {status}\n{output}{errors}", 2 if status == 2 else 1)
    return json.loads(output.strip().splitlines()[-1])
