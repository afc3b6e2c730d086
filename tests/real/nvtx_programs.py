"""GPU work inside NVTX ranges, by the package named: torch, cupy or triton. Started by scripts/test-nvtx-real.

Exit status 77: the package, or a GPU for it, is not there. Every program launches at least LAUNCHES kernels inside
each of the ranges `real outer` and `real inner`, and none inside `real empty`.
"""

import sys
import time

LAUNCHES = 20


def missing(why):
    print(why, file=sys.stderr)
    sys.exit(77)


def ranges(push, pop, launch, wait):
    launch()
    wait()
    push("real outer")
    for _ in range(LAUNCHES):
        launch()
    push("real inner")
    for _ in range(LAUNCHES):
        launch()
    pop()
    pop()
    push("real empty")
    pop()
    wait()
    # Until the records are there.
    time.sleep(1.5)


def torch_program():
    try:
        import torch
    except ImportError as e:
        missing(f"no PyTorch: {e}")
    if not torch.cuda.is_available():
        missing("PyTorch finds no GPU")
    a = torch.randn(256, 256, device="cuda")
    nvtx = torch.cuda.nvtx
    ranges(nvtx.range_push, nvtx.range_pop, lambda: a.mm(a), torch.cuda.synchronize)
    # Their own words: autograd's, and those of cuDNN and NCCL where they say something.
    with torch.autograd.profiler.emit_nvtx():
        x = torch.randn(8, 3, 32, 32, device="cuda", requires_grad=True)
        torch.nn.functional.conv2d(x, torch.randn(4, 3, 3, 3, device="cuda")).sum().backward()
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1)
        torch.distributed.all_reduce(a)
        torch.distributed.destroy_process_group()
    torch.cuda.synchronize()
    time.sleep(1.5)


def cupy_program():
    try:
        import cupy
        from cupy.cuda import nvtx
    except ImportError as e:
        missing(f"no CuPy: {e}")
    try:
        a = cupy.random.rand(256, 256)
    except cupy.cuda.runtime.CUDARuntimeError as e:
        missing(f"CuPy finds no GPU: {e}")
    ranges(nvtx.RangePush, nvtx.RangePop, lambda: cupy.add(a, a), cupy.cuda.Device().synchronize)


def triton_program():
    try:
        import torch
        import triton
        import triton.language as tl
    except ImportError as e:
        missing(f"no Triton: {e}")
    if not torch.cuda.is_available():
        missing("PyTorch finds no GPU")

    @triton.jit
    def double(pointer, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(pointer + at, tl.load(pointer + at, mask=at < n) * 2, mask=at < n)

    x = torch.ones(4096, device="cuda")
    nvtx = torch.cuda.nvtx
    ranges(nvtx.range_push, nvtx.range_pop, lambda: double[(4,)](x, 4096, block=1024), torch.cuda.synchronize)


PROGRAMS = {"torch": torch_program, "cupy": cupy_program, "triton": triton_program}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
