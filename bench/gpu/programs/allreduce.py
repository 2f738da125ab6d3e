"""How fast NCCL sums 256 MB between all GPUs of this machine with the settings of its environment; in gigabytes a second."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, count):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29411")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    data = torch.ones(64 << 20, device="cuda")
    for _ in range(3):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    if rank == 0:
        print(f"{10 * data.numel() * 4 / 1e9 / (time.perf_counter() - began):.2f} GB/s", *sys.argv[1:], flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    mp.spawn(work, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
