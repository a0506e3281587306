"""Equations that touch an element of memory: `load`, `store`, `accum`, `atomic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import ACCUM

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn


def mode_of(eqn: Eqn) -> str:
    """Returns the mode of an access: the operation of an accumulation, else the name of the primitive."""
    return str(eqn.params["op"]) if eqn.primitive is ACCUM else eqn.primitive.name


def first_index(eqn: Eqn) -> int:
    """Returns the position of the first index operand, which follows the reference and the values."""
    values = eqn.primitive.values
    assert values is not None, f"`{eqn.primitive.name}` touches no element"
    return 1 + values + (eqn.params.get("op") == "cas")


def indices_of(eqn: Eqn) -> tuple[Atom, ...]:
    """Returns the index operands of a memory equation."""
    return eqn.invars[first_index(eqn) :]


def values_of(eqn: Eqn) -> tuple[Atom, ...]:
    """Returns the operands that a memory equation stores, accumulates or compares; none for a load."""
    return eqn.invars[1 : first_index(eqn)]
