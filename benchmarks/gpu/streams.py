"""Work that memory bounds, beside a copy on the device: a chain of loops, a sum, a histogram, sums of beginnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks import programs
from benchmarks.gpu.loops import called, checked
from benchmarks.gpu.row import Ask, Row
from benchmarks.peers import jax_peer, qdtrace_peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.gpu.bench import Bench
    from benchmarks.programs import Arrays, Outputs

FEW, PATIENCE = 1 << 18, 0.5
"""Elements of a first, short call of what may run in one thread, and the seconds that the whole may take after it."""


def floats(bench: Bench) -> Arrays:
    """2^26 of them."""
    return bench.shared("floats", lambda: programs.stream_inputs(bench.size(1 << 26, 1000)))


def copied(bench: Bench, arrays: float) -> tuple[float | None, str]:
    """Returns the milliseconds of a copy by the device for that many arrays of 2^26 floats, read or written."""
    ms, why = bench.by_hand("limits", "copy")
    return None if ms is None else ms * arrays / 2, why


def chain(bench: Bench) -> Iterator[Row]:
    """Eight loops, each into a buffer that the next reads."""
    given = floats(bench)
    call = called(qdtrace_peer.eight_loops, given)
    checked(call, given, programs.chain_check)
    (ours,) = bench.times(call)
    limit, why = copied(bench, 2)
    yield Row("chain of 8", ours.ms, "ms", "a copy", limit, Ask.RATIO, 1.1, why or ours.words)
    by_hand, why = bench.by_hand("limits", "chain")
    yield Row("chain of 8: by hand", ours.ms, "ms", "CUDA by hand", by_hand, note=why)


def total(bench: Bench) -> Iterator[Row]:
    """A sum of all."""
    given = floats(bench)
    yield from reduced(bench, "sum", qdtrace_peer.sum_of_all, jnp.sum, given, programs.sum_check, 1.15)


def histogram(bench: Bench) -> Iterator[Row]:
    """Measures a histogram of 256 bins."""
    given = programs.histogram_inputs(bench.size(1 << 26, 1000))
    check = programs.histogram_check
    yield from reduced(bench, "histogram", qdtrace_peer.counts, jax_peer.counts, given, check, 1.3)


def reduced(
    bench: Bench, name: str, function: Any, peer: Callable[..., Any], given: Arrays, check: Any, asked: float
) -> Iterator[Row]:
    """Work that reads an array once, beside the same in JAX."""
    ours, theirs = called(function, given), called(jax.jit(peer), given)
    checked(ours, given, check)
    mine, other = bench.times(ours, theirs)
    limit, why = copied(bench, 1)
    yield Row(name, mine.ms, "ms", "its bytes at a copy's speed", limit, Ask.RATIO, asked, why or mine.words)
    yield Row(f"{name}: JAX", mine.ms, "ms", "jax.jit", other.ms)


@qd.jit
def beginnings(x: Any) -> Any:
    """The sum of each beginning of an array, by a loop that carries it."""
    out = qd.empty_like(x)
    total = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0], serial=True):
        total[...] += x[i]
        out[i] = total[...]
    return out


def beginnings_check(given: Arrays, out: Outputs) -> str:
    """All of them in double precision."""
    x = given["x"].astype(np.float64)
    # roundings of partial sums: small beside the sum of magnitudes, while a tile that is left out is not
    return programs.close(out[0], np.cumsum(x), 1e-5, 1e-7 * float(np.abs(x).sum()))


def prefix(bench: Bench) -> Iterator[Row]:
    """Sums of beginnings, whose loop is a scan; one thread alone would take minutes, so a short one goes first."""
    given = floats(bench)
    few = {"x": given["x"][:FEW]}
    first = called(beginnings, few)
    checked(first, few, beginnings_check)
    (short,) = bench.times(first)
    whole = 1e-3 * short.ms * len(given["x"]) / len(few["x"])
    if whole > PATIENCE:
        note = f"one thread: {whole:.3g} s for all, by {len(few['x'])} of them"
        yield Row("prefix sum", None, "ms", ask=Ask.RATIO, asked=1.5, note=note)
        return
    ours, theirs = called(beginnings, given), called(jax.jit(jnp.cumsum), given)
    checked(ours, given, beginnings_check)
    mine, other = bench.times(ours, theirs)
    limit, why = copied(bench, 2)
    yield Row("prefix sum", mine.ms, "ms", "its bytes at a copy's speed", limit, Ask.RATIO, 1.5, why or mine.words)
    yield Row("prefix sum: JAX", mine.ms, "ms", "jax.jit(jnp.cumsum)", other.ms)
