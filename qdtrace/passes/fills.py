"""Fills that may join another task: one constant in every element of a buffer, for the range of that task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdtrace.analysis.index.definite_stores import fill_of
from qdtrace.analysis.index.trips import loop_values
from qdtrace.ir.builder import Builder, unravel
from qdtrace.ir.primitives import STORE
from qdtrace.ir.program import Literal, ref_type
from qdtrace.ir.types import I32 as _I32

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn, Task, Var

ROW_LIMIT = 16
"""Largest number of elements of a row that one iteration stores."""


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """A buffer filled with a literal by a task of its own."""

    ref: Var
    value: Literal
    task: Task

    def for_bounds(self, start: Atom, stop: Atom, index: Var) -> tuple[Eqn, ...] | None:
        """Returns equations that fill the buffer if run for every `index` in `start:stop`, or None if none do.

        One element an iteration, or one row where there are as many iterations as rows.
        """
        shape = ref_type(self.ref).shape
        if not (isinstance(start, Literal) and isinstance(stop, Literal)) or int(start.value):
            return None
        count, builder = int(stop.value), Builder()
        builder.loc = self.task.loc
        size = ref_type(self.ref).size
        if shape and count == shape[0] and size <= ROW_LIMIT * count:
            for number in range(size // max(count, 1)):
                builder.store(self.ref, self.value, index, *_position(number, shape[1:]))
        elif count == size:
            builder.store(self.ref, self.value, *unravel(builder, index, shape))
        else:
            return None
        return tuple(builder.current.eqns)


def _position(number: int, shape: tuple[int, ...]) -> list[Literal]:
    """Returns the indices of an element of a row, by its row-major number."""
    out: list[Literal] = []
    for extent in reversed(shape):
        out.append(Literal(_I32.dtype.numpy.type(number % extent), _I32))
        number //= extent
    return out[::-1]


def flat_fill(task: Task) -> Fill | None:
    """Returns the fill that a task performs if it stores one element per iteration, else None."""
    stores = [e for e in task.body.eqns if e.primitive.effects or e.blocks]
    if task.index is None or len(stores) != 1 or stores[0].primitive is not STORE:
        return None
    found, iterations = fill_of(task), loop_values(task.start, task.stop)
    if not found or iterations is None:
        return None
    ((ref, value),) = found.items()
    if iterations.start or iterations.count != ref_type(ref).size:
        return None
    return Fill(ref, value, task)
