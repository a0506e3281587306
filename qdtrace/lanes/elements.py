"""Lanes whose work is in elements between their matrices: they stay in the loop over lanes, with their matrices.

For the whole batch each operation between two products is a call of XLA's, or a part of one, which goes through memory.
In lanes all of them are one task, whose arrays lie side by side, and a matrix more or less is no matter
(docs/design/0080).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.trace import compat
from qdtrace.trace.products import executed, matrix_multiplications

if TYPE_CHECKING:
    from collections.abc import Collection

SPECTRAL = frozenset({"eig", "eigh", "hessenberg", "schur", "svd", "tridiagonal"})
MOST_PER_ELEMENT = 3.0
"""The most multiplications of matrices for each element that other operations make."""
LEAST_PER_GIVEN = 50
"""The fewest of these elements for each element of an argument: lanes gather arguments, and scatter their adjoints."""
LARGEST = 1 << 17
"""The most elements of one array: a larger one of all lanes of a vector leaves the caches."""


def is_of_elements(jaxpr: Any, varies: Collection[Any]) -> bool:
    """Returns whether a CPU has more to do for the elements between a lane's matrices than for the matrices.

    Args:
        jaxpr: the jaxpr of one element.
        varies: those of its variables that differ from lane to lane.
    """
    opened = compat.open_jaxpr(jaxpr)
    every = list(compat.all_eqns(opened.eqns))
    if any(e.primitive.name in SPECTRAL or any(v.aval.size > LARGEST for v in e.outvars) for e in every):
        return False
    of_matrices = of_elements = 0
    for eqn, times in executed(opened.eqns):
        of_this = matrix_multiplications(eqn)
        of_matrices += times * of_this
        of_elements += 0 if of_this else times * sum(v.aval.size for v in eqn.outvars)
    given = sum(v.aval.size for v in opened.invars if v in varies)
    return of_matrices <= MOST_PER_ELEMENT * of_elements and of_elements >= LEAST_PER_GIVEN * given
