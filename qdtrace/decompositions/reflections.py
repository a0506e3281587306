"""Householder reflections, by loops over the elements that they change; `each` is one of `linalg.loops`.

A reflection 1 - tau v v^H is kept in column `k` of a packed matrix: `v` is zero above row `top`, one at that row, and
below it what the column holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.decompositions.entries import at, put, real_dtype
from qdtrace.decompositions.linalg import conj, largest_part, squared

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.decompositions.entries import Each


def reduced(each: Each, a: Any, top: Any, k: Any) -> tuple[Any, Any]:
    """Returns (a, tau): column k is a real number at row `top`, with a sign as in LAPACK, and the reflection whose
    adjoint makes it so below."""
    m, alpha, zero = a.shape[0], at(a, top, k), jnp.zeros((), real_dtype(a))
    below = each(top + 1, m, lambda i, x: jnp.maximum(x, largest_part(at(a, i, k))), zero)
    largest = jnp.maximum(below, largest_part(alpha))
    scale = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    rest = each(top + 1, m, lambda i, x: x + squared(at(a, i, k) / scale), jnp.zeros_like(scale))
    # a tail whose squares vanish still turns the sign, as in LAPACK
    alpha, flat = alpha / scale, below / scale == 0
    if jnp.iscomplexobj(alpha):
        flat = flat & (alpha.imag == 0)
    beta = jnp.where(flat, alpha.real, -jnp.copysign(jnp.sqrt(squared(alpha) + rest), alpha.real))
    head = jnp.where(flat, jnp.ones_like(alpha), alpha - beta)
    tau = jnp.where(flat, jnp.zeros_like(alpha), (beta - alpha) / jnp.where(flat, jnp.ones_like(beta), beta))
    a = each(top + 1, m, lambda i, a: put(a, at(a, i, k) / scale / head, i, k), a)
    return put(a, (beta * scale).astype(a.dtype), top, k), tau


def reflect_columns(each: Each, c: Any, first: Any, top: Any, tau: Any, v: Callable[[Any, Any], Any]) -> Any:
    """Returns `c` with its columns from `first` on reflected from the left; `v(c, i)` is entry i below `top`."""
    m, n = c.shape

    def column(j: Any, c: Any) -> Any:
        along = each(top + 1, m, lambda i, x: x + conj(v(c, i)) * at(c, i, j), at(c, top, j)) * tau
        c = put(c, at(c, top, j) - along, top, j)
        return each(top + 1, m, lambda i, c: put(c, at(c, i, j) - v(c, i) * along, i, j), c)

    return each(first, n, column, c)


def reflect_rows(each: Each, c: Any, top: Any, tau: Any, v: Callable[[Any, Any], Any]) -> Any:
    """Returns `c` with all rows reflected from the right."""
    m, n = c.shape

    def row(i: Any, c: Any) -> Any:
        along = each(top + 1, n, lambda j, x: x + at(c, i, j) * v(c, j), at(c, i, top)) * tau
        c = put(c, at(c, i, top) - along, i, top)
        return each(top + 1, n, lambda j, c: put(c, at(c, i, j) - along * conj(v(c, j)), i, j), c)

    return each(0, m, row, c)


def of_column(k: Any, packed: Any = None) -> Callable[[Any, Any], Any]:
    """Returns the entries of the reflection in column k of a packed matrix, or of the matrix that is reflected."""
    return lambda c, i: at(c if packed is None else packed, i, k)
