"""Pages that all differ, without a GPU. A file `look` asks how many are not what they were; `shared`: a child has them, too."""

import array
import mmap
import os
import signal
import sys
import time
from pathlib import Path

size, steps = int(float(sys.argv[1]) * 2**30) & ~4095, int(sys.argv[2])
noise = os.urandom(64 << 20)
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, len(noise)):
    memory[at : at + len(noise)] = noise[: min(len(noise), size - at)]
numbers = memoryview(array.array("Q", range(1, size // 4096 + 1)))
pages = memoryview(memory).cast("B").cast("Q")[::512]
pages[:] = numbers
if sys.argv[3:] == ["shared"] and os.fork() == 0:
    signal.pause()
for i in range(steps):
    wrong = -1
    if Path("look").exists():
        wrong = 0 if pages == numbers else sum(a != b for a, b in zip(pages, numbers, strict=True))
        Path("look").unlink()
    print("step", i, wrong, flush=True)
    time.sleep(0.05)
