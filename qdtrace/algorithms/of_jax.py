"""Sorts of many keys and long running totals of JAX between loops: tasks on a CPU, where XLA takes four times as long.

`compose/by_xla` finds them, and knows this module by name alone. Elsewhere they stay what they are for XLA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from qdtrace.algorithms.arguments import ORDERED
from qdtrace.algorithms.scanned import MOST_PARTS, PART
from qdtrace.algorithms.sorted import sorted_p
from qdtrace.api import jit
from qdtrace.compose.by_xla import is_long
from qdtrace.compose.jaxprs import evaluate_jaxpr
from qdtrace.compose.varying import evaluate
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty, empty_like
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.trace.compat import JaxprEqn

_SUMMED = {f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)} | {"float32", "float64"}
totals_p = compat.Primitive("qd_totals")
"""Running totals of rows (rows, n), from the first element or, in reverse, from the last."""


def run(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Evaluates an equation, and those of the functions of `jax.jit` that it calls."""
    if eqn.primitive is compat.jit_p and not eqn.effects:
        return evaluate_jaxpr(eqn.params["jaxpr"], values, run)
    if is_long(eqn):
        name, shape, dtype = eqn.primitive.name, values[0].shape, values[0].dtype.name
        if name == "sort" and eqn.params["num_keys"] == 1 and dtype in ORDERED:
            return _sorted(values, eqn.params["dimension"])
        if name == "cumsum" and eqn.params["axis"] == len(shape) - 1 and dtype in _SUMMED:
            rows = values[0].reshape(-1, shape[-1])
            return [totals_p.bind(rows, reverse=eqn.params["reverse"]).reshape(shape)]
    return evaluate(eqn, values)


def _sorted(values: Sequence[Any], axis: int) -> list[Any]:
    keys, *others = [jnp.moveaxis(x, axis, -1) for x in values]
    found = sorted_p.bind(keys, ordered=bool(others), bits=None, plain=True)
    moved = [jnp.take_along_axis(x, found[1], -1, mode="promise_in_bounds") for x in others]
    return [jnp.moveaxis(x, -1, axis) for x in (found[0], *moved)]


def _totals(x: Any, *, reverse: bool) -> Any:
    """Adds up blocks of parts, and blocks: as few roundings meet in one total as twice the root of a part has."""
    rows, n = x.shape
    parts = min(max(n // PART, 1), MOST_PARTS)
    length = -(-n // parts)
    block = 1 << length.bit_length() // 2
    zero = x.dtype.type(-0.0)  # to which -0.0 is added without change
    sums, before, out = empty((rows, parts), x.dtype), empty((rows, parts), x.dtype), empty_like(x)

    def at(j: Any) -> Any:
        return n - 1 - j if reverse else j

    for r, p in ndrange(rows, parts, name="totals_parts"):
        total, end = local(zero), jnp.minimum((p + 1) * length, n)
        for first in qd_range(p * length, end, block):
            own = local(zero)
            for j in qd_range(first, jnp.minimum(first + block, end)):
                own.value = own.value + x[r, at(j)]
            total.value = total.value + own.value
        sums[r, p] = total.value
    for r in qd_range(rows, name="totals_carries"):
        total = local(zero)
        for p in qd_range(parts):
            before[r, p] = total.value
            total.value = total.value + sums[r, p]
    for r, p in ndrange(rows, parts, name="totals_elements"):
        total, end = local(before[r, p]), jnp.minimum((p + 1) * length, n)
        for first in qd_range(p * length, end, block):
            own = local(zero)
            for j in qd_range(first, jnp.minimum(first + block, end)):
                own.value = own.value + x[r, at(j)]
                out[r, at(j)] = total.value + own.value
            total.value = total.value + own.value
    return out


_by_tasks: Any = jit(_totals, static_argnames="reverse", options={"bounds": "unchecked", "vectorize": False})


def _by_xla(x: Any, *, reverse: bool) -> Any:
    return lax.cumsum(x, axis=1, reverse=reverse)


def _type(x: Any, *, reverse: bool) -> Any:
    del reverse
    return compat.array_type(x.shape, x.dtype, (x,))


def _mapped(operands: Sequence[Any], axes: Sequence[int], *, reverse: bool) -> tuple[Any, int]:
    x = jnp.moveaxis(operands[0], axes[0], 0)
    return totals_p.bind(lax.collapse(x, 0, 2), reverse=reverse).reshape(x.shape), 0


def _adjoint(ct: Any, x: Any, *, reverse: bool) -> list[Any]:
    return [ad.Zero(x.aval) if type(ct) is ad.Zero else totals_p.bind(ct, reverse=not reverse)]


compat.define(totals_p, _type, _mapped, _by_xla, cpu=_by_tasks)
ad.deflinear2(totals_p, _adjoint)
