#!/usr/bin/env python3
"""Training steps per second of a PyTorch MLP and a small transformer: many short kernels, as in eager PyTorch.

Prints one JSON object: steps_per_s by model, and whether the library and CUPTI are in the process. With
--serve it measures when told; steps.py has the orders. Exit status 3: no PyTorch or no GPU.
"""

import argparse
import sys

try:
    import torch
except ImportError as error:
    print(f"torch_steps: {error}", file=sys.stderr)
    sys.exit(3)

import steps


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)} (all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per model")
    parser.add_argument("--serve", action="store_true", help="measure when a line on stdin says so")
    options = parser.parse_args()
    for model in options.models:
        if model not in MODELS:
            parser.error(f"no such model: {model}")
    if not torch.cuda.is_available():
        print("torch_steps: no GPU", file=sys.stderr)
        sys.exit(3)

    torch.manual_seed(1)
    work = steps.Steps({model: MODELS[model]() for model in options.models}, torch.cuda.synchronize)
    work.warm_up(steps.SYNCHRONISE_EVERY)
    if options.serve:
        work.serve()
        return
    result = {model: work.per_second(model, options.seconds) for model in options.models}
    # libcupti itself is a dependency of PyTorch: mapped in every process that imports it.
    steps.say({"steps_per_s": result, **steps.who(), "torch": torch.__version__})


if __name__ == "__main__":
    main()
