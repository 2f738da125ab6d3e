"""Tensors that come and go, with the allocator that PYTORCH_CUDA_ALLOC_CONF names, on two streams."""

import random
import sys
import time

import torch

size, steps = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
numbers, kept, other = random.Random(1), [], torch.cuda.Stream()
most = int(size * 2**30 / 4)
for i in range(steps + 1):
    while sum(t.numel() for t in kept) > most // 2:
        kept.pop(numbers.randrange(len(kept)))
    kept.append(torch.full((numbers.randint(1, most // 8),), float(i), device="cuda"))
    with torch.cuda.stream(other):
        other.wait_stream(torch.cuda.default_stream())
        told = sum(t[:1000].double().sum() for t in kept)
    torch.cuda.default_stream().wait_stream(other)
    print("step", i, repr(told.item()), flush=True)
    if i % 40 == 39:
        torch.cuda.empty_cache()
    time.sleep(0.04)
print("final", repr(sum(t.double().sum().item() for t in kept)), flush=True)
