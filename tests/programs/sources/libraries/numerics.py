"""numerics.py ROUNDS: numpy and scipy, with a fixed state of the generator."""

import hashlib
import sys

import numpy as np
from scipy import fft, linalg, optimize, sparse
from scipy.sparse import linalg as sparse_linalg

chance = np.random.default_rng(7)
a = chance.random((220, 220))
grid = sparse.diags([-1, 4, -1], [-1, 0, 1], shape=(20_000, 20_000), format="csc")
for r in range(int(sys.argv[1])):
    values, vectors = linalg.eigh(a @ a.T)
    spectrum = np.abs(fft.fft2(vectors))
    solved = sparse_linalg.spsolve(grid, np.sin(np.arange(20_000) * (r + 1)))
    found = optimize.minimize(optimize.rosen, chance.random(6), method="BFGS")
    a = np.mod(a * 1.01 + spectrum / spectrum.max(), 1)
    if r % 10 == 9:
        print(r, values[-1], float(solved.sum()), found.nit, hashlib.sha256(a.tobytes()).hexdigest()[:16], flush=True)
