"""Finds the variables of a jaxpr that depend on others, as `ir.dataflow` does in a graph."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from qdtrace.trace.compat import JaxprEqn, Var
    from qdtrace.trace.jaxprs import AnyJaxpr, Atom

    Mask = Sequence[bool]


def mask_of(atoms: Iterable[Atom], found: Collection[Var]) -> list[bool]:
    """Returns whether each atom is one of the variables `found`, which a literal never is."""
    return [isinstance(atom, compat.Var) and atom in found for atom in atoms]


def dependent(
    jaxpr: AnyJaxpr, given: Iterable[Var], results_of: Callable[[JaxprEqn, Mask], Mask] | None = None
) -> set[Var]:
    """Returns the variables of a jaxpr that depend on those given, which are among them.

    Args:
        jaxpr: the jaxpr; what memory holds is not followed, so it has no markers of loops and buffers.
        given: some of its variables.
        results_of: returns the mask of results of an equation that depend on operands in a mask; None: all do.
    """
    found = set(given)
    for eqn in compat.open_jaxpr(jaxpr).eqns:
        operands = mask_of(eqn.invars, found)
        if any(operands):
            found.update(eqn.outvars if results_of is None else compress(eqn.outvars, results_of(eqn, operands)))
    return found
