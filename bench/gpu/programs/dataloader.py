"""Training with PyTorch's DataLoader as its manual shows it: its workers are forked after CUDA began.

There are new ones in each epoch, or the same ones if `persistent` is the third word.
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, i):
        return torch.randn(512, generator=torch.Generator().manual_seed(i))


size, steps, persistent = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["persistent"]
torch.manual_seed(0)
ballast = torch.randint(0, 255, (int(size * 2**30),), dtype=torch.uint8, device="cuda")
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
data = DataLoader(Noise(), batch_size=32, shuffle=True, num_workers=3, pin_memory=True, persistent_workers=persistent)
step = 0
while step <= steps:
    batches = iter(data)
    workers = batches._workers
    for x in batches:
        x = x.cuda(non_blocking=True)
        loss = ((model(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, f"{loss.item():.9f}", flush=True)
        time.sleep(0.05)
        step += 1
    if not persistent:
        for worker in workers:
            worker.join()
        print("epoch ended, exit codes of its workers:", [worker.exitcode for worker in workers], flush=True)
weights = sum(p.double().sum().item() for p in model.parameters())
print("final", repr(weights), int(ballast.view(torch.int64).sum()), flush=True)
