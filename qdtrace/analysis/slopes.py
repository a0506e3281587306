"""Which operations may be executed in vain without a trace in the gradient.

Reverse mode multiplies what it carries back by slopes. Where a value was computed in vain it carries 0, and 0 times an
infinite slope is NaN: a root moved out of the branch that guards it would poison the gradient of the branch not taken.
So in a program that will be differentiated only operations whose slopes are finite for all operands, infinite ones
among them, are moved to where they were not executed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn

_STEADY = "add sub neg abs min max select convert sign floor ceil round_even round_away trunc bitcast nextafter load"
_FINITE = frozenset(_STEADY.split())
"""Sums, choices, and what is constant between steps."""


def has_finite_slopes(eqn: Eqn) -> bool:
    """True when no operand makes a slope of the result infinite or NaN; of what has no derivative always."""
    if not any(v.dtype.is_float for v in eqn.outvars) or eqn.primitive.name in _FINITE:
        return True
    if eqn.primitive.name == "mul":
        return any(isinstance(a, Literal) and math.isfinite(a.value) for a in eqn.invars)
    if eqn.primitive.name == "div":
        divisor = eqn.invars[1]
        return isinstance(divisor, Literal) and math.isfinite(divisor.value) and bool(divisor.value)
    return False
