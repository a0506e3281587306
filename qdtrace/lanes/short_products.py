"""Products of a matrix and a vector of each lane whose sums have up to three terms: arithmetic between XLA's others.

XLA calls a library for each matrix of a batch, from operands in memory that it has transposed for that. A sum of up to
three products of slices is part of the loop that makes the operands, or of the one that reads the result
(docs/design/0046).
"""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax

MOST_DEPTH = 3
"""The longest sums: a point or an axis in space. With four terms, XLA is as fast."""


def is_short(eqn: Any) -> bool:
    """Returns whether an equation is such a product."""
    if eqn.primitive is not lax.dot_general_p or len({v.aval.dtype for v in (*eqn.invars, *eqn.outvars)}) != 1:
        return False
    x, y = (v.aval for v in eqn.invars)
    return are_short(x, y, eqn.params["dimension_numbers"])


def are_short(x: Any, y: Any, dimension_numbers: Any) -> bool:
    """Returns whether the product of two arrays, or types of arrays, is such a product.

    Args:
        x: the left array.
        y: the right one, with the same dtype.
        dimension_numbers: of `dot_general`.
    """
    (contracted, _), (batch, _) = dimension_numbers
    count = prod(x.shape[k] for k in batch)
    depth = prod(x.shape[k] for k in contracted)
    is_small = len(contracted) == 1 and 0 < depth <= MOST_DEPTH and count > 1 and x.dtype in (jnp.float32, jnp.float64)
    return is_small and min(x.size, y.size) == count * depth


def sum_of_products(x: Any, y: Any, dimension_numbers: Any) -> Any:
    """Returns what `dot_general` does, as a sum of products of slices."""
    ((over_x,), (over_y,)), (batch, batch_y) = dimension_numbers
    free_x = [k for k in range(x.ndim) if k != over_x and k not in batch]
    free_y = [k for k in range(y.ndim) if k != over_y and k not in batch_y]
    x = lax.transpose(x, (over_x, *batch, *free_x))
    y = lax.transpose(y, (over_y, *batch_y, *free_y))
    lead, own, other = x.shape[1 : 1 + len(batch)], x.shape[1 + len(batch) :], y.shape[1 + len(batch) :]
    terms = [
        lax.reshape(x[k], (*lead, *own, *(1,) * len(other))) * lax.reshape(y[k], (*lead, *(1,) * len(own), *other))
        for k in range(x.shape[0])
    ]
    return functools.reduce(lax.add, terms)
