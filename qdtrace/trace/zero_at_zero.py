"""Tells whether the results of a jaxpr are zero where some of its inputs are: JAX transposes a function that adds a
number as if it did not.

What is not known to be zero counts as a number, so that a term may be found where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.jaxprs import AnyJaxpr

_EACH = {
    "add": slice(None), "add_any": slice(None), "concatenate": slice(None), "dynamic_update_slice": slice(2),
    "pad": slice(None), "scatter": slice(0, 3, 2), "scatter-add": slice(0, 3, 2), "select_n": slice(1, None),
    "sub": slice(None),
}  # fmt: skip
"""The operands that all have to be zero."""
_FIRST = frozenset([
    "broadcast_in_dim", "conj", "convert_element_type", "copy", "cumsum", "div", "dynamic_slice",
    "gather", "imag", "neg", "real", "reduce_precision", "reduce_sum", "reduce_window_sum", "reshape", "rev", "slice",
    "squeeze", "transpose",
])  # fmt: skip
"""Operations that are linear in their first operand."""
_PRODUCTS = frozenset(["conv_general_dilated", "dot_general", "mul"])


def zero_results(closed: AnyJaxpr, zeros: Iterable[bool]) -> list[bool]:
    """Returns which results of a jaxpr, open or closed, are zero where the inputs of a mask are."""
    jaxpr = compat.open_jaxpr(closed)
    zero = {v for v, is_zero in zip(jaxpr.invars, zeros, strict=True) if is_zero}
    zero.update(v for v, x in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=False) if not np.any(x))

    def known(atom: jaxprs.Atom) -> bool:
        return not np.any(atom.val) if isinstance(atom, compat.Literal) else atom in zero

    for eqn in jaxpr.eqns:
        found = _of_eqn(eqn, list(map(known, eqn.invars)))
        zero.update(v for v, is_zero in zip(eqn.outvars, found, strict=True) if is_zero)
    return list(map(known, jaxpr.outvars))


def _of_eqn(eqn: JaxprEqn, given: Sequence[bool]) -> Sequence[bool]:
    name, inner = eqn.primitive.name, compat.inner_jaxprs(eqn)
    if (called := compat.called_jaxpr(eqn)) is not None:
        return zero_results(called, given)
    if eqn.primitive is lax.cond_p:
        return [all(each) for each in zip(*(zero_results(branch, given[1:]) for branch in inner), strict=True)]
    if eqn.primitive is lax.scan_p:
        first, count = compat.scan_counts(eqn.params)
        return _of_loop(inner[0], given[:first], list(given[first : first + count]), given[first + count :])
    if eqn.primitive is lax.while_p:
        tests, first = eqn.params["cond_nconsts"], eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
        return _of_loop(eqn.params["body_jaxpr"], given[tests:first], list(given[first:]), ())
    if name in _EACH:
        return [all(given[_EACH[name]])]
    if name in _PRODUCTS:
        return [any(given[:2])]
    # JAX takes the slope of a conversion to integers as zero
    return [name in _FIRST and given[0] and jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars]


def _of_loop(body: AnyJaxpr, known: Sequence[bool], carry: list[bool], rows: Sequence[bool]) -> list[bool]:
    """Returns which results of a loop are zero: carried ones if they are before and behind each iteration."""
    while True:
        found = zero_results(body, [*known, *carry, *rows])
        kept = [a and b for a, b in zip(carry, found, strict=False)]
        if kept == carry:
            return [*kept, *found[len(carry) :]]
        carry = kept
