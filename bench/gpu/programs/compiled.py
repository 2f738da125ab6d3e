"""Training by `torch.compile(mode="reduce-overhead")`, which makes CUDA graphs.

Its pool of compiling processes stays, and is used again.
"""

import sys
import time

import torch
import torch._inductor.async_compile as async_compile

size, steps = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
ballast = torch.randint(0, 255, (int(size * 2**30),), dtype=torch.uint8, device="cuda")
async_compile.AsyncCompile.warm_pool()
async_compile.AsyncCompile.wait_pool_ready(60)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
forward = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
numbers = torch.Generator(device="cuda").manual_seed(1)
for i in range(steps + 1):
    x = torch.randn(64, 1024, device="cuda", generator=numbers)
    loss = ((forward(x) - x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", i, f"{loss.item():.9f}", flush=True)
    time.sleep(0.04)
    if i % 50 == 49:  # something new to compile
        other = torch.compile(lambda a, k=i: [(a.sin() * j + a.cos()).softmax(j % 2) for j in range(1, 4 + k // 50)])
        print("compiled", repr(torch.stack(other(x)).double().sum().item()), flush=True)
weights = sum(p.double().sum().item() for p in model.parameters())
print("final", repr(weights), int(ballast.view(torch.int64).sum()), flush=True)
