"""Times the first call of a gradient beside that of its primal, each in a new process with an empty cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks.compile_time import Report, limited, run_small, separate
from benchmarks.large_functions import arguments, heavy
from benchmarks.mpm88 import particles, substep
from benchmarks.peers.qdtrace_gradients import lorenz_ends

if TYPE_CHECKING:
    from pathlib import Path

PROCESSES = 3
RATIO_LIMIT, HEAVY_LIMIT, HEAVY_LOOPS = 4.0, 3.0, 16


def programs() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Functions with their arguments."""
    return {
        "lorenz": (lorenz_ends(100), (jnp.asarray(np.linspace(0, 21, 4096), jnp.float32),)),
        "mpm": (qd.jit(substep), tuple(map(jnp.asarray, particles()))),
        "heavy": (qd.jit(heavy(HEAVY_LOOPS)), arguments("heavy")),
    }


def first_call(name: str, what: str) -> float:
    """Seconds to the first result of a `primal` or a `gradient`, in a process that has run small ones."""
    run_small()
    jax.block_until_ready(jax.jit(jax.grad(lambda x: qd.vmap(jnp.sin)(x).sum()))(jnp.ones(8)))
    function, given = programs()[name]
    bars = jax.tree.map(lambda s: np.ones(s.shape, s.dtype), jax.eval_shape(function, *given))
    jax.clear_caches()
    jax.block_until_ready((bars, given))
    began = time.perf_counter()
    if what == "primal":
        jax.block_until_ready(jax.jit(function)(*given))
    else:
        jax.block_until_ready(jax.jit(lambda bars, *args: jax.vjp(function, *args)[1](bars))(bars, *given))
    return time.perf_counter() - began


def measure(root: Path) -> Report:
    """The smallest of several processes, primal and gradient in turn."""
    lines = [f"first call of gradients in a new process that has run small ones, smallest of {PROCESSES}"]
    try:
        for name in programs():
            times: dict[str, list[float]] = {"primal": [], "gradient": []}
            for _ in range(PROCESSES):
                for what, taken in times.items():
                    with tempfile.TemporaryDirectory() as cache:
                        taken.append(separate(root, cache, "benchmarks.gradients.compile_time", name, what))
            primal, gradient = (min(taken) for taken in times.values())
            words = f"{name}: gradient {gradient:.3f} s, primal {primal:.3f} s"
            lines.append(limited(words, gradient / primal, "times", RATIO_LIMIT))
            if name == "heavy":
                lines.append(limited(f"{HEAVY_LOOPS} heavy loops in reverse", gradient, "s", HEAVY_LIMIT))
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
        return Report("\n".join([*lines, f"  failed: {last[0][:160]}"]), False)
    return Report("\n".join(lines), True)


if __name__ == "__main__":
    print(json.dumps(first_call(*sys.argv[1:])))
