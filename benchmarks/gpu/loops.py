"""Loops of a lane, of known and unknown length: Lorenz, Mandelbrot, Kepler, ragged rows, van der Pol's oscillator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks import constants as c
from benchmarks import lanes, programs
from benchmarks.gpu.row import Ask, Row
from benchmarks.peers import qdtrace_peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.gpu.bench import Bench
    from benchmarks.programs import Arrays, Outputs

SETS = 8
"""Calls with operands of their own under one `jax.jit`, for work that is shorter than the dispatch of a call."""
SPEEDS = {1 << 16: 80.0, 1 << 20: 9.0, 1 << 22: 6.5}
"""Times faster than `jax.vmap`, by lanes."""
FEWEST, MOST = 350, 2000


def checked(call: Callable[[], Any], given: Arrays, check: Callable[[Arrays, Outputs], str]) -> None:
    """Raises WrongResultError unless a call gives what it should."""
    check(given, tuple(np.asarray(x) for x in jax.tree.leaves(call())))


def called(function: Any, given: Mapping[str, Any], names: tuple[str, ...] = ()) -> Callable[[], Any]:
    """A call with these arrays on the device."""
    operands = [jnp.asarray(given[name]) for name in names or given]
    return lambda: function(*operands)


def several(function: Any, given: Mapping[str, Any]) -> Callable[[], Any]:
    """`SETS` calls in one, each with operands of its own."""
    sets = [[jnp.array(a) for a in given.values()] for _ in range(SETS)]
    compiled = jax.jit(lambda sets: [function(*operands) for operands in sets])
    return lambda: compiled(sets)


def beside_hand(
    bench: Bench, name: str, function: Any, given: Arrays, check: Any, peer: tuple[str, str], asked: float
) -> Row:
    """A row beside a program in CUDA."""
    call = called(function, given)
    checked(call, given, check)
    (ours,) = bench.times(call)
    theirs, why = bench.by_hand(*peer)
    return Row(name, ours.ms, "ms", "CUDA by hand", theirs, Ask.RATIO, asked, why or ours.words)


def lorenz(bench: Bench) -> Iterator[Row]:
    """Measures 2^20 lanes of 1000 Lorenz steps."""
    given = programs.lorenz_inputs(bench.size(1 << 20, 64))
    yield beside_hand(
        bench, "Lorenz", qd.vmap(lanes.lorenz), given, programs.lorenz_check, ("limits", "lorenz"), 1.0
    )


def mandelbrot(bench: Bench) -> Iterator[Row]:
    """Measures the Mandelbrot set on 4096^2 pixels."""
    given = programs.mandelbrot_inputs(bench.size(4096, 24))
    yield beside_hand(
        bench,
        "Mandelbrot",
        qdtrace_peer.mandelbrot_image,
        given,
        programs.mandelbrot_check,
        ("limits", "mandelbrot"),
        1.0,
    )


def kepler(bench: Bench) -> Iterator[Row]:
    """Beside CUDA with precise and with fast sine, and `jax.vmap`."""
    for full, faster in SPEEDS.items():
        n = bench.size(full, full >> 12)
        given = programs.kepler_inputs(n)
        ours, theirs = qd.vmap(lanes.kepler), jax.jit(jax.vmap(lanes.kepler))
        checked(called(ours, given), given, programs.kepler_check)
        checked(called(theirs, given), given, programs.kepler_check)
        one, many, jax_times = bench.times(called(ours, given), several(ours, given), called(theirs, given))
        ms = min(one.ms, many.ms / SETS)
        note = f"{SETS} calls under jit; {one.ms:.3g} ms each when called from Python, alone {one.latency:.3g}"
        by_hand, why = bench.by_hand("escape", f"kepler_{full}")
        at_most = 0.9 if full == 1 << 20 else 1.3
        yield Row(f"Kepler, {n} lanes", ms, "ms", "CUDA, precise", by_hand, Ask.RATIO, at_most, why or note)
        fast, why = bench.by_hand("escape", f"kepler_fast_{full}")
        yield Row(f"Kepler, {n} lanes: fast sine", ms, "ms", "CUDA, __sinf", fast, note=why)
        yield Row(f"Kepler, {n} lanes: vmap", ms, "ms", "jax.vmap", jax_times.ms, Ask.FASTER, faster)


def oscillator_inputs(n: int) -> dict[str, Any]:
    """Starts and trip counts in no order."""
    rng = np.random.default_rng(0)
    return {
        "start": rng.uniform(0.5, 2.5, n).astype(np.float32),
        "trips": rng.integers(FEWEST, MOST + 1, n).astype(np.int32),
    }


def oscillator_check(given: Arrays, out: Outputs) -> str:
    """A sample in double precision, all lanes step by step, those that have ended keep their value."""
    at = programs.sample(len(given["start"]), 256)
    x, trips, h = given["start"][at].astype(np.float64), given["trips"][at], c.OSCILLATOR_DT
    v = np.zeros_like(x)

    def slope(x: Any, v: Any) -> tuple[Any, Any]:
        return v, (1 - x * x) * v - x

    for k in range(int(trips.max())):
        a = slope(x, v)
        b = slope(x + 0.5 * h * a[0], v + 0.5 * h * a[1])
        d = slope(x + 0.5 * h * b[0], v + 0.5 * h * b[1])
        e = slope(x + h * d[0], v + h * d[1])
        new = (s + h / 6 * (p + 2 * q + 2 * r + t) for s, p, q, r, t in zip((x, v), a, b, d, e, strict=True))
        x, v = (np.where(k < trips, after, before) for after, before in zip(new, (x, v), strict=True))
    # on the limit cycle roundings move the phase only; x changes fastest where v is 2.7
    return programs.close(out[0][at], x, 0, 2e-3)


def oscillator(bench: Bench) -> Iterator[Row]:
    """350 to 2000 steps in no order."""
    for full, faster in SPEEDS.items():
        n = bench.size(full, full >> 12)
        given = oscillator_inputs(n)
        ours, theirs = called(qd.vmap(lanes.oscillator), given), called(jax.jit(jax.vmap(lanes.oscillator)), given)
        checked(ours, given, oscillator_check)
        checked(theirs, given, oscillator_check)
        mine, other = bench.times(ours, theirs)
        by_hand, why = bench.by_hand("escape", f"oscillator_{full}")
        name = f"oscillator, {n} lanes x {FEWEST} to {MOST} steps"
        yield Row(name, mine.ms, "ms", "CUDA by hand", by_hand, Ask.RATIO, 1.3, why or mine.words)
        yield Row(f"{name}: vmap", mine.ms, "ms", "jax.vmap", other.ms, Ask.FASTER, faster)


def ragged(bench: Bench) -> Iterator[Row]:
    """Rows of a sparse matrix, mean length 16."""
    given = bench.shared("ragged", lambda: programs.ragged_inputs(bench.size(1 << 22, 300)))
    call = called(qdtrace_peer.ragged_rows, given)
    checked(call, given, programs.ragged_check)
    (ours,) = bench.times(call)
    by_hand, why = bench.by_hand("ragged", "rows_plain")
    yield Row("ragged rows", ours.ms, "ms", "CUDA, a thread a row", by_hand, Ask.MOST, 0.75, why or ours.words)
    with qd.options(bounds="unchecked"):
        (unchecked,) = bench.times(call)
    yield Row("ragged rows: indices unchecked", unchecked.ms)
