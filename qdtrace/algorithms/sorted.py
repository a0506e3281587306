"""`qd_sorted`, the primitive behind `qd.sort`: keys sorted along their last axis and, on request, where they came from.

On a CPU all but a few keys are sorted by tasks of this package (`radix`), all else by XLA. The derivative moves
tangents with their keys; a mapped axis is one more axis of rows.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from qdtrace.algorithms.arguments import compiled
from qdtrace.algorithms.digits import ordered_bits
from qdtrace.algorithms.radix import sort_rows
from qdtrace.trace import compat
from qdtrace.trace.importer import def_import_rule
from qdtrace.trace.indexing import as_value

if TYPE_CHECKING:
    from collections.abc import Sequence

sorted_p = compat.Primitive("qd_sorted")
sorted_p.multiple_results = True
SHORTEST, LEAST = 1 << 6, 1 << 10
"""Elements of a row, and of all rows, from which on tasks are worth their compilation: XLA's sort takes ten times as
long."""


def sorted_keys(keys: jax.Array, *, ordered: bool, bits: int | None = None) -> list[jax.Array]:
    """Returns keys sorted along the last axis, stably, and their places before as i32 if `ordered`."""
    return [as_value(x) for x in _sorted(keys, ordered=ordered, bits=bits, plain=False)]


def _by_xla(keys: Any, *, ordered: bool, bits: int | None, plain: bool) -> list[Any]:
    """Sorts by comparisons; floats by their numbers, as XLA takes small ones for zeros on a CPU, unless `plain`."""
    del bits  # of no use to a comparison
    numbers = ordered_bits(keys) if jnp.issubdtype(keys.dtype, jnp.floating) and not plain else keys
    if not ordered:
        return [lax.sort(keys) if numbers is keys else lax.sort((numbers, keys), num_keys=1)[1]]
    places = lax.broadcasted_iota(jnp.int32, keys.shape, keys.ndim - 1)
    found, order = lax.sort((numbers, places), num_keys=1)
    return [found if numbers is keys else jnp.take_along_axis(keys, order, -1, mode="promise_in_bounds"), order]


def _by_tasks(keys: Any, *, ordered: bool, bits: int | None, plain: bool) -> list[Any]:
    if keys.shape[-1] < SHORTEST or keys.size < LEAST:
        return _by_xla(keys, ordered=ordered, bits=bits, plain=plain)
    rows = keys.reshape(prod(keys.shape[:-1]), keys.shape[-1])
    is_bool = keys.dtype == jnp.bool_
    made = sort_rows(rows.astype(jnp.uint8) if is_bool else rows, ordered=ordered, bits=1 if is_bool else bits)
    found = [x.reshape(keys.shape) for x in made]
    return [found[0].astype(keys.dtype), *found[1:]]


def _types(keys: Any, *, ordered: bool, bits: int | None, plain: bool) -> list[Any]:
    del bits, plain
    types = [compat.array_type(keys.shape, keys.dtype, (keys,))]
    return [*types, compat.array_type(keys.shape, jnp.dtype(jnp.int32), (keys,))] if ordered else types


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, ordered: bool, **params: Any) -> tuple[Any, Any]:
    """Moves tangents to where their keys go."""
    (tangent,) = tangents
    if type(tangent) is ad.Zero:
        found = sorted_p.bind(*primals, ordered=ordered, **params)
        return found, [ad.Zero(compat.tangent_type(x)) for x in found]
    found, places = sorted_p.bind(*primals, ordered=True, **params)
    moved = jnp.take_along_axis(tangent, places, -1, mode="promise_in_bounds")
    if not ordered:
        return [found], [moved]
    return [found, places], [moved, ad.Zero(compat.tangent_type(places))]


def _mapped(operands: Sequence[Any], axes: Sequence[int], **params: Any) -> tuple[Any, Any]:
    found = sorted_p.bind(jnp.moveaxis(operands[0], axes[0], 0), **params)
    return found, [0] * len(found)


_sorted: Any = compiled(sorted_p, "ordered", "bits", "plain")
compat.define(sorted_p, _types, _mapped, _by_xla, cpu=_by_tasks)
ad.primitive_jvps[sorted_p] = _tangents
def_import_rule(sorted_p, _by_xla)
