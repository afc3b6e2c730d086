"""A minute of matrix products on the GPU."""

import time

import torch

a = torch.randn(2048, 2048, device="cuda")
end = time.monotonic() + 60
products = 0
while time.monotonic() < end:
    a = (a @ a).relu_()
    a /= a.norm()
    products += 1
torch.cuda.synchronize()
print(f"{products} products")
