"""The programs that are timed, by their functions and shapes of arguments. Nothing is computed of these."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import qdtrace as qd
from benchmarks import lanes, large_functions, mpm88
from benchmarks.gpu import launches, lbm, streams
from benchmarks.gradients import links
from benchmarks.peers import qdtrace_gradients, qdtrace_peer

F32, I32 = jnp.float32, jnp.int32


def _of(*shapes: Any, dtype: Any = F32) -> tuple[Any, ...]:
    return tuple(jax.ShapeDtypeStruct(s, dtype) for s in shapes)


def _in_place(f: Callable[[Any], Any]) -> Any:
    def every(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = f(x[i])
        return x

    return qd.jit(every, donate_argnums=0)


def _trips(x: Any) -> Any:
    """Tasks inside a loop of XLA."""
    return jax.lax.fori_loop(0, 100, lambda _, x: launches.three_in_place(x), x)


WALKS = qdtrace_gradients.robot_walks, *_of((256, links.STEPS, links.LINKS))
"""The function of the gradient `links` and its arguments. The code of its reverse mode alone would take as long as that
of all others."""


def functions() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Name, function and arguments of each."""
    n, rows, entries = 1 << 18, 1 << 16, 1 << 20
    ragged = (*_of((rows + 1,), (entries,), dtype=I32), *_of((entries,), (rows,)))
    particles = _of((8192, 2), (8192, 2), (8192, 2, 2), (8192,))
    springs = (*_of((n, 2), (n, 2)), *_of((2 * n, 2), dtype=I32), *_of((2 * n,), ()))
    yield "lorenz", qd.vmap(lanes.lorenz), _of((n,))
    yield "lorenz_100", qdtrace_gradients.lorenz_ends(100), _of((n,))
    yield "lorenz_until", qdtrace_gradients.lorenz_until, _of((n,), ())
    yield "mandelbrot", qdtrace_peer.mandelbrot_image, _of((1024,), (1024,))
    yield "kepler", qd.vmap(lanes.kepler), _of((n,), (n,))
    yield "square_roots", qdtrace_gradients.square_roots, _of((n,))
    yield "ragged", qdtrace_peer.ragged_rows, ragged
    yield "csr", qdtrace_gradients.csr_product, ragged
    yield "nearest", qdtrace_peer.nearest_points, _of((n, 3), (4096, 3))
    yield "sin", _in_place(jnp.sin), _of((n,))
    yield "exp", _in_place(jnp.exp), _of((n,))
    yield "sum", qdtrace_peer.sum_of_all, _of((n,))
    yield "histogram", qdtrace_peer.counts, _of((n,), dtype=I32)
    yield "chain", qdtrace_peer.eight_loops, _of((n,))
    yield "springs", qdtrace_peer.spring_step, springs
    yield "call", qdtrace_peer.three_tasks, _of((1024,))
    yield "batch", jax.vmap(qd.jit(qdtrace_peer._smoothed)), _of((1024, 128))
    yield "mpm", qd.jit(mpm88.substep), particles
    yield "oscillator", qd.vmap(lanes.oscillator), (*_of((n,)), *_of((n,), dtype=I32))
    yield "loops", jax.jit(_trips), _of((1024,))
    yield "prefix", streams.beginnings, _of((n,))
    yield "lattice", lbm.step, _of((19, 32, 32, 32), ())
    yield "heavy", qd.jit(large_functions.heavy(2)), large_functions.arguments("heavy")
    yield "stages", qd.jit(large_functions.stages(6)), large_functions.arguments("stages")
    yield "mixed", qd.jit(large_functions.stages(6, mixed=True)), large_functions.arguments("stages")
