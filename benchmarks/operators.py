"""Solvers of JAX and Lineax over a matrix-free operator, beside JAX's sparse matrix: `python -m benchmarks.operators`.

The operator is convection and diffusion on a grid, five coefficients a node, which are its entries: nothing is
symmetric and nothing constant. The peer is the same matrix as `jax.experimental.sparse.BCSR`. JAX's solvers make a
given number of iterations, Lineax's as many as a tolerance asks for; a gradient is that of a sum of squares of the
solution by all entries and the right side.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.experimental.sparse import BCSR
from jax.scipy.sparse.linalg import bicgstab, gmres

import qdtrace as qd

if TYPE_CHECKING:
    from collections.abc import Callable

ITERATIONS = 20
"""Iterations of `bicgstab`; vectors of one restart of `gmres`."""
MOST_RATIO = 0.6
"""At most so many times the peer's time."""
MOST_VALUES = 2.5
"""At most so many values' time for a value and gradient."""


@qd.jit
def apply(entries: Any, u: Any) -> Any:
    """The operator: entries are of the node itself and its neighbours in front, behind, left and right."""
    n, m = u.shape
    out = qd.empty_like(u)
    for i, j in qd.ndrange(n, m):
        total = entries[0, i, j] * u[i, j]
        total += jnp.where(i > 0, entries[1, i, j] * u[jnp.maximum(i - 1, 0), j], 0.0)
        total += jnp.where(i < n - 1, entries[2, i, j] * u[jnp.minimum(i + 1, n - 1), j], 0.0)
        total += jnp.where(j > 0, entries[3, i, j] * u[i, jnp.maximum(j - 1, 0)], 0.0)
        total += jnp.where(j < m - 1, entries[4, i, j] * u[i, jnp.minimum(j + 1, m - 1)], 0.0)
        out[i, j] = total
    return out


def inputs(n: int) -> tuple[Any, Any]:
    """Entries of upwind differences for a wind that turns, and a right side."""
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(-1, 1, n), np.linspace(-1, 1, n), indexing="ij")
    wind = np.stack([-y, x]) * 2
    sides = [1 + np.maximum(s * w, 0) for w in wind for s in (1, -1)]
    entries = np.stack([1.0 + sum(sides) + 0.1 * rng.random((n, n)), *(-s for s in sides)])
    return jnp.asarray(entries, jnp.float32), jnp.asarray(rng.normal(size=(n, n)), jnp.float32)


def structure(n: int) -> tuple[Any, Any, Any]:
    """Where the entries of the matrix come from, and its columns and rows."""
    numbers = np.arange(n * n).reshape(n, n)
    shifts = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
    i, j = np.indices((n, n))
    there = np.stack([((i + a >= 0) & (i + a < n) & (j + b >= 0) & (j + b < n)) for a, b in shifts], -1)
    columns = np.stack([numbers[(i + a) % n, (j + b) % n] for a, b in shifts], -1)
    order = np.argsort(np.where(there, columns, n * n), -1)  # columns of a row ascend
    kept = np.take_along_axis(there, order, -1)
    where = np.take_along_axis(np.arange(5)[None, None] * n * n + numbers[..., None] + 0 * columns, order, -1)[kept]
    first = np.concatenate([[0], np.cumsum(there.sum(-1).ravel())])
    return jnp.asarray(where), jnp.asarray(np.take_along_axis(columns, order, -1)[kept]), jnp.asarray(first)


def with_lineax(apply: Callable[..., Any], b: Any) -> Any:
    """Lineax's GMRES until the residual is small."""
    operator = lx.FunctionLinearOperator(apply, jax.eval_shape(lambda: b))
    return lx.linear_solve(operator, b, lx.GMRES(1e-4, 1e-4, restart=ITERATIONS)).value


SOLVERS: dict[str, Any] = {
    "bicgstab": lambda apply, b: bicgstab(apply, b, tol=0.0, maxiter=ITERATIONS)[0],
    "gmres": lambda apply, b: gmres(apply, b, tol=0.0, restart=ITERATIONS, maxiter=1)[0],
    "lineax": with_lineax,
}


def ours(_: Any, entries: Any, u: Any) -> Any:
    """The operator by its loops; a matrix needs to be told where its entries are."""
    return apply(entries, u)


def by_matrix(where: tuple[Any, Any, Any], entries: Any, u: Any) -> Any:
    """The operator as a matrix of JAX."""
    numbers, columns, first = where
    matrix = BCSR((entries.ravel()[numbers], columns, first), shape=(u.size, u.size))
    return (matrix @ u.ravel()).reshape(u.shape)


def transposed(f: Any, where: Any, entries: Any, u: Any) -> Any:
    """The transpose of an operator times a vector."""
    return jax.linear_transpose(partial(f, where, entries), u)(u)[0]


def solved(solver: Any, f: Any, where: Any, entries: Any, b: Any) -> Any:
    """The solution for a right side."""
    return solver(partial(f, where, entries), b)


def graded(run: Any, where: Any, entries: Any, b: Any) -> Any:
    """Value and gradient of a sum of squares of a solution, by all entries and the right side."""
    return jax.value_and_grad(lambda e, b: (run(where, e, b) ** 2).sum(), (0, 1))(entries, b)


def works() -> dict[str, list[Any]]:
    """By name: ours and the peer's function of the matrix' structure, entries and a vector, for value and gradient."""
    found: dict[str, list[Any]] = {"product": [ours, by_matrix]}
    found["transpose"] = [partial(transposed, f) for f in (ours, by_matrix)]
    for name, solver in SOLVERS.items():
        pair = [partial(solved, solver, f) for f in (ours, by_matrix)]
        found[name] = [*pair, *(partial(graded, run) for run in pair)]
    return found


def timed(functions: list[Any], operands: tuple[Any, ...], seconds: float) -> list[float]:
    """The smallest time of each function, called in turns."""
    best = [np.inf] * len(functions)
    stop = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < stop:
        for k, f in enumerate(functions):
            begin = time.perf_counter()
            jax.block_until_ready(f(*operands))
            best[k] = min(best[k], time.perf_counter() - begin)
        rounds += 1
    return best


def main() -> None:
    """Prints a line for each work: times in milliseconds and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="works, of: product, transpose, bicgstab, gmres, lineax")
    parser.add_argument("--side", type=int, default=1000, help="nodes along a side of the grid")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for each work")
    asked = parser.parse_args()
    operands = (structure(asked.side), *inputs(asked.side))
    print(f"{asked.side**2} rows on {jax.devices()[0].device_kind}, jax {jax.__version__}, smallest times in ms")
    for name, functions in works().items():
        if asked.names and name not in asked.names:
            continue
        compiled = [jax.jit(f) for f in functions]
        outs = [jax.tree.leaves(f(*operands)) for f in compiled]
        for k in range(0, len(outs), 2):
            for a, b in zip(outs[k], outs[k + 1], strict=True):
                error = float(jnp.abs(a - b).max() / jnp.abs(b).max())
                assert error < 2e-3, f"{name}: differs by {error}"
        first, second, *gradients = (1e3 * t for t in timed(compiled, operands, asked.seconds))
        text = f"{name:10} {first:9.2f} BCSR {second:9.2f} ratio {first / second:.2f} (at most {MOST_RATIO})"
        if gradients:
            text += f"; value and gradient {gradients[0]:9.2f} BCSR {gradients[1]:9.2f}"
            text += f" ratio {gradients[0] / gradients[1]:.2f}"
            text += f"; {gradients[0] / first:.2f} values (at most {MOST_VALUES})"
        print(text, flush=True)


if __name__ == "__main__":
    main()
