"""Finds indices in loops that are wrapped, as Python's negative ones are, and then clipped to their axis.

    p: bool = lt i 0:i32
    w: i32 = add i 100:i32
    j: i32 = select p w i
    k: i32 = max j 0:i32
    l: i32 = min k 99:i32

Where `j` is in 0 .. 99, `l` is `j`: that is nearly always so, as others are an error of the program's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import LT, MAX, MIN, SELECT
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.walk import walk_inside, walk_often

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn, Task


def clipped_indices(task: Task) -> dict[Eqn, Var]:
    """Maps each `min` that ends the clipping of a wrapped index, in a loop of the task, to that index."""
    made = task.definitions
    loops = (e for e in walk_often(task.body) if e.primitive.loops)
    ends = (e for loop in loops for e in walk_inside(loop) if e.primitive is MIN)
    found = ((end, _wrapped(end, made)) for end in ends)
    return {end: index for end, index in found if index is not None}


def _wrapped(end: Eqn, made: dict[Var, Eqn]) -> Var | None:
    least = _maker(end.invars[0], made)
    if least is None or least.primitive is not MAX or not _is_zero(least.invars[1]) or not _is_constant(end.invars[1]):
        return None
    index = least.invars[0]
    wrap = _maker(index, made)
    test = None if wrap is None or wrap.primitive is not SELECT else _maker(wrap.invars[0], made)
    if test is None or test.primitive is not LT or not _is_zero(test.invars[1]):
        return None
    return index if wrap.invars[2] is test.invars[0] else None  # type: ignore[return-value, union-attr]


def _maker(atom: Atom, made: dict[Var, Eqn]) -> Eqn | None:
    return made.get(atom) if isinstance(atom, Var) else None


def _is_constant(atom: Atom) -> bool:
    """Returns whether an operand is the last index of an axis."""
    return isinstance(atom, Literal) and atom.dtype.is_signed and not atom.dtype.is_float and int(atom.value) >= 0


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not atom.value
