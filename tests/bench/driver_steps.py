#!/usr/bin/env python3
"""Takes the orders of torch_steps.py on machines without PyTorch: a step is so many launches of an empty kernel.

This tries the benchmark on the simulated driver. It says nothing about PyTorch. Exit status 3: no driver.
"""

import argparse
import ctypes
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../microbenchmarks"))
import steps

MODELS = {"short": 10, "long": 50}
PTX = b".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry empty_kernel()\n{\n\tret;\n}\n"


def check(result):
    if result:
        raise RuntimeError(f"the driver gives {result}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--serve", action="store_true", required=True)
    options = parser.parse_args()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"driver_steps: {error}", file=sys.stderr)
        sys.exit(3)
    device, context, module, kernel, stream = ctypes.c_int(), *(ctypes.c_void_p() for _ in range(4))
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"empty_kernel"))
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))

    def stepper(launches):
        def step():
            for _ in range(launches):
                check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None))

        return step

    work = steps.Steps({model: stepper(MODELS[model]) for model in options.models}, lambda: check(cuda.cuStreamSynchronize(stream)))
    work.warm_up(steps.SYNCHRONISE_EVERY)
    work.serve()


if __name__ == "__main__":
    main()
