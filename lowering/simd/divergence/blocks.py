"""The loop over the blocks of a task whose iterations are ordered: look at a block, order it, run it (`in_blocks`).

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
from lowering.simd.divergence.in_blocks import BLOCK
from lowering.simd.steps import emit_steps
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.host import I64, Code, NoAlias, Operand, Value
    from lowering.llvm.text import Module
    from lowering.plan.span_parts import SpanParts
    from lowering.simd.divergence.block_plan import BlockPlan
    from lowering.simd.frame import LaneFrame

KEPT_BYTES = 1 << 19
"""Bytes that a block keeps for its positions: as much as the second-level cache holds besides other data."""
FEWEST_ROWS = 64
"""The fewest iterations of a block that runs in parts; fewer mean that spans are long or not consecutive."""


def positions_of(parts: SpanParts) -> int:
    """Returns the most positions of a block."""
    return KEPT_BYTES // max(1, sum(BYTES[MEMORY[ref.dtype]] for ref in parts.kept))


def shared_memory(f: LaneFrame, plan: BlockPlan) -> list[str]:
    """Allocates what the parts of a task share, and returns the pointers."""
    most = BLOCK if plan.spans is None else positions_of(plan.spans)
    found: list[str] = []
    for ref in plan.rows.facts.shared:
        count, memory = min(ref_type(ref).size, most), MEMORY[ref.dtype]
        found.append(f.text.array(f"[{count} x {memory}]", count * BYTES[memory]))
    return found


def emit_blocks(f: LaneFrame, plan: BlockPlan, shared: Sequence[str]) -> None:
    """Emits iterations %lo .. %hi-1 of a task, each block in parts or as written."""
    text, index = f.text, plan.rows.facts.task.index
    assert index is not None
    base, trips, order, *ends = shared[:5]
    loop, done, before = text.fresh_label("block"), text.fresh_label("blocks"), text.label
    text.branch(text.op("icmp slt i64 %lo, %hi"), loop, done)
    text.begin(loop)
    low, hole, kind = text.name(), text.hole(), REGISTER[index.dtype]
    count = f.scalar.intrinsic("smin", "i64", text.op(f"sub i64 %hi, {low}"), str(BLOCK))
    first = low if kind == "i64" else text.op(f"trunc i64 {low} to {kind}")
    text.do(f"store {kind} {first}, ptr {base}")
    _call(f, "qd_look", "0", count, shared)
    taken = as_written = count
    together = rows = ""
    if plan.spans is not None:
        rows = text.op(f"call i64 @rows_in_parts(ptr {ends[0]}, ptr {ends[1]}, i64 {count})")
        together = text.op(f"icmp ne i64 {rows}, 0")
        taken = text.op(f"select i1 {together}, i64 {rows}, i64 {count}")
        as_written = text.op(f"select i1 {together}, i64 0, i64 {count}")
    text.do(f"call void @order_numbers(ptr {trips}, i64 {taken}, ptr {order})")
    if plan.spans is not None:
        with text.when(together), f.region():
            _run_parts(f, plan, plan.spans, shared, rows)
    with f.region():
        emit_steps(f, "0", as_written)
    end = text.op(f"add i64 {low}, {taken}")
    text.fill(hole, f"{low} = phi i64 [ %lo, %{before} ], [ {end}, %{text.label} ]")
    text.branch(text.op(f"icmp slt i64 {end}, %hi"), loop, done)
    text.begin(done)


def _call(f: LaneFrame, name: str, first: str, last: str, shared: Sequence[str]) -> None:
    given = "".join(f", ptr {pointer}" for pointer in shared)
    f.text.do(f"call void @{name}(ptr %refs, i64 {first}, i64 {last}, ptr %slot{given})")


def _run_parts(f: LaneFrame, plan: BlockPlan, spans: SpanParts, shared: Sequence[str], rows: str) -> None:
    """Emits the parts for the first iterations of a block, `rows` of them, whose spans are consecutive."""
    text, kind = f.text, REGISTER[spans.first.dtype]
    own, kept = shared[:5], shared[5:]

    def wide(array: str, place: str) -> str:
        there = text.op(f"getelementptr {kind}, ptr {array}, i64 {place}")
        return f.scalar.cast("sext", kind, text.op(f"load {kind}, ptr {there}"), "i64")

    low, high = wide(own[3], "0"), wide(own[4], text.op(f"sub i64 {rows}, 1"))
    back = text.op(f"sub i64 0, {low}")
    # to where position 0 would be kept
    moved = [
        text.op(f"getelementptr {MEMORY[r.dtype]}, ptr {p}, i64 {back}") for r, p in zip(spans.kept, kept, strict=True)
    ]
    for name in list(plan.functions)[1:]:
        _call(f, name, *(("0", rows) if name == "qd_rows" else (low, high)), [*own, *moved])
        leave_if_failed(f)


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
