"""Emission of a sum of outer products: active lanes one after another, a tile of the array in registers.

Lanes that are not active are left out, not multiplied by zero: what they hold may be no number. The sum over lanes
begins at the identity and is added to the array once, so that rounding does not grow with the number of iterations.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead, element_pointer
from lowering.llvm.types import BYTES, REGISTER
from lowering.plan.sums import Where
from lowering.simd.accumulation.outer_products import outer_product
from lowering.simd.accumulation.panels import active_lanes, emit_panels
from qdtrace.frozen import frozen
from qdtrace.ir.combining import identity
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.simd.accumulation.outer_products import OuterProduct
    from lowering.simd.accumulation.panels import Lanes, Panels
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Eqn
    from qdtrace.ir.types import DType

VECTORS = 2
"""Vectors of columns in a tile."""


@frozen(slots=True)
class _Array:
    """The array that is added to, from its element of the lowest indices on."""

    first: str
    row_stride: int
    alias: str


def emit_outer_product(f: LaneFrame, loop: Eqn) -> bool:
    """Emits a loop that accumulates an outer product into a copy of its chunk; returns False for any other loop."""
    found = None if f.is_scalar else outer_product(loop)
    if found is None or not _is_for_tiles(f, found):
        return False
    panels, lanes, memory = emit_panels(f, found), active_lanes(f), f.accumulators.copies[found.ref].memory
    array = _Array(element_pointer(f, memory, found.lowest), found.row_stride, memory.alias)
    height, breadth = 8 if f.target.registers >= 32 else 4, VECTORS * f.width

    def in_row(row: str, tall: int) -> None:
        def add(column: str, wide: int) -> None:
            _add_tile(f, panels, lanes, array, (row, column), (tall, wide))

        _each_step(f, found.columns.count, breadth, add)

    _each_step(f, found.rows.count, height, in_row)
    return True


def _is_for_tiles(f: LaneFrame, found: OuterProduct) -> bool:
    """Returns whether the array is a copy that all lanes share, and the other indices are equal in all lanes."""
    if f.accumulators.plan.sums.where(found.updates[0]) is not Where.COPY:
        return False
    fixed = all(isinstance(i, Literal) or f.is_uniform(i) for i in found.lowest)
    return fixed and f.accumulators.copies[found.ref].count == 1


def _each_step(f: LaneFrame, size: int, step: int, make: Callable[[str, int], None]) -> None:
    """Emits `make` of the first number of each step, and of how many it has: the last one may have fewer."""
    whole = size // step * step
    if whole:
        with f.text.counted("0", str(whole), step) as k, f.region():
            make(k, step)
    if whole < size:
        make(str(whole), size - whole)


def _add_tile(
    f: LaneFrame, panels: Panels, lanes: Lanes, array: _Array, at: tuple[str, str], sides: tuple[int, int]
) -> None:
    """Adds the products of all active lanes to a tile of the array."""
    text, o, d = f.text, f.vector, panels.dtype
    (row, column), (height, breadth), kind, number = at, sides, o.type(d), REGISTER[d]
    starts = range(0, breadth, f.width)
    sums = [[text.slot(kind) for _ in starts] for _ in range(height)]
    for slot in itertools.chain(*sums):
        text.do(f"store {kind} {o.constant(identity('add', d).value, d)}, ptr {slot}")
    with text.counted("0", lanes.count, 1) as k, f.region():
        lane = lanes.numbered(f, k)
        offset = text.op(f"add i64 {text.op(f'mul i64 {lane}, {panels.pitch}')}, {column}")
        first = text.op(f"getelementptr {number}, ptr {panels.columns}, i64 {offset}")
        xs = [text.op(f"load {kind}, ptr {ahead(f, number, first, c)}, align {BYTES[number]}") for c in starts]
        offset = text.op(f"add i64 {text.op(f'mul i64 {row}, {f.width * f.vectors}')}, {lane}")
        first = text.op(f"getelementptr {number}, ptr {panels.rows}, i64 {offset}")
        for r in range(height):
            y = text.op(f"load {number}, ptr {ahead(f, number, first, r * f.width * f.vectors)}")
            for x, slot in zip(xs, sums[r], strict=True):
                product = text.op(f"fmul {o.flags}{kind} {f.spread(number, y)}, {x}")
                before = text.op(f"load {kind}, ptr {slot}")
                text.do(f"store {kind} {text.op(f'fadd {o.flags}{kind} {before}, {product}')}, ptr {slot}")
    offset = text.op(f"add i64 {text.op(f'mul i64 {row}, {array.row_stride}')}, {column}")
    first = text.op(f"getelementptr {number}, ptr {array.first}, i64 {offset}")
    for r in range(height):
        for c, slot in zip(starts, sums[r], strict=True):
            place = ahead(f, number, first, r * array.row_stride + c)
            total = text.op(f"load {kind}, ptr {slot}")
            _add(f, d, place, total, min(f.width, breadth - c), array.alias)


def _add(f: LaneFrame, d: DType, place: str, total: str, count: int, alias: str) -> None:
    """Adds the first `count` numbers of a vector to numbers in memory."""
    text, kind, size = f.text, f.vector.type(d), BYTES[REGISTER[d]]
    if count == f.width:
        old = text.op(f"load {kind}, ptr {place}, align {size}{alias}")
        text.do(f"store {kind} {text.op(f'fadd {kind} {old}, {total}')}, ptr {place}, align {size}{alias}")
        return
    bits, suffix = f.vector.bits, f.lanes.suffix(REGISTER[d])
    mask = f.lanes.sequence("i1", ["true" if k < count else "false" for k in range(f.width)])
    text.module.declare(f"llvm.masked.load.{suffix}.p0", kind, f"ptr, i32, {bits}, {kind}")
    text.module.declare(f"llvm.masked.store.{suffix}.p0", "void", f"{kind}, ptr, i32, {bits}")
    old = text.op(
        f"call {kind} @llvm.masked.load.{suffix}.p0(ptr {place}, i32 {size}, {bits} {mask}, {kind} zeroinitializer)"
    )
    total = text.op(f"fadd {kind} {old}, {total}")
    text.do(f"call void @llvm.masked.store.{suffix}.p0({kind} {total}, ptr {place}, i32 {size}, {bits} {mask})")
