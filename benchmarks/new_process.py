"""Times a new process that has only imported JAX and this package: the first call of 64 small tasks, and its gradients.

The caches hold what an earlier process left, so nothing is compiled: what counts is Python, linking and XLA.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import qdtrace as qd
from benchmarks.compile_time import Report, limited, separate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TASKS, POINTS, PROCESSES = 64, 1000, 7
LIMITS = {"forward": (0.25, 0.10), "jit_of_gradient": (0.35, 0.12), "gradient": (0.35, 0.12)}
"""Most seconds of each call: with a trace, and of a function that is called pure."""


def waves(x: Any) -> Any:
    """64 small tasks, each with a value of its own and one of a neighbour."""
    a = x
    for k in range(TASKS):
        b = qd.empty(a.shape, a.dtype)
        for i in qd.range(a.shape[0]):
            b[i] = jnp.sin(a[i] * (1 + 0.01 * k)) + 0.1 * a[(i + k + 1) % a.shape[0]]
        a = b
    return a


def calls(*, pure: bool) -> dict[str, Callable[[Any], Any]]:
    """Returns the first calls by name."""
    function = qd.jit(waves, pure=pure)

    def total(x: Any) -> Any:
        return function(x).sum()

    return {"forward": function, "jit_of_gradient": jax.jit(jax.grad(total)), "gradient": jax.grad(total)}


def first_call(kind: str, *, pure: bool) -> dict[str, float]:
    """Returns processor seconds of a first call, and how many functions were traced."""
    x = jax.block_until_ready(jnp.linspace(0, 1, POINTS))
    began = time.process_time()
    jax.block_until_ready(calls(pure=pure)[kind](x))
    return {"seconds": time.process_time() - began, "traces": qd.stats().traces}


def measure(root: Path) -> Report:
    """Times each call in new processes with filled caches, the smallest of several."""
    lines = [f"new process, filled caches, first call of {TASKS} small tasks: processor s, smallest of {PROCESSES}"]
    try:
        for (kind, limits), k in itertools.product(LIMITS.items(), (0, 1)):
            what = "benchmarks.new_process", kind, ("traced", "pure")[k]
            with tempfile.TemporaryDirectory() as cache:
                separate(root, cache, *what)
                found = [separate(root, cache, *what) for _ in range(PROCESSES)]
            seconds = min(one["seconds"] for one in found)
            lines += [limited(f"{kind}, {what[2]}: {found[-1]['traces']} functions traced", seconds, "s", limits[k])]
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
        return Report("\n".join([*lines, f"  failed: {last[0]}"]), False)
    return Report("\n".join(lines), True)


if __name__ == "__main__":
    print(json.dumps(first_call(sys.argv[1], pure=sys.argv[2] == "pure")))
