"""Accesses of a program that are proven to be in range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import BOUND
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from qdtrace.errors import Loc
    from qdtrace.ir.program import Program


@frozen(slots=True)
class Indexed:
    """Accesses of one buffer in one line of the source."""

    loc: Loc | None
    buffer: str
    count: int
    """Number of these accesses in the traced program."""
    axes: tuple[int, ...]
    """Axes whose index is checked at run time; empty if all are proven."""


def indexed_accesses(traced: Program, final: Program) -> list[Indexed]:
    """Returns the accesses with an index that is no constant, by line and buffer, in the order of the program.

    `traced` has all of them, `final` the checks that are left. One check may serve several buffers of one length: it
    counts for the first.
    """
    counts: dict[tuple[Loc | None, str], int] = {}
    for eqn in traced.all_eqns:
        if eqn.primitive.is_access and not all(isinstance(i, Literal) for i in indices_of(eqn)):
            key = eqn.loc, getattr(eqn.invars[0], "hint", "") or "_"
            counts[key] = counts.get(key, 0) + 1
    axes: dict[tuple[Loc | None, str], set[int]] = {}
    for eqn in final.all_eqns:
        if eqn.primitive is BOUND:
            axes.setdefault((eqn.loc, str(eqn.params["buffer"])), set()).add(int(eqn.params["axis"]))
    return [Indexed(*key, count, tuple(sorted(axes.get(key, ())))) for key, count in counts.items()]
