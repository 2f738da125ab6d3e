"""jit.py ROUNDS: Numba compiles new functions all the time and runs them on its threads."""

import sys

import numba
import numpy as np


def compiled(k: int):
    @numba.njit
    def step(x, n):
        total = 0
        for _ in range(n):
            x = (x * 6364136223846793005 + k) & 0xFFFFFFFFFFFFFFF
            total ^= x >> 17
        return total

    return step


@numba.njit(parallel=True)
def waves(a):
    out = np.empty_like(a)
    for i in numba.prange(1, a.shape[0] - 1):
        for j in range(1, a.shape[1] - 1):
            out[i, j] = (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]) * 0.2499
    out[0], out[-1], out[:, 0], out[:, -1] = a[0], a[-1], a[:, 0], a[:, -1]
    return out


numba.set_num_threads(2)
a = np.random.default_rng(3).random((600, 600))
for r in range(int(sys.argv[1])):
    found = compiled(2 * r + 1)(r, 20_000_000)
    for _ in range(20):
        a = waves(a)
    print(r, found, float(a[300].sum()), flush=True)
