"""Reverse mode of loops: Lorenz with known and unknown numbers of steps, ragged rows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks.gpu.loops import checked
from benchmarks.gpu.row import Ask, Row
from benchmarks.gradients import programs
from benchmarks.gradients.arithmetic import lorenz_step
from benchmarks.peers import jax_gradients, qdtrace_gradients
from benchmarks.programs import close, lorenz_inputs, ragged_inputs, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.gpu.bench import Bench
    from benchmarks.gradients.case import Case
    from benchmarks.programs import Arrays, Outputs

STACKS = {100: 64.0, 1000: 640.0, 10000: 1100.0, "unknown": 200.0}
"""Megabytes that stacks may take, by steps."""
ROUGH = {100: (1e-4, 1.0), 1000: (1e-2, 0.95), 10000: (1e-2, 0.8)}
"""Relative error and the part of lanes within it: after many steps f32 leaves the orbits near the border of chaos."""


def reverse(case: Case) -> tuple[Callable[[], Any], str, float]:
    """A call of the reverse mode of a case, words about its memory, and the megabytes that its stacks take."""
    function, given = case.reverse()

    def on_values(*operands: Any) -> Any:
        return function(*jax.tree.map(jnp.asarray, operands, is_leaf=lambda x: isinstance(x, qd.Buffer)))

    kept = qd.jit(on_values).lower(*given).memory_analysis()
    compiled = jax.jit(function).lower(*given).compile()
    analysis: Any = compiled.memory_analysis()
    scratch = getattr(analysis, "temp_size_in_bytes", 0) / 1e6
    words = f"{kept['stack_per_lane']} bytes a lane; temporaries as XLA counts: {scratch:.4g} MB"
    return lambda: compiled(*given), words, kept["stacks"] / 1e6


def memory(name: str, megabytes: float, words: str, steps: Any) -> Row:
    """Returns the row for the memory of a gradient's stacks."""
    return Row(f"{name}: stacks", megabytes, "MB", ask=Ask.MOST, asked=STACKS[steps], note=words)


def lorenz(bench: Bench) -> Iterator[Row]:
    """Adjoints of `rho` for 100, 1000 and 10000 steps."""
    for steps, (rtol, part) in ROUGH.items():
        given = lorenz_inputs(bench.size(1 << 20, 64))
        call, words, megabytes = reverse(qdtrace_gradients.lorenz(steps)(**given))
        checked(call, given, programs.lorenz_check(steps, rtol, part))
        (ours,) = bench.times(call)
        name = f"gradient of Lorenz, {steps} steps"
        by_hand, why = bench.by_hand("stacks", f"grad_{steps}")
        yield Row(name, ours.ms, "ms", "CUDA by hand", by_hand, Ask.RATIO, 0.97, why or ours.words)
        yield memory(name, megabytes, words, steps)
        if steps == 100:
            yield from others(bench, name, ours.ms)


def others(bench: Bench, name: str, ours: float) -> Iterator[Row]:
    """The gradient of 100 steps by JAX and by Quadrants."""
    given = lorenz_inputs(bench.size(1 << 20, 64))
    for words, case, asked in (
        ("state in one array", jax_gradients.lorenz_stacked, 100.0),
        ("state in three", jax_gradients.lorenz, None),
    ):
        function, operands = case(**given).reverse()
        compiled = jax.jit(function)
        checked(lambda: compiled(*operands), given, programs.lorenz_check(100))  # noqa: B023
        (theirs,) = bench.times(lambda: compiled(*operands))  # noqa: B023
        yield Row(f"{name}: JAX, {words}", ours, "ms", "jax.vjp of a scan", theirs.ms, Ask.FASTER, asked)
    other, why = bench.quadrants("quadrants.grad", "gradient_lorenz_small", given, programs.lorenz_check(100))
    yield Row(f"{name}: Quadrants", ours, "ms", "Quadrants", other, Ask.FASTER, 200.0, why)


def each_check(given: Arrays, out: Outputs) -> str:
    """Checks adjoints of lanes with step counts of their own."""
    at = sample(len(given["rho"]), 64)
    rho, end = given["rho"][at] + 1j * programs.TINY, given["end"][at]
    state = [np.ones_like(rho), np.zeros_like(rho), np.zeros_like(rho)]
    for k in range(int(end.max())):
        new = lorenz_step((state[0], state[1], state[2]), rho)
        state = [np.where(k < end, after, before) for after, before in zip(new, state, strict=True)]
    return close(out[0][at], sum(state).imag / programs.TINY, 1e-2, 1e-2, 0.8)  # type: ignore[union-attr]


@functools.cache
def ends(n: int, kind: str) -> Any:
    """Steps of each lane."""
    if kind == "each":
        return np.random.default_rng(1).integers(5000, 10001, n).astype(np.float32)
    return np.full(n, int(kind), np.float32)


def lorenz_while(bench: Bench) -> Iterator[Row]:
    """The same loop as a `while`, whose number of steps nobody knows: 1000, 10000, and from 5000 to 10000 a lane."""
    for kind in ("1000", "10000", "each"):
        rho = lorenz_inputs(bench.size(1 << 20, 64))["rho"]
        given = {"rho": rho, "end": ends(len(rho), kind)}
        call, words, megabytes = reverse(qdtrace_gradients.lorenz_while(**given))
        checked(call, given, each_check if kind == "each" else programs.lorenz_check(int(kind), *ROUGH[int(kind)]))
        (ours,) = bench.times(call)
        name = f"gradient of Lorenz, `while`, {'5000 to 10000' if kind == 'each' else kind} steps"
        by_hand, why = bench.by_hand("stacks", f"while_{kind}")
        yield Row(name, ours.ms, "ms", "CUDA by hand, thinning", by_hand, Ask.RATIO, 1.1, why or ours.words)
        yield memory(name, megabytes, words, "unknown")


def ragged_check(given: Arrays, out: Outputs) -> str:
    """Adjoints of some rows' entries, and of some elements of the vector by all rows that read them."""
    ptr, col = given["ptr"], given["col"]
    w, x = given["w"].astype(np.float64), given["x"].astype(np.float64)
    some = sample(len(x), 64)
    readers = np.flatnonzero(np.isin(col, some))
    rows = np.unique(np.concatenate([sample(len(x), 512), np.searchsorted(ptr, readers, side="right") - 1]))
    w_bar: dict[int, float] = {}
    for i in rows:
        acc, kept = 0.5, list[float]()
        for j in range(ptr[i], ptr[i + 1]):
            kept.append(acc)
            acc = np.sin(acc) + w[j] * x[col[j]]
        bar = 1.0
        for j in range(ptr[i + 1] - 1, ptr[i] - 1, -1):
            w_bar[j] = bar
            bar *= np.cos(kept.pop())
    at = np.array(list(w_bar))
    bars = np.array(list(w_bar.values()))
    # a product of cosines, each off by the error of its state
    close(out[0][at], bars * x[col[at]], 1e-4, 1e-5)
    x_bar = np.bincount(col[at], bars * w[at], len(x))
    return close(out[1][some], x_bar[some], 1e-4, 2e-5)


def ragged(bench: Bench) -> Iterator[Row]:
    """Adjoints of entries and vector of ragged rows."""
    given = bench.shared("ragged", lambda: ragged_inputs(bench.size(1 << 22, 300)))
    call, words, megabytes = reverse(qdtrace_gradients.ragged(**given))
    checked(call, given, ragged_check)
    (ours,) = bench.times(call)
    by_hand, why = bench.by_hand("ragged", "gradient_unrolled")
    name = "gradient of ragged rows"
    yield Row(name, ours.ms, "ms", "CUDA, a thread a row", by_hand, Ask.MOST, 6.5, why or ours.words)
    with qd.options(bounds="unchecked"):
        free, _, _ = reverse(qdtrace_gradients.ragged(**given))
        (unchecked,) = bench.times(free)
    yield Row(f"{name}: indices unchecked", unchecked.ms)
    staged, why = bench.by_hand("ragged", "gradient_staged")
    note = why or f"stacks {megabytes:.4g} MB, {words}"
    yield Row(f"{name}: staged", ours.ms, "ms", "CUDA, staged by warps", staged, note=note)
