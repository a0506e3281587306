"""Names of JAX's primitives that compute an element from one element of each operand, and functions of such alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Iterable

SAME_NAME = (
    "add", "sub", "div", "rem", "max", "min", "neg", "abs", "sign", "pow", "atan2", "nextafter", "sqrt", "rsqrt",
    "cbrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "logistic", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma", "digamma", "floor", "ceil",
    "is_finite", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "shift_left", "shift_right_logical",
    "shift_right_arithmetic", "population_count", "clz",
)  # fmt: skip
"""Primitives that are primitives of the graph by the same name, applied per element."""
ELEMENTWISE = frozenset(
    (*SAME_NAME, "mul", "square", "integer_pow", "round", "select_n", "convert_element_type", "clamp", "add_any")
)
"""Equations that compute an element from one element of each operand."""
_OF_ROWS = ELEMENTWISE | {
    "argmax", "argmin", "broadcast_in_dim", "copy", "custom_jvp_call", "custom_vjp_call", "expand_dims", "iota", "jit",
    "pjit", "qd_load", "qd_store", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reshape", "squeeze", "stop_gradient",
}  # fmt: skip
"""Equations whose loops over elements meet one element in each trip, and may be fused, or reduce a row."""


def is_of_rows(items: Iterable[Any]) -> bool:
    """Returns whether items compute on elements of rows, and with sums and extremes of them, alone: nothing loops."""
    names = {e.primitive.name for e in compat.all_eqns(tuple(items))}
    return bool(names) and names <= _OF_ROWS
