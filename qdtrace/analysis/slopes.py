"""Decides which operations may be executed speculatively without an effect on the gradient.

Reverse mode multiplies adjoints by slopes. The adjoint of a value that was computed speculatively is 0, and 0 times an
infinite slope is NaN: a root moved out of the branch that guards it would poison the gradient of the branch not taken.
So in a program that will be differentiated only operations whose slopes are finite for all operands, infinite ones
among them, are moved to where they were not executed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import DIV, MUL
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn


def has_finite_slopes(eqn: Eqn) -> bool:
    """Returns whether no operand makes a slope of the result infinite or NaN; True if there is no derivative."""
    if not any(v.dtype.is_float for v in eqn.outvars) or eqn.primitive.finite_slope:
        return True
    if eqn.primitive is MUL:
        return any(isinstance(a, Literal) and math.isfinite(a.value) for a in eqn.invars)
    if eqn.primitive is DIV:
        divisor = eqn.invars[1]
        return isinstance(divisor, Literal) and math.isfinite(divisor.value) and bool(divisor.value)
    return False
