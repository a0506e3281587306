"""48 small loops whose lanes leave at different times, in several trees of this package in turn.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.divergent /tmp/before .

Six bodies of one to twenty operations, as a map and as a sum, four distributions of trip counts; times are of the
processor, of one thread, the least of all rounds, in microseconds a call of 2**14 lanes. Trees take turns, so what else
the machine does meets all of them.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LANES = 1 << 14
ROUNDS, CALLS = 6, 8
KINDS = ("mul", "poly", "idx", "div", "sin", "load")
TRIPS = ("uniform", "geometric", "same", "tail")
ROWS = [(kind, form, trips) for kind in KINDS for form in ("map", "sum") for trips in TRIPS]


def main(trees: list[str]) -> None:
    """Prints a table: the times of the first tree and the ratios of the others."""
    command = [sys.executable, os.path.abspath(__file__), "--work"]
    workers: list[subprocess.Popen[str]] = []
    for tree in trees:
        env = {**os.environ, "PYTHONPATH": os.path.abspath(tree), "JAX_PLATFORMS": "cpu", "QD_OFFLINE_CACHE": "0"}
        pipe = subprocess.PIPE
        workers.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd="/"))
    best = {(row, k): math.inf for row in ROWS for k in range(len(trees))}
    for turn in range(ROUNDS):
        for row in ROWS:
            for k in range(len(trees))[:: 1 if turn % 2 else -1]:
                best[row, k] = min(best[row, k], _ask(workers[k], row))
    for row in ROWS:
        ratios = [f"{best[row, k] / best[row, 0]:8.3f}" for k in range(1, len(trees))]
        print(f"{' '.join(row):20}{best[row, 0]:8.1f}", *ratios)
    for k in range(1, len(trees)):
        logs = [math.log(best[row, k] / best[row, 0]) for row in ROWS]
        print(f"{trees[k]}: mean {math.exp(sum(logs) / len(logs)):.3f}, most {math.exp(max(logs)):.3f}")
    for worker in workers:
        worker.communicate()


def _ask(worker: subprocess.Popen[str], row: tuple[str, ...]) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(*row, file=worker.stdin, flush=True)
    return json.loads(worker.stdout.readline())


def _work() -> None:
    """Answers each row that it reads with the least time of a call."""
    import jax.numpy as jnp
    import numpy as np

    import qdtrace as qd

    rng = np.random.default_rng(7)
    trips = {
        "uniform": rng.integers(1, 21, LANES),
        "geometric": rng.geometric(1 / 16, LANES),
        "same": np.full(LANES, 20),
        "tail": np.where(rng.random(LANES) < 1 / 256, 400, rng.integers(1, 5, LANES)),
    }
    x = jnp.asarray(rng.uniform(0.2, 0.9, LANES), jnp.float32)
    table = jnp.asarray(rng.uniform(0.2, 0.9, 512), jnp.float32)
    functions: dict[tuple[str, str], Any] = {}
    for line in sys.stdin:
        kind, form, spread = line.split()
        if (kind, form) not in functions:
            functions[kind, form] = qd.jit(_program(kind, form), options={"num_threads": 1})
        call, counts = functions[kind, form], jnp.asarray(trips[spread], jnp.int32)
        result = call(x, counts, table).block_until_ready()
        times: list[int] = []
        for _ in range(CALLS):
            begin = time.process_time_ns()
            for _ in range(CALLS):
                result = call(x, counts, table)
            result.block_until_ready()
            times.append(time.process_time_ns() - begin)
        print(json.dumps(min(times) / CALLS / 1000), flush=True)


def _program(kind: str, form: str) -> Callable[..., Any]:
    import jax.numpy as jnp

    import qdtrace as qd

    steps: dict[str, Callable[..., Any]] = {
        "mul": lambda v, k, t: v * 0.999,
        "poly": lambda v, k, t: ((v * 0.1 + 0.2) * v + 0.3) * v + 0.4,
        "idx": lambda v, k, t: v * 0.9 + k.astype(v.dtype),
        "div": lambda v, k, t: 1.0 / (v + 1.0),
        "sin": lambda v, k, t: jnp.sin(v),
        "load": lambda v, k, t: v * 0.5 + t[k],
    }
    step = steps[kind]

    def run(first: Any, limit: Any, table: Any) -> Any:
        v, k = qd.local(first), qd.local(jnp.int32(0))
        for _ in qd.while_(lambda: k.value < limit):
            v.value = step(v.value, k.value, table)
            k.value = k.value + 1
        return v.value

    def mapped(x: Any, n: Any, table: Any) -> Any:
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = run(x[i], n[i], table)
        return out

    def summed(x: Any, n: Any, table: Any) -> Any:
        out = qd.zeros((1,), x.dtype)
        for i in qd.range(x.shape[0]):
            out[0] += run(x[i], n[i], table)
        return out

    return mapped if form == "map" else summed


if __name__ == "__main__":
    _work() if sys.argv[1:] == ["--work"] else main(sys.argv[1:])
