"""Counts the multiplications of matrices: of an equation, and of all equations of a task."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from jax import lax
from jax.lax import linalg

from qdtrace.trace import compat
from qdtrace.trace.markers import for_p, while_p

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.trace.compat import JaxprEqn

FACTORISATIONS = frozenset({
    "cholesky", "geqrf", "householder_product", "lu", "ormqr", "triangular_solve", "tridiagonal_solve",
})  # fmt: skip
SWEPT = frozenset({"eig", "eigh", "svd"})
"""Decompositions that turn a matrix until it is diagonal."""
SWEEPS = 8
"""The number of times that they go through it."""
SWEPT_LEAST = 1.5
"""The least elements of such a matrix, in those of others. With what is made of it in memory a call takes 1.17 of the
time for 70 elements, 1.04 for 81 and 0.98 for 100, and the first call of the last one 0.7."""
UNKNOWN_TRIPS = 16
"""Iterations that a loop of unknown trip count is taken to have."""


def is_loop(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is a loop of JAX or of this package."""
    return eqn.primitive in (lax.scan_p, lax.while_p, for_p, while_p)


def trips_of(eqn: JaxprEqn) -> int:
    """Returns how often the jaxprs inside of an equation run, or a guess."""
    return eqn.params.get("length", UNKNOWN_TRIPS if is_loop(eqn) else 1)


def multiplications(eqn: JaxprEqn) -> int:
    """Returns the multiplications of a product."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return eqn.outvars[0].aval.size * prod(eqn.invars[0].aval.shape[k] for k in contracted)


def matrix_multiplications(eqn: JaxprEqn) -> int:
    """Returns the multiplications of one product, convolution, factorisation or solve; 0 for any other equation."""
    if eqn.primitive is lax.dot_general_p:
        return multiplications(eqn)
    if eqn.primitive is lax.conv_general_dilated_p:
        return eqn.outvars[0].aval.size * prod(eqn.invars[1].aval.shape[1:])
    if eqn.primitive.name not in FACTORISATIONS:
        return 0
    factor = eqn.invars[0].aval
    side = min(factor.shape[-2:], default=0)
    return (eqn.outvars[0].aval.size if eqn.primitive is linalg.triangular_solve_p else factor.size) * side


def executed(eqns: Iterable[JaxprEqn], times: int = 1) -> Iterator[tuple[JaxprEqn, int]]:
    """Yields each equation that holds no jaxpr, those of loops and calls too, with how often it runs, or a guess."""
    for eqn in eqns:
        found = compat.inner_jaxprs(eqn)
        if not found:
            yield eqn, times
        for inner in found:
            yield from executed(compat.open_jaxpr(inner).eqns, times * trips_of(eqn))


def matrix_work(items: Iterable[JaxprEqn], least: int) -> int:
    """Returns the multiplications of the products and factorisations of arrays of more than `least` elements.

    Args:
        items: equations and regions, whose loops count as often as they run.
        least: the number of elements.
    """
    total = 0
    for eqn, times in executed(items):
        if eqn.primitive is lax.dot_general_p and max(v.aval.size for v in eqn.invars) > least:
            total += times * multiplications(eqn)
        elif eqn.primitive.name in FACTORISATIONS and eqn.invars[0].aval.size > least:
            total += times * eqn.invars[0].aval.size * min(eqn.invars[0].aval.shape[-2:], default=0)
        elif eqn.primitive.name in SWEPT and eqn.invars[0].aval.size >= SWEPT_LEAST * least:
            total += times * SWEEPS * eqn.invars[0].aval.size * min(eqn.invars[0].aval.shape[-2:])
    return total
