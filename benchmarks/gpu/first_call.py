"""Seconds from the trace of Lorenz to its first result, in this process, which has run a small program: printed.

python -m benchmarks.gpu.first_call LANES
"""

from __future__ import annotations

import json
import os
import sys
import time

import jax
import jax.numpy as jnp

from benchmarks.compile_time import run_small
from benchmarks.peers.qdtrace_gradients import lorenz_ends

STEPS = 1000


def seconds(lanes: int) -> float:
    """Returns the seconds that the first call takes after the trace."""
    run_small()
    function, rho = lorenz_ends(STEPS), jax.block_until_ready(jnp.linspace(0.0, 21.0, lanes))
    function.lower(rho)
    began = time.perf_counter()
    jax.block_until_ready(function(rho))
    return time.perf_counter() - began


if __name__ == "__main__":
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # the driver's own cache would make a cold call a warm one
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the suite's process holds most of the memory
    print(json.dumps(seconds(int(sys.argv[1]))))
