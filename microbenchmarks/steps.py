"""For programs that train step by step: measures them, and takes orders, a line each, on stdin.

Told first: {"ready": true} and whether the library and libcupti are in the process. Then

    MODEL SECONDS    measures so long: {"model": MODEL, "steps_per_s": N}
    train            {"training": true}, trains all models until the next line, whatever that is: {"steps": N}

Between orders it waits in read(). The end of stdin ends it.
"""

import ctypes
import json
import select
import sys
import time

SYNCHRONISE_EVERY = 20
# Before each measurement: what another process left in caches is not ours to measure.
WARM_STEPS = 5


class Steps:
    """`models`: name -> a function that does one step; `synchronise` waits for the GPU."""

    def __init__(self, models, synchronise):
        self.models, self.synchronise = models, synchronise

    def warm_up(self, steps):
        for step in self.models.values():
            for _ in range(steps):
                step()
        self.synchronise()

    def per_second(self, model, seconds):
        step = self.models[model]
        for _ in range(WARM_STEPS):
            step()
        self.synchronise()
        begin, done = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            for _ in range(SYNCHRONISE_EVERY):
                step()
            self.synchronise()
            done += SYNCHRONISE_EVERY
        return done / (time.monotonic() - begin)

    def serve(self):
        say({"ready": True, **who()})
        # One order at a time is under way, so that nothing waits in the buffer when select() is asked.
        for order in iter(sys.stdin.readline, ""):
            if order.strip() == "train":
                say({"training": True})
                done = 0
                while not select.select([sys.stdin], [], [], 0)[0]:
                    self.warm_up(1)
                    done += 1
                sys.stdin.readline()
                say({"steps": done})
                continue
            model, seconds = order.split()
            say({"model": model, "steps_per_s": self.per_second(model, float(seconds))})


def say(answer):
    print(json.dumps(answer), flush=True)


def who():
    return {"profiled": is_profiled(), "cupti_mapped": is_mapped("libcupti")}


def is_profiled():
    try:
        return bool(ctypes.c_uint64.in_dll(ctypes.CDLL(None), "parcagpu_status"))
    except ValueError:
        return False


def is_mapped(name):
    with open("/proc/self/maps") as maps:
        return any(name in line for line in maps)
