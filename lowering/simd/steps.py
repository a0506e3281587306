"""The iterations of a chunk as steps of vectors: whole ones and a masked rest, row by row if steps keep to rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.polls import poll_in_step
from lowering.simd.descriptions import ALL, Mask, Row

if TYPE_CHECKING:
    from lowering.simd.frame import LaneFrame

TWICE_COST = 100
"""Bodies without loops up to this cost are emitted twice: for full vectors without masks, and for a masked rest."""


def emit_steps(f: LaneFrame, start: str = "%lo", stop: str = "%hi") -> None:
    """Emits iterations `start` .. `stop` - 1 of a task in steps of vectors."""
    twice = f.is_scalar or (not f.facts.has_loops and f.facts.cost <= TWICE_COST)
    if f.row is None:
        _span(f, start, stop, twice)
    else:
        _rows(f, f.row, start, stop, twice)


def _span(f: LaneFrame, start: str, stop: str, twice: bool) -> None:
    if twice:
        _full_vectors_then_rest(f, start, stop)
    else:
        _loop(f, start, stop, masked=True)


def emit_step(f: LaneFrame, index: str, mask: Mask = ALL) -> None:
    """Emits the iterations of one step of vectors, the first of which is `index`."""
    task = f.facts.task
    assert task.index is not None
    with f.region(mask):
        f.bind_index(task.index, index)
        f.emit(task.body.eqns)


def _loop(f: LaneFrame, start: str, stop: str, masked: bool) -> None:
    """Emits steps of all lanes from `start` while below `stop`."""
    with f.text.counted(start, stop, f.width * f.vectors, unroll=None) as index:
        poll_in_step(f)
        emit_step(f, index, _lanes_of_step(f, index, stop) if masked else ALL)


def _lanes_of_step(f: LaneFrame, index: str, stop: str) -> Mask:
    """Returns the mask of a step that most often has all its lanes.

    Processors without masks run stores under one as microcode, some 20 times as long as plain ones.
    """
    mask = lanes_below(f, index, stop)
    if f.target.has_masks:
        return mask
    end = f.text.op(f"add i64 {index}, {f.width * f.vectors}")
    return replace(mask, whole=f.text.op(f"icmp sle i64 {end}, {stop}"))


def lanes_below(f: LaneFrame, index: str, stop: str) -> Mask:
    """Returns the mask of lanes below `stop` in the step that begins at `index`."""
    text, i32 = f.text, f.lanes.of("i32")
    left = f.scalar.intrinsic("smin", "i64", text.op(f"sub i64 {stop}, {index}"), str(f.width * f.vectors))
    limit = f.spread("i32", text.op(f"trunc i64 {left} to i32"))
    below = tuple(text.op(f"icmp slt {i32} {f.steps('i32', v)}, {limit}") for v in range(f.vectors))
    return Mask(below, without_iteration=True)


def _full_vectors_then_rest(f: LaneFrame, start: str, stop: str) -> None:
    text, step = f.text, f.width * f.vectors
    if step == 1:
        _loop(f, start, stop, masked=False)
        return
    count = text.op(f"sub i64 {stop}, {start}")
    if step & (step - 1):
        whole = text.op(f"sub i64 {count}, {text.op(f'srem i64 {count}, {step}')}")
    else:
        whole = text.op(f"and i64 {count}, {-step}")
    full = text.op(f"add i64 {start}, {whole}")
    _loop(f, start, full, masked=False)
    rest, done = text.fresh_label("rest"), text.fresh_label("finish")
    text.branch(text.op(f"icmp slt i64 {full}, {stop}"), rest, done)
    text.begin(rest)
    emit_step(f, full, lanes_below(f, full, stop))
    text.jump(done)
    text.begin(done)


def _rows(f: LaneFrame, row: Row, low: str, high: str, twice: bool) -> None:
    """Emits steps row by row from `low` to `high`; the first and the last row may be partial."""
    text = f.text
    loop, done, before = text.fresh_label("row"), text.fresh_label("rows"), text.label
    text.branch(text.op(f"icmp slt i64 {low}, {high}"), loop, done)
    text.begin(loop)
    start, hole = text.name(), text.hole()
    with f.region():
        f.row_number = text.op(f"udiv i64 {text.op(f'add i64 {start}, {row.offset}')}, {row.length}")
        f.remember(("quotient", row.quotient), f.row_number)
        following = text.op(f"mul i64 {text.op(f'add i64 {f.row_number}, 1')}, {row.length}")
        end = text.op(f"sub i64 {following}, {row.offset}")
        stop = f.scalar.intrinsic("smin", "i64", end, high)
        _span(f, start, stop, twice)
    text.fill(hole, f"{start} = phi i64 [ {low}, %{before} ], [ {stop}, %{text.label} ]")
    text.branch(text.op(f"icmp slt i64 {stop}, {high}"), loop, done)
    text.begin(done)
