"""jobs.py ROUNDS: joblib: a pool of processes (loky) with arrays in shared files, and a cache on disk."""

import hashlib
import sys

import joblib
import numpy as np


def piece(a, n):
    h = hashlib.sha256(a[n].tobytes()).digest()
    for _ in range(40_000):
        h = hashlib.sha256(h).digest()
    return n, h.hex()[:16], float(np.sort(a[n])[::1000].sum())


if __name__ == "__main__":
    a = np.random.default_rng(5).random((16, 200_000))
    memory = joblib.Memory("cache", verbose=0)
    kept = memory.cache(lambda n: n * n)
    with joblib.Parallel(n_jobs=2, max_nbytes="1M") as pool:
        for r in range(int(sys.argv[1])):
            found = pool(joblib.delayed(piece)(a, n) for n in range(16))
            a[r % 16] = np.roll(a[r % 16], r + 1)
            print(r, kept(r % 5), hashlib.sha256(repr(found).encode()).hexdigest(), flush=True)
