"""Equations that touch an element of memory: `load`, `store`, `accum`, `atomic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import PRIMITIVES, WRITES

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn

MEMORY = frozenset(name for name, p in PRIMITIVES.items() if p.values is not None)
"""Names of the primitives that touch an element of a reference."""
WRITERS = frozenset(name for name in MEMORY if not WRITES.isdisjoint(PRIMITIVES[name].effects))
"""Those that change it."""
READERS = MEMORY - {"store"}
"""Those whose effect depends on it."""


def first_index(eqn: Eqn) -> int:
    """Position of the first index operand; behind the reference and the values."""
    values = eqn.primitive.values
    assert values is not None, f"`{eqn.primitive.name}` touches no element"
    return 1 + values + (eqn.params.get("op") == "cas")


def indices_of(eqn: Eqn) -> tuple[Atom, ...]:
    """The index operands of a memory equation."""
    return eqn.invars[first_index(eqn) :]


def values_of(eqn: Eqn) -> tuple[Atom, ...]:
    """What a memory equation stores, accumulates, compares."""
    return eqn.invars[1 : first_index(eqn)]
