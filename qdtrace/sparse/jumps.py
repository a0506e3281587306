"""Jumps of loops as conditions: what `qd.continue_if` and `qd.break_if` leave out stands under `qd.when`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax

from qdtrace.trace import compat, markers
from qdtrace.trace.tree import body_of, loc_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qdtrace.trace.compat import JaxprEqn

_JUMPS = (markers.break_p, markers.continue_p)


def without_jumps(items: Sequence[JaxprEqn], *, is_inner: bool = False) -> list[JaxprEqn]:
    """Returns items whose loops leave nothing out by jumps, but for breaks of outermost loops."""
    found: list[JaxprEqn] = []
    for item in items:
        if item.primitive is markers.when_p:
            found.append(_with_body(item, without_jumps(body_of(item).eqns, is_inner=is_inner)))
        elif item.primitive is markers.for_p:
            found += _loop(item, is_inner=is_inner)
        else:
            found.append(item)
    return found


def _loop(region: JaxprEqn, *, is_inner: bool) -> list[JaxprEqn]:
    body = without_jumps(body_of(region).eqns, is_inner=True)
    jumps = list(_jumps_of(body))
    breaks = [jump for jump in jumps if jump.primitive is markers.break_p]
    if not jumps or (breaks and not is_inner):
        return [_with_body(region, body)]
    gone, broken = (compat.new_scalar(np.bool_) for _ in range(2))
    body = [_cell(jumps[0], gone), *_guarded(body, gone, broken)]
    if not breaks:
        return [_with_body(region, body)]
    return [_cell(breaks[0], broken), _with_body(region, _unless(breaks[0], broken, body))]


def _jumps_of(items: Sequence[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Yields the jumps of a loop in items of its body."""
    for item in items:
        if item.primitive in _JUMPS:
            yield item
        elif item.primitive is markers.when_p:
            yield from _jumps_of(body_of(item).eqns)


def _guarded(items: Sequence[JaxprEqn], gone: Any, broken: Any) -> list[JaxprEqn]:
    """Returns items that note in cells that a jump was taken, and do nothing then."""
    for k, item in enumerate(items):
        if not any(_jumps_of([item])):
            continue
        if item.primitive is markers.when_p:
            made = [_with_body(item, _guarded(body_of(item).eqns, gone, broken))]
        else:
            cells = (gone, broken) if item.primitive is markers.break_p else (gone,)
            made = [_under(item, item.invars[0], [_stored(item, cell) for cell in cells])]
        rest = _guarded(items[k + 1 :], gone, broken)
        return [*items[:k], *made, *(_unless(item, gone, rest) if rest else ())]
    return list(items)


def _with_body(region: JaxprEqn, eqns: Sequence[JaxprEqn]) -> JaxprEqn:
    (body,) = region.params["jaxprs"]
    return region.replace(params={**region.params, "jaxprs": (body.replace(eqns=list(eqns)),)})


def _cell(like: JaxprEqn, cell: Any) -> JaxprEqn:
    params = {"uid": None, "dtype": np.dtype(bool), "called": None}
    return like.replace(primitive=markers.local_p, invars=[_literal(False)], outvars=[cell], params=params)


def _stored(like: JaxprEqn, cell: Any) -> JaxprEqn:
    return like.replace(primitive=markers.lset_p, invars=[cell, _literal(True)], params={"slices": ()})


def _unless(like: JaxprEqn, cell: Any, eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Returns equations under the condition that a cell is false."""
    value, negated = (compat.new_scalar(np.bool_) for _ in range(2))
    loaded = like.replace(primitive=markers.lget_p, invars=[cell], outvars=[value], params={"slices": ()})
    pure = like.replace(primitive=lax.not_p, invars=[value], outvars=[negated], params={}, effects=frozenset())
    return [loaded, pure, _under(like, negated, eqns)]


def _under(like: JaxprEqn, condition: Any, eqns: Sequence[JaxprEqn]) -> JaxprEqn:
    params = {"bounds": 1, "own": 0, "jaxprs": (compat.jaxpr_of(eqns),), "loc": loc_of(like)}
    return like.replace(primitive=markers.when_p, invars=[condition], outvars=[], params=params)


def _literal(value: bool) -> Any:
    return compat.Literal(np.bool_(value), compat.ShapedArray((), np.dtype(bool)))
