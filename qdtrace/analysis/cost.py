"""What equations cost, in operations of a lane: one unit is an addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.ir.program import Block, Eqn

FUNCTIONS = frozenset({
    "pow", "atan2", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "logistic", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma",
    "digamma",
})  # fmt: skip
"""Functions that are polynomials and more once they are code."""
_FUNCTION = 18
_COSTS = {
    "div": 6, "rem": 8, "sqrt": 6, "atomic": 40, "accum": 6, "store": 2, "load": 2, "cell": 0, "nextafter": 8,
    "quotient": 2, "bound": 0,
}  # fmt: skip


def code_size(block: Block) -> int:
    """Operations that the code of a block has, each block inside of it once."""
    return sum([eqn_size(eqn) for eqn in block.eqns])


def eqn_size(eqn: Eqn) -> int:
    """Operations that the code of an equation has."""
    if eqn.blocks:
        return 1 + sum([code_size(block) for block in eqn.blocks])
    name = eqn.primitive.name
    return _FUNCTION if name in FUNCTIONS else _COSTS.get(name, 1)
