"""Arrays of CuPy that all change at every step."""

import sys
import time

import cupy

size, steps = float(sys.argv[1]), int(sys.argv[2])
data = [cupy.arange(2**27, dtype=cupy.uint64) + k for k in range(max(1, int(size)))]
for i in range(steps + 1):
    for d in data:
        d *= cupy.uint64(6364136223846793005)
        d += cupy.uint64(1442695040888963407 + i)
    print("step", i, int(data[0][7]), flush=True)
    time.sleep(0.05)
print("final", [int(d.sum()) for d in data], flush=True)
