"""Times the first call of a program, with an empty and with a filled artifact cache, each in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import qdtrace as qd
from benchmarks.mpm88 import particles, substep

COLD_LIMIT, WARM_LIMIT = 0.5, 0.06
PROCESSES = 5


@dataclass(frozen=True)
class Report:
    """A table, and whether the program ran."""

    text: str
    ran: bool


def measure(root: Path) -> Report:
    """Times a process with an empty cache, one with what that left, and one that only traces; the smallest of several.

    What follows the trace is the difference of two processes.
    """

    def process(cache: str, what: str) -> float:
        return separate(root, cache, "benchmarks.compile_time", what)

    cold, warm, trace, fresh = [], [], [], []
    try:
        for _ in range(PROCESSES):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(process(cache, "call"))
                if not any(Path(cache).rglob("*")):
                    return Report("compile time of mpm88: failed: the artifact cache stayed empty", False)
                warm.append(process(cache, "call"))
                trace.append(process(cache, "trace"))
                fresh.append(process(cache, "fresh"))
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
        return Report(f"compile time of mpm88: failed: {last[0]}", False)
    rest = min(warm) - min(trace)
    lines = [
        f"compile time of mpm88, first call in a new process that has run a small program, smallest of {PROCESSES}",
        f"  cold: trace, import, passes, LLVM, call  {min(cold):.3f} s  at most {COLD_LIMIT} s: "
        + verdict(min(cold), COLD_LIMIT),
        f"  warm cache                               {min(warm):.3f} s",
        f"  trace and import alone                   {min(trace):.3f} s",
        f"  warm cache, after the trace              {rest:.3f} s  at most {WARM_LIMIT} s: "
        + verdict(rest, WARM_LIMIT),
        f"  warm cache, first program of the process {min(fresh):.3f} s  (loads the compiler's modules)",
    ]
    return Report("\n".join(lines), True)


def verdict(value: float, limit: float) -> str:
    """Returns the words for whether a value is within its limit."""
    return "reached" if value <= limit else "NOT reached"


def limited(words: str, value: float, unit: str, limit: float) -> str:
    """Returns a line of a report: a value, its limit, and whether it keeps to it."""
    shown = f"{value:8}" if isinstance(value, int) else f"{value:8.3f}"
    return f"  {words:<72} {shown} {unit}  at most {limit:g}: {verdict(value, limit)}"


def separate(root: Path, cache: str, module: str, *what: str) -> Any:
    """Runs a module of the benchmarks in a process of its own, with that artifact cache; returns what it prints."""
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles all modules anew
    done = subprocess.run(
        [sys.executable, "-m", module, *what],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _add_one(x: Any) -> Any:
    for i in qd.range(x.shape[0]):
        x[i] = x[i] + 1
    return x


def run_small() -> None:
    """Loads the compiler's modules."""
    x = jax.block_until_ready(jax.jit(lambda a: jnp.sin(a) + 1)(jnp.ones(8)))
    jax.block_until_ready(qd.jit(_add_one)(x))


def seconds_of(what: str) -> float:
    """Seconds for the first `trace` or `call` of the fluid step; `fresh`: the call is the first of the process."""
    given = [jax.device_put(a) for a in particles()]
    jax.block_until_ready(jax.jit(lambda a: jnp.sin(a) + 1)(given[0]))
    if what != "fresh":
        jax.block_until_ready(qd.jit(_add_one)(given[3]))
    began = time.perf_counter()
    if what == "trace":
        qd.make_graph(substep)(*given)
    else:
        jax.block_until_ready(qd.jit(substep)(*given))
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(seconds_of(sys.argv[1])))
