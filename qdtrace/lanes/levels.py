"""Computes once for each lane of one level what lanes of the other levels of nested `qd.vmap`s do not differ in.

One loop runs over all pairs of lanes of two levels. What depends on the lane of one level alone, like the features of a
point in a matrix of kernels, would be computed for each pair. It becomes a loop over that level in front of the loop
over pairs, which reads what it makes (docs/design/0090). What is then a product of what two levels made, with
arithmetic behind it, is one product of matrices for XLA.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from qdtrace.config import current
from qdtrace.frozen import frozen
from qdtrace.lanes.batch import run_once
from qdtrace.lanes.limits import AS_FAST_ON_CPU
from qdtrace.lanes.loop import looped
from qdtrace.lanes.plan import Mapping, Part
from qdtrace.lanes.shared import LEAST, LEAST_OF_ALL, cut
from qdtrace.lanes.staging import most_copied
from qdtrace.trace import compat
from qdtrace.trace.dependence import dependent
from qdtrace.trace.lengths import known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.lanes.loop import Value
    from qdtrace.lanes.plan import Plan, Slot
    from qdtrace.lanes.sources import Source

LEAST_ON_GPU = 1 << 27
"""The fewest operations that all lanes of a GPU save: some microseconds, as much as another launch takes."""
_OF_PRODUCTS = AS_FAST_ON_CPU | {"dot_general", "transpose"}
"""Primitives that XLA has in a product of matrices, or in a loop behind it."""


@frozen
class Levels:
    """The rest of the function of one element, for the loop over all lanes."""

    jaxpr: Any
    operands: Sequence[Part]
    """Its operands, of which the index of an axis is the number of the level that maps it."""

    @property
    def is_product(self) -> bool:
        """True if it multiplies arrays of different levels, and is arithmetic besides."""
        if not {e.primitive.name for e in compat.all_eqns(tuple(self.jaxpr.eqns))} <= _OF_PRODUCTS:
            return False
        return _multiplies(self.jaxpr, [set(p.at) - {None} for p in self.operands])

    def batched(self, slots: Sequence[Slot | None], sizes: Sequence[int]) -> list[Any]:
        """Returns the results of all lanes, computed by XLA, with their axes in the places of `slots`."""
        run = compat.function_of(self.jaxpr)
        for level in range(len(sizes) - 1, -1, -1):
            outer = [[k for k in p.at if k is None or k >= level] for p in self.operands]
            axes = [at.index(level) if level in at else None for at in outer]
            run = jax.vmap(run, axes, axis_size=sizes[level])
        found = run(*(p.whole for p in self.operands))
        return [x if slot is None else _transposed(x, slot.order) for x, slot in zip(found, slots, strict=True)]

    def lane(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Returns the results of the lane with these indices, one a level."""
        chosen = [replace(p, at=tuple(None if k is None else indices[k] for k in p.at)) for p in self.operands]
        most = most_copied(self.jaxpr)
        return compat.function_of(self.jaxpr)(*(p.value(lazy=False, most=n) for p, n in zip(chosen, most, strict=True)))


def along_levels(plan: Plan, mapping: Mapping, args: Any, kwargs: Any) -> Levels | None:
    """Runs what depends on one level alone, and returns the rest; None where nothing is computed apart from pairs."""
    jaxpr = compat.open_jaxpr(plan.element)
    sizes: tuple[Any, ...] = plan.sizes  # maybe symbols, as of `jax.export`
    if current().array_mapping != "auto" or len(sizes) < 2 or not all(isinstance(n, int) and n for n in sizes):
        return None
    if compat.has_markers(jaxpr.effects):
        return None
    leaves, _ = Mapping.flatten(args, kwargs)
    given = [*jaxpr.invars, *jaxpr.constvars]
    jaxpr = compat.jaxpr_of(jaxpr.eqns, given, jaxpr.outvars)
    parts = {v: _operand(s, leaves) for v, s in zip(given, plan.sources, strict=True) if s is not None}
    if len(parts) < len(given):  # functions around the innermost one compute some
        return None
    of_level = LEAST_OF_ALL if jax.default_backend() == "cpu" else LEAST_ON_GPU
    is_cut = False
    for level in (None, *range(len(sizes))):
        others = [v for v, part in parts.items() if not set(part.at) <= {None, level}]
        own = 1 if level is None else sizes[level]
        least, of_all = (LEAST, LEAST_OF_ALL) if level is None else (1, of_level)
        found = cut(jaxpr, dependent(jaxpr, others), prod(sizes) - own, least, of_all)
        if found is None:
            continue
        is_cut, jaxpr = True, found.rest
        operands = [_along(parts[v], level) for v in found.once.invars]
        if level is None:
            results = run_once(found.once, operands, mapping.f)
        else:
            results = looped(found.once, operands, known(own), mapping.f)
        parts.update((v, _part(value, level)) for v, value in zip(found.once.outvars, results, strict=True))
    rest = Levels(jaxpr, [parts[v] for v in jaxpr.invars])
    return rest if is_cut or rest.is_product else None


def _multiplies(jaxpr: Any, given: Sequence[set[int | None]]) -> bool:
    """Returns whether a jaxpr multiplies arrays of floats of different levels, of which arguments have those given."""
    where = dict(zip(jaxpr.invars, given, strict=True))
    for eqn in jaxpr.eqns:
        levels = [where.get(v, set()) if isinstance(v, compat.Var) else set[int | None]() for v in eqn.invars]
        called = compat.called_jaxpr(eqn)
        if called is not None and _multiplies(compat.open_jaxpr(called), levels):
            return True
        if eqn.primitive is lax.dot_general_p and all(levels) and levels[0].isdisjoint(levels[1]):
            return eqn.outvars[0].aval.dtype.kind == "f"
        where.update((v, set().union(*levels)) for v in eqn.outvars)
    return False


def _operand(source: Source, leaves: Sequence[Any]) -> Part:
    return Part(source.value if source.leaf is None else leaves[source.leaf], source.at)


def _along(part: Part, level: int | None) -> Value:
    """Returns an operand of a loop over one level, or of what runs once."""
    return part.whole, None if level is None or level not in part.at else part.at.index(level)


def _part(value: Value, level: int | None) -> Part:
    x, axis = value
    return Part(x) if axis is None else Part(x).select(axis, level)


def _transposed(x: Any, order: Sequence[int | None]) -> Any:
    """Returns an array with the axes of levels in the places of an order, not in front."""
    own = iter(range(sum(k is not None for k in order), x.ndim))
    return jnp.transpose(x, [next(own) if k is None else k for k in order])
