"""Training on all GPUs, one process each, gradients summed by NCCL at every step; started by `torch.multiprocessing`."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, count, size, steps):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29400")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    torch.manual_seed(0)
    ballast = torch.randint(0, 255, (int(size * 2**30),), dtype=torch.uint8, device="cuda")
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    noise = torch.Generator(device="cuda").manual_seed(rank)
    for i in range(steps + 1):
        x = torch.randn(256, 1024, device="cuda", generator=noise)
        loss = ((model(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= count
        optimizer.step()
        if rank == 0:
            print("step", i, f"{loss.item():.9f}", flush=True)
        time.sleep(0.03)
    if rank == 0:
        weights = sum(p.double().sum().item() for p in model.parameters())
        print("final", repr(weights), int(ballast.view(torch.int64).sum()), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    mp.spawn(work, args=(torch.cuda.device_count(), float(sys.argv[1]), int(sys.argv[2])), nprocs=torch.cuda.device_count())
