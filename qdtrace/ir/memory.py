"""Equations that touch an element of memory: `load`, `store`, `accum`, `atomic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import ACCUM, LOAD
from qdtrace.ir.program import ref_type
from qdtrace.ir.walk import walk_all, walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.ir.program import Atom, Eqn, Task, Var

LARGE = 1 << 16
"""Bytes of the smallest array whose copy is worth saving: less is copied at once."""


def is_large(ref: Var) -> bool:
    """Returns whether a copy of an array is worth saving."""
    return ref_type(ref).nbytes >= LARGE


def reference(eqn: Eqn) -> Var:
    """Returns the reference that a memory equation accesses."""
    return eqn.invars[0]  # type: ignore[return-value]


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


def touched(eqns: Iterable[Eqn]) -> Iterator[Var]:
    """Yields the reference that each memory equation accesses; equations inside of one are not looked at."""
    return (reference(e) for e in eqns if e.primitive.is_access)


def loaded(eqns: Iterable[Eqn]) -> Iterator[Var]:
    """Yields the reference that each `load` reads; equations inside of one are not looked at."""
    return (reference(e) for e in eqns if e.primitive is LOAD)


def read(eqns: Iterable[Eqn]) -> Iterator[Var]:
    """Yields the reference that each equation reads, also to accumulate; equations inside of one are not looked at."""
    return (reference(e) for e in eqns if e.primitive.reads)


def written(eqns: Iterable[Eqn]) -> Iterator[Var]:
    """Yields the reference that each equation writes, if it writes; equations inside of one are not looked at."""
    return (reference(e) for e in eqns if e.primitive.writes)


def changes_its_head(task: Task) -> bool:
    """Returns whether the body of a task writes what its head reads: the bounds, or what all iterations share."""
    return not set(read(walk_all(task.head))).isdisjoint(written(walk_eqns(task.body)))
