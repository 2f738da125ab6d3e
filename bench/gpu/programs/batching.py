"""An inference server under load: requests of many lengths join and leave one batch (continuous batching).

Each has its place in a cache of keys and values.
"""

import queue
import random
import sys
import threading
import time

import torch

size, steps = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
SLOTS, WIDTH, LENGTH = 16, 1024, 256
cache = torch.zeros(max(1, int(size * 2**30 / (SLOTS * WIDTH * LENGTH * 4))), SLOTS, LENGTH, WIDTH, device="cuda")
weights = [torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5 for _ in range(4)]
asked: queue.Queue[tuple[int, int]] = queue.Queue(4 * SLOTS)


def clients():
    """Each request: its number, and how many tokens it wants."""
    numbers = random.Random(1)
    for n in range(10**9):
        asked.put((n, numbers.randint(5, LENGTH - 1)))


threading.Thread(target=clients, daemon=True).start()
state = torch.zeros(SLOTS, WIDTH, device="cuda")
slots: list[tuple[int, int, int] | None] = [None] * SLOTS  # request, tokens wanted, tokens made
answered = 0
for step in range(steps + 1):
    for k, slot in enumerate(slots):
        if slot is None:
            number, wanted = asked.get()
            slots[k] = (number, wanted, 0)
            state[k] = torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)).cuda()
            cache[:, k] = 0
    for _ in range(8):
        for w in weights:
            state = torch.tanh(state @ w + state)
        for k, (number, wanted, made) in enumerate(slots):
            if made < wanted:
                cache[number % len(cache), k, made] = state[k]
                slots[k] = (number, wanted, made + 1)
    done = [k for k, (_, wanted, made) in enumerate(slots) if made == wanted]
    for k in done:
        answered += 1
        print("answer", slots[k][0], repr(cache[:, k].double().sum().item()), flush=True)
        slots[k] = None
    print("step", step, answered, repr(state.double().sum().item()), flush=True)
    time.sleep(0.03)
print("final", repr(cache.double().sum().item()), flush=True)
