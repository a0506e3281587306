"""Sums over the rows of many matrices with two or three columns, on a CPU: a sum for each column.

XLA's vectors are neighbouring columns, and such rows leave most of one idle (docs/design/0046).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from qdtrace.trace import compat

sum_p = compat.Primitive("qd_sum")
"""The sum over the last axis but one."""
COLUMNS = range(2, 4)
LEAST = 1 << 13
"""The fewest elements: XLA makes smaller sums part of a loop, which is as fast."""


def is_sum(eqn: Any) -> bool:
    """Returns whether an equation is such a sum."""
    if eqn.primitive is not lax.reduce_sum_p:
        return False
    x = eqn.invars[0].aval
    is_long = x.ndim > 2 and x.size >= LEAST and x.shape[-1] in COLUMNS
    return is_long and tuple(eqn.params["axes"]) == (x.ndim - 2,) and x.dtype in (jnp.float32, jnp.float64)


def summed(eqn: Any) -> list[Any]:
    """Returns the equations in place of such a sum."""
    return compat.inlined(sum_p.bind, eqn)


def _by_columns(x: Any) -> Any:
    return jnp.stack([jnp.sum(x[..., k], -1) for k in range(x.shape[-1])], -1)


def _sum(x: Any) -> Any:
    return jnp.sum(x, -2)


def _type(x: Any) -> Any:
    return compat.array_type((*x.shape[:-2], x.shape[-1]), x.dtype, (x,))


def _batched(operands: Any, axes: Any) -> tuple[Any, int]:
    return sum_p.bind(jnp.moveaxis(operands[0], axes[0], 0)), 0


def _adjoint(adjoint: Any, x: Any) -> list[Any]:
    return [jnp.broadcast_to(lax.expand_dims(adjoint, (adjoint.ndim - 1,)), x.aval.shape)]


compat.define(sum_p, _type, _batched, _sum, cpu=_by_columns)
ad.deflinear2(sum_p, _adjoint)
