"""A GPT-2 of random weights is fine-tuned on random tokens; AdamW in full precision. GIGABYTES is about what it takes."""

import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

size, steps = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
width = 64 * max(8, int((size * 2**30 / 16 / 12 / 12) ** 0.5) // 64)  # 12 layers of 12 width² weights, 16 bytes each
model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=width, n_head=width // 64, vocab_size=8192, n_positions=256)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
tokens = torch.Generator(device="cuda").manual_seed(1)
for i in range(steps + 1):
    x = torch.randint(0, 8192, (4, 256), device="cuda", generator=tokens)
    loss = model(input_ids=x, labels=x).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", i, f"{loss.item():.9f}", flush=True)
    time.sleep(0.05)
print("final", repr(sum(p.double().sum().item() for p in model.parameters())), flush=True)
