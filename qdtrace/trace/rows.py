"""Names of JAX's primitives that compute an element from one element of each operand, and functions of such alone."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from jax import lax

from qdtrace.trace import compat
from qdtrace.trace.products import FACTORISATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.trace.compat import Atom, JaxprEqn

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
    "argmax", "argmin", "broadcast_in_dim", "copy", "custom_jvp_call", "custom_vjp_call", "iota", "jit", "qd_load",
    "qd_store", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reshape", "squeeze", "stop_gradient",
}  # fmt: skip
"""Equations whose loops over elements meet one element in each trip, and may be fused, or reduce a row."""
_LEAST_OF_AXES = 96
"""Elements of an array of several short axes from which on it is a row. Loops over 10 x 10 elements run as fast as
scalars (0.3 to 1.5 of their time with AVX2, also where a loop carries them) and compile in a tenth of the time; those
over 8 x 8 gain nothing."""
_FOR_SCALARS = FACTORISATIONS | {"custom_lin", "custom_vjp_call"}


def is_of_rows(items: Iterable[JaxprEqn], besides: frozenset[str] = frozenset()) -> bool:
    """Returns whether items compute on elements of rows, and with sums and extremes of them, alone: nothing loops.

    They may be primitives named in `besides`, too.
    """
    names = {e.primitive.name for e in compat.all_eqns(tuple(items))}
    return bool(names) and names <= _OF_ROWS | besides


def is_mostly_of_rows(items: Iterable[JaxprEqn], least: int) -> bool:
    """Returns whether more equations compute on rows than take elements out of them.

    Rows are axes of `least` elements or more, and arrays of many elements on several short axes.

    What takes single elements at known places, or puts a row together from such, wants scalars. So do products of
    matrices and factorisations: their arrays are small beside the work on them; and backward functions of users, whose
    derivatives are linear in memory for nobody to see (`linearity`).
    """
    balance = 0

    def is_row(atom: Atom) -> bool:
        shape = getattr(atom.aval, "shape", ())
        return bool(shape) and (shape[-1] >= least or prod(shape) >= _LEAST_OF_AXES)

    for eqn in compat.all_eqns(tuple(items)):
        name = eqn.primitive.name
        is_product = eqn.primitive is lax.dot_general_p and any(len(v.aval.shape) > 1 for v in eqn.invars)
        if is_product or name in _FOR_SCALARS:
            return False
        if compat.holds_jaxpr(eqn):
            continue
        if name.startswith("qd_"):  # the operands of loads and stores are whole buffers
            balance += any(map(is_row, eqn.outvars))
            continue
        read, made = (sum(map(is_row, side)) for side in (eqn.invars, eqn.outvars))
        if eqn.primitive is lax.concatenate_p:
            balance += 1 - (len(eqn.invars) - read) if made else 0
        elif read or made:
            balance += 1 if made or eqn.primitive not in (lax.slice_p, lax.squeeze_p) else -1
    return balance > 0
