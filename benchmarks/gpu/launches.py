"""Costs of launches: a call from Python, tasks in loops of XLA, the first call of a process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks import programs
from benchmarks.compile_time import separate
from benchmarks.gpu.loops import called, checked
from benchmarks.gpu.row import Ask, Row
from benchmarks.peers import qdtrace_peer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.bench import Bench

ROOT = Path(__file__).resolve().parents[2]
TASKS = 3
GRAPH = {"xla_gpu_graph_min_graph_size": 1}
WHOLE_LOOP = {
    **GRAPH,
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
}
"""Options of `jax.jit` that let XLA record our calls, and whole loops, as graphs of the device."""


def call(bench: Bench) -> Iterator[Row]:
    """Three tasks on 1024 floats, from Python, beside `x + 1` under `jax.jit`."""
    given = programs.call_inputs(1024)
    ours, theirs = called(qdtrace_peer.three_tasks, given), called(jax.jit(lambda x: x + 1), given)
    compiled = called(jax.jit(qdtrace_peer.three_tasks), given)
    for one in (ours, compiled):
        checked(one, given, programs.call_check)
    mine, other, under = bench.times(ours, theirs, compiled, turns=4)
    yield Row("call of 3 tasks, in a queue", 1e3 * mine.ms, "us", "jax.jit(x + 1)", 1e3 * other.ms, Ask.RATIO, 1.0)
    alone = 1e3 * mine.latency, "us", "jax.jit(x + 1)", 1e3 * other.latency
    yield Row("call of 3 tasks, alone", *alone, Ask.RATIO, 1.0)
    yield Row("call of 3 tasks under jax.jit", 1e3 * under.ms, "us", note=f"alone {1e3 * under.latency:.3g} us")


@qd.jit
def three_in_place(x: Any) -> Any:
    """Three tasks, each a kernel, of which the last writes where the first has read."""
    n = x.shape[0]
    a, b = qd.empty_like(x), qd.empty_like(x)
    for i in qd.range(n):
        a[i] = x[i] * 2.0
    for i in qd.range(n):
        b[i] = a[(i * 7) % n]
    for i in qd.range(n):
        x[i] = b[(i * 5) % n] * 0.5
    return x


def loops(bench: Bench) -> Iterator[Row]:
    """Tasks of a loop of XLA, by trips that are known and by trips that the call gives."""
    x = np.arange(1024, dtype=np.float32)
    trips, few = bench.size(10_000, 5), bench.size(2000, 5)

    def known(x: Any) -> Any:
        return jax.lax.fori_loop(0, trips, lambda _, x: three_in_place(x), x)

    def dynamic(x: Any, trips: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < trips, lambda s: (s[0] + 1, three_in_place(s[1])), (0, x))[1]

    cases: list[tuple[str, Any, tuple[Any, ...], int, dict[str, Any], float | None]] = [
        ("fori_loop", known, (), trips, {}, None),
        ("fori_loop, recorded", known, (), trips, GRAPH, 2.0),
        ("dynamic while_loop", dynamic, (few,), few, {}, None),
        ("dynamic while_loop, recorded", dynamic, (few,), few, WHOLE_LOOP, 3.5),
    ]
    for name, function, more, count, options, asked in cases:
        gpu = jax.default_backend() == "gpu"
        compiled = jax.jit(function, compiler_options=options if gpu and options else None)
        operands = (jnp.asarray(x), *more)
        want = x[_permuted(count)]
        checked(lambda: compiled(*operands), {}, lambda _, out: _same(out[0], want))  # noqa: B023
        (ours,) = bench.times(lambda: compiled(*operands))  # noqa: B023
        each = 1e3 * ours.ms / count / TASKS
        note = f"{1e3 * ours.ms / count:.3g} us a trip of {TASKS} tasks"
        yield Row(f"task in a {name}", each, "us", ask=Ask.MOST if asked else None, asked=asked, note=note)


def _permuted(count: int) -> Any:
    """Returns the source index of each element after that many trips."""
    return np.arange(1024) * pow(35, count, 1024) % 1024


def _same(got: Any, want: Any) -> str:
    if not np.array_equal(got, want):
        raise programs.WrongResultError("wrong permutation")
    return "exact"


def first_call(bench: Bench) -> Iterator[Row]:
    """Lorenz in new processes: after its trace, with an empty and with a filled artifact cache."""
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(bench.size(2, 1)):
        with tempfile.TemporaryDirectory() as cache:
            for taken in (cold, warm):
                taken.append(separate(ROOT, cache, "benchmarks.gpu.first_call", str(bench.size(1 << 20, 64))))
    for name, times, asked in (("cold", cold, 0.3), ("warm", warm, 0.05)):
        yield Row(f"first call of Lorenz after its trace, {name}", min(times), "s", ask=Ask.MOST, asked=asked)
