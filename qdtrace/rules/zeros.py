"""Finds floats that are surely not -0.0, so that adding 0.0 changes nothing.

A difference of two normal numbers may be -0.0 where threads flush subnormal results, so a sum counts only where both
terms have no sign, or where a constant is so large that what is left cannot be subnormal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import ADD, CONVERT, SUB
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType
from qdtrace.rules.match import same

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn
    from qdtrace.rules.emitter import Emitter

DEPTH = 4
"""Largest depth of definitions that are examined."""
_LARGE = 2.0**-64
"""Smallest |c| for which x + c, if not 0, is at least c's last place and so never subnormal."""


def is_never_negative_zero(w: Emitter, atom: Atom) -> bool:
    """Returns whether a float is never -0.0, whatever the operands are."""
    eqn = w.definition(atom)
    if eqn is not None and eqn.primitive is CONVERT:
        source = eqn.invars[0].dtype
        return source is DType.bool or source.is_integer
    if eqn is not None and eqn.primitive in (ADD, SUB):
        x = eqn.invars[0] if eqn.primitive is SUB else eqn.invars[1]
        if isinstance(x, Literal) and abs(x.value) >= _LARGE:
            return True
        if _adds_zero(eqn) and _adds_zero(w.definition(eqn.invars[0])):
            return True
    return has_no_sign(w, atom)


def _adds_zero(eqn: Eqn | None) -> bool:
    """Returns whether a value is x + 0.0: -0.0 where threads flush subnormal results, but never subnormal itself."""
    if eqn is None or eqn.primitive is not ADD:
        return False
    zero = eqn.invars[1]
    return isinstance(zero, Literal) and zero.value == 0 and math.copysign(1.0, float(zero.value)) > 0


def has_no_sign(w: Emitter, atom: Atom, depth: int = DEPTH) -> bool:
    """Returns whether a float is surely 0.0, above it or NaN."""
    if isinstance(atom, Literal):
        return math.copysign(1.0, float(atom.value)) > 0 or atom.value != atom.value
    eqn = w.definition(atom)
    if eqn is None or not depth:
        return False
    ops = eqn.invars
    match eqn.primitive.name:
        case "mul" if same(*ops):
            return True
        case "add" | "mul" | "div" | "sqrt" | "min":
            return all(has_no_sign(w, a, depth - 1) for a in ops)
        case "max":
            return any(has_no_sign(w, a, depth - 1) for a in ops)
        case "select":
            return all(has_no_sign(w, a, depth - 1) for a in ops[1:])
        case "convert":
            source = ops[0].dtype
            return source is DType.bool or (source.is_integer and not source.is_signed)
        case _:
            return eqn.primitive.has_no_sign
