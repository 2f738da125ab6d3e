"""Training with three spawned DataLoader workers and pinned memory; the rest of the GPU memory is constant data."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, i):
        return torch.randn(2048, generator=torch.Generator().manual_seed(i))


def main():
    torch.manual_seed(0)
    size, steps = float(sys.argv[1]), int(sys.argv[2])
    ballast = torch.randint(0, 255, (int(size * 2**30),), dtype=torch.uint8, device="cuda")
    model = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 2048)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    data = DataLoader(Noise(), batch_size=64, num_workers=3, pin_memory=True, multiprocessing_context="spawn")
    for i, x in enumerate(data):
        x = x.cuda(non_blocking=True)
        loss = ((model(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", i, f"{loss.item():.9f}", flush=True)
        print("step", i, time.time(), file=sys.stderr, flush=True)  # noqa: TID251 -- a job has no other clock
        time.sleep(0.05)
        if i == steps:
            break
    weights = sum(p.double().sum().item() for p in model.parameters())
    print("final", repr(weights), int(ballast.view(torch.int64).sum()), flush=True)
    import os

    os._exit(0)


if __name__ == "__main__":
    main()
