"""A fresh process for `test_device`: calls a function and prints what was compiled for it, as JSON."""

import json
import sys

import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.counters import counts

SELDOM_NEEDED = ("lowering.simt.emit", "lowering.triton.emit", "triton")
"""Modules that a process with a warm cache does without."""


@qd.jit
def f(x):
    out, total = qd.full(x.shape[0], 1.5), qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] += jnp.sin(x[i])
    for i in qd.range(x.shape[0]):
        total[()] += out[i] * x[(i * 3) % 1000]
    return out, total


def work() -> dict[str, int]:
    """The pieces of code that were compiled, loaded and linked so far."""
    return {name: counts[name] for name in ("compiled", "loaded", "linked")}


if __name__ == "__main__":
    results = f(jnp.arange(1000.0))
    bits = [np.asarray(x).tobytes().hex() for x in results]
    loaded = [name for name in SELDOM_NEEDED if name in sys.modules]
    print(json.dumps({"stats": work(), "bits": bits, "loaded": loaded}))
