"""Tasks that walk over spans, in blocks of iterations: values of positions are computed in the positions' order.

Iterations of a block whose spans are consecutive, each beginning where the one before ends, run as the parts of
`span_parts`: values of the positions are computed for all spans of the block first, by contiguous vectors instead of
gathers, and are kept in memory of a few hundred kilobytes; then the rows run, ordered by length; last come the delayed
accumulations, in the order of the positions. Other blocks run as the task is written. The choice depends on data alone,
so sums have the same bits in every run with the same number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.checks import leave_if_failed
from lowering.llvm.host import Cell, function
from lowering.llvm.types import BYTES, MEMORY, REGISTER
from lowering.simd.divergence.ordering import BLOCK, emit_in_order, look_at_block, store_step, store_trips

if TYPE_CHECKING:
    from lowering.llvm.host import I64, Code, NoAlias, Operand, Value
    from lowering.llvm.text import Module
    from lowering.simd.divergence.ordering import Ordering
    from lowering.simd.divergence.span_parts import SpanParts
    from lowering.simd.frame import LaneFrame

KEPT_BYTES = 1 << 19
"""Bytes that a block keeps for its positions: as much as the second-level cache holds besides other data."""
FEWEST_ROWS = 64
"""The fewest iterations of a block that runs in parts; fewer mean that spans are long or not consecutive."""


def positions_of(parts: SpanParts) -> int:
    """Returns the most positions of a block."""
    return KEPT_BYTES // max(1, sum(BYTES[MEMORY[ref.dtype]] for ref in parts.kept))


def pointers(parts: SpanParts) -> list[str]:
    """Returns the parameters of parts besides the references: pointers to where position 0 would be kept."""
    return [f"%kept{k}" for k in range(len(parts.kept))]


def emit_spans(f: LaneFrame, ordering: Ordering, parts: SpanParts) -> None:
    """Emits iterations %lo .. %hi-1 of a task, each block in parts or as written."""
    text, step = f.text, f.width * f.vectors
    kind = REGISTER[parts.first.dtype]
    room = BLOCK + step
    numbers, order = (text.slot(f"[{room} x i32]") for _ in range(2))
    firsts, lasts = (text.slot(f"[{room} x {kind}]") for _ in range(2))
    kept = [_memory(f, parts, k) for k in range(len(parts.kept))]

    def look(place: str) -> None:
        store_trips(f, ordering, numbers, place)
        for v in range(f.vectors):
            store_step(f, kind, firsts, place, v, f.vector_of(parts.first, v))
            store_step(f, kind, lasts, place, v, f.vector_of(parts.last, v))

    labels = ("block", "parts", "whole", "following", "blocks")
    loop, staged, plain, following, done = map(text.fresh_label, labels)
    before = text.label
    text.branch(text.op("icmp slt i64 %lo, %hi"), loop, done)
    text.begin(loop)
    base, hole = text.name(), text.hole()
    stop = f.scalar.intrinsic("smin", "i64", text.op(f"add i64 {base}, {BLOCK}"), "%hi")
    count = text.op(f"sub i64 {stop}, {base}")
    look_at_block(f, ordering, base, stop, look)
    rows = text.op(f"call i64 @rows_in_parts(ptr {firsts}, ptr {lasts}, i64 {count})")
    together = text.op(f"icmp ne i64 {rows}, 0")
    taken = text.op(f"select i1 {together}, i64 {rows}, i64 {count}")
    text.do(f"call void @order_numbers(ptr {numbers}, i64 {taken}, ptr {order})")
    text.branch(together, staged, plain)
    text.begin(staged)
    with f.region():
        _run_parts(f, parts, kept, (firsts, lasts), base, rows, order)
    text.jump(following)
    text.begin(plain)
    with f.region():
        emit_in_order(f, base, count, order)
    text.jump(following)
    text.begin(following)
    end = text.op(f"add i64 {base}, {taken}")
    text.fill(hole, f"{base} = phi i64 [ %lo, %{before} ], [ {end}, %{text.label} ]")
    text.branch(text.op(f"icmp slt i64 {end}, %hi"), loop, done)
    text.begin(done)


def _memory(f: LaneFrame, parts: SpanParts, number: int) -> str:
    memory = MEMORY[parts.kept[number].dtype]
    count = positions_of(parts)
    return f.text.array(f"[{count} x {memory}]", count * BYTES[memory])


def _run_parts(
    f: LaneFrame, parts: SpanParts, kept: list[str], ends: tuple[str, str], base: str, rows: str, order: str
) -> None:
    """Emits the parts for iterations from `base` on, whose spans are consecutive."""
    text, kind = f.text, REGISTER[parts.first.dtype]

    def wide(array: str, place: str) -> str:
        there = text.op(f"getelementptr {kind}, ptr {array}, i64 {place}")
        return f.scalar.cast("sext", kind, text.op(f"load {kind}, ptr {there}"), "i64")

    low = wide(ends[0], "0")
    high = wide(ends[1], text.op(f"sub i64 {rows}, 1"))
    back = text.op(f"sub i64 0, {low}")
    given = ""
    for ref, memory in zip(parts.kept, kept, strict=True):
        moved = text.op(f"getelementptr {MEMORY[ref.dtype]}, ptr {memory}, i64 {back}")
        given += f", ptr {moved}"
    if parts.before is not None:
        text.do(f"call void @qd_before(ptr %refs, i64 {low}, i64 {high}, ptr %slot{given})")
        leave_if_failed(f)
    last = text.op(f"add i64 {base}, {rows}")
    text.do(f"call void @qd_rows(ptr %refs, i64 {base}, i64 {last}, ptr %slot{given}, ptr {order})")
    if parts.after is not None:
        leave_if_failed(f)
        text.do(f"call void @qd_after(ptr %refs, i64 {low}, i64 {high}, ptr %slot{given})")


def emit_rows(f: LaneFrame) -> None:
    """Emits iterations %lo .. %hi-1 of the rows of a block, in the order of %order."""
    emit_in_order(f, "%lo", f.text.op("sub i64 %hi, %lo"), "%order")


def define_rows_in_parts(module: Module, parts: SpanParts, step: int) -> None:
    """Defines `rows_in_parts(firsts, lasts, count)`: the number of a block's iterations that run in parts, 0 for
    none."""
    kind = REGISTER[parts.first.dtype]

    def position(ends: Value, k: Operand) -> Value:
        found = ends.item(kind, k).load(kind)
        return found if kind == "i64" else found.to("i64", "sext")

    @function("nounwind")
    def rows_in_parts(c: Code, firsts: NoAlias, lasts: NoAlias, count: I64) -> I64:
        base, k, apart = position(firsts, 0), Cell(c.value(0, "i64")), Cell(c.value(0, "i1"))
        with c.loop() as leave:
            high = position(lasts, k.value)
            apart.value = apart.value | (high < position(firsts, k.value))
            k.value = k.value + 1
            leave(k.value >= count)
            apart.value = apart.value | high.differs(position(firsts, k.value))
        c.give_if(apart.value | (base < 0) | (position(lasts, count - 1) > parts.limit), 0)
        rows = Cell(count)
        with c.loop() as leave:
            leave(position(lasts, rows.value - 1) - base <= positions_of(parts))
            half = rows.value >> 1
            fewer = half - half % step
            c.give_if(fewer < max(FEWEST_ROWS, step), 0)
            rows.value = fewer
        return rows.value

    rows_in_parts.define(module)
