"""Training as scripts for several GPUs do it on one: a process group of one rank, by the backend that the third word names."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

size, steps, backend = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
dist.init_process_group(backend, init_method=f"file://{Path.cwd()}/ranks", rank=0, world_size=1)
ballast = torch.randint(0, 255, (int(size * 2**30),), dtype=torch.uint8, device="cuda")
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
numbers = torch.Generator(device="cuda").manual_seed(1)
for i in range(steps + 1):
    x = torch.randn(64, 1024, device="cuda", generator=numbers)
    loss = ((model(x) - x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    told = loss.detach().clone()
    dist.all_reduce(told)
    print("step", i, f"{told.item():.9f}", flush=True)
    time.sleep(0.04)
weights = sum(p.double().sum().item() for p in model.parameters())
print("final", repr(weights), int(ballast.view(torch.int64).sum()), flush=True)
dist.destroy_process_group()
