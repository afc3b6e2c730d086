#!/usr/bin/env python3
"""Training steps per second of a PyTorch MLP and a small transformer: many short kernels, as in eager PyTorch.

Prints one JSON object: steps_per_s by model, and whether the library and CUPTI are in the process. With
--gate it prints {"ready": true} and goes on training until a line comes on stdin, and only then measures:
consumers can come and go before. Exit status 3: no PyTorch or no GPU.
"""

import argparse
import ctypes
import json
import select
import sys
import time

try:
    import torch
except ImportError as error:
    print(f"torch_steps: {error}", file=sys.stderr)
    sys.exit(3)

SYNCHRONISE_EVERY = 20


def mlp():
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
    ).cuda()
    optimiser = torch.optim.Adam(model.parameters())
    data = torch.randn(256, 1024, device="cuda")

    def step():
        optimiser.zero_grad()
        (model(data) - data).pow(2).mean().backward()
        optimiser.step()

    return step


def transformer():
    layer = torch.nn.TransformerEncoderLayer(d_model=256, nhead=4, dim_feedforward=1024, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False).cuda()
    optimiser = torch.optim.Adam(model.parameters())
    data = torch.randn(16, 128, 256, device="cuda")

    def step():
        optimiser.zero_grad()
        (model(data) - data).pow(2).mean().backward()
        optimiser.step()

    return step


MODELS = {"mlp": mlp, "transformer": transformer}


def steps_per_second(step, seconds):
    torch.cuda.synchronize()
    begin, done = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        for _ in range(SYNCHRONISE_EVERY):
            step()
        torch.cuda.synchronize()
        done += SYNCHRONISE_EVERY
    return done / (time.monotonic() - begin)


def is_profiled():
    try:
        return bool(ctypes.c_uint64.in_dll(ctypes.CDLL(None), "parcagpu_status"))
    except ValueError:
        return False


def is_mapped(name):
    with open("/proc/self/maps") as maps:
        return any(name in line for line in maps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)} (all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per model")
    parser.add_argument("--gate", action="store_true")
    options = parser.parse_args()
    for model in options.models:
        if model not in MODELS:
            parser.error(f"no such model: {model}")
    if not torch.cuda.is_available():
        print("torch_steps: no GPU", file=sys.stderr)
        sys.exit(3)

    torch.manual_seed(1)
    steps = {model: MODELS[model]() for model in options.models}
    for step in steps.values():
        for _ in range(SYNCHRONISE_EVERY):
            step()
    if options.gate:
        print(json.dumps({"ready": True}), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            for step in steps.values():
                step()
            torch.cuda.synchronize()
    result = {model: steps_per_second(step, options.seconds) for model, step in steps.items()}
    # libcupti itself is a dependency of PyTorch: mapped in every process that imports it.
    print(json.dumps({"steps_per_s": result, "profiled": is_profiled(), "torch": torch.__version__, "cupti_mapped": is_mapped("libcupti")}))


if __name__ == "__main__":
    main()
