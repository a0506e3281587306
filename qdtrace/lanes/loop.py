"""Runs the function of one element as a loop over lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.lanes.plan import Part, slot_of
from qdtrace.lanes.staging import most_copied
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty
from qdtrace.trace.dtypes import mode_for
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Value = tuple[Any, int | None]
"""A variable of one element for all elements, with their axis; None: all have the same value."""


def looped(part: Any, operands: Sequence[Value], size: int, f: Callable[..., Any]) -> list[Value]:
    """Runs the jaxpr of one element as a loop over lanes; `f` is the function that it is made of."""
    slots = [slot_of(v.aval, [0], [size]) for v in part.outvars]
    with mode_for(slot.dtype for slot in slots):
        outs = [empty(slot.shape, slot.dtype) for slot in slots]
    parts = [(Part(x), axis) for x, axis in operands]
    run, most = compat.function_of(part), most_copied(part)
    for index in qd_range(size).over(f):
        chosen = [x if axis is None else x.select(axis, index) for x, axis in parts]
        xs = [x.value(lazy=False, most=n) for x, n in zip(chosen, most, strict=True)]
        for out, slot, y in zip(outs, slots, run(*xs), strict=True):
            slot.store(out, (index,), y)
    return [(slot.content(out, is_last=False)[...], 0) for out, slot in zip(outs, slots, strict=True)]
