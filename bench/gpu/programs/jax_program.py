"""A model is trained by a compiled step of JAX; the rest of the GPU memory is constant data.

The last line is made by the processor: a sum of the GPU is compiled where it is first asked for, in a way that the compiler
may choose by measuring, so that two undisturbed runs may differ in the last digits.
"""

import hashlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

size, steps = float(sys.argv[1]), int(sys.argv[2])
ballast = [jax.random.bits(jax.random.key(k), (2**28,), jnp.uint32) for k in range(max(1, int(size)))]
weights = jax.random.normal(jax.random.key(0), (4096, 4096)) / 64


@jax.jit
def step(w, key):
    x = jax.random.normal(key, (256, 4096))
    loss, slope = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - x) ** 2).mean())(w)
    return w - 0.1 * slope, loss


for i in range(steps + 1):
    weights, loss = step(weights, jax.random.key(i))
    print("step", i, f"{float(loss):.9f}", flush=True)
    time.sleep(0.05)
print("final", *(hashlib.sha256(np.asarray(x)).hexdigest()[:16] for x in (weights, *ballast)), flush=True)
