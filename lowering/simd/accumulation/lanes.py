"""Reductions over lanes by the operation of an accumulation, and loops over lanes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.combining import combine
from lowering.llvm.ops import Ops
from lowering.llvm.vectors import Lanes
from qdtrace.ir.combining import ON_BOOL, identity
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Generator

    from lowering.llvm.text import Text
    from lowering.simd.descriptions import Mask
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom


def reduce_lanes(f: LaneFrame, op: str, d: DType, vectors: list[str]) -> str:
    """Combines all lanes of all vectors into a scalar."""
    o, total = f.vector, vectors[0]
    for other in vectors[1:]:
        total = combine(o, op, d, total, other)
    joined = ON_BOOL.get(op, op) if d is DType.bool else ""
    if joined in ("or", "and") and f.width > 1:
        number = f.text.op(f"bitcast {o.bits} {total} to i{f.width}")
        return f.text.op(f"icmp {'ne' if joined == 'or' else 'eq'} i{f.width} {number}, {0 if joined == 'or' else -1}")
    width = f.width
    while width > 1:
        # vectors become shorter, as lanes move slowly between the halves of a register; two lanes stay a vector
        kind, width = o.type(d), width // 2
        kept = Lanes(max(width, 2))
        o = Ops(f.text, kept, f.target, f.scalar.fast_math)
        first, second = (
            f.text.op(f"shufflevector {kind} {total}, {kind} poison, {kept.of('i32')} {kept.sequence('i32', order)}")
            for order in (range(kept.width), [width, "poison"] if width == 1 else range(width, 2 * width))
        )
        total = combine(o, op, d, first, second)
    return f.text.op(f"extractelement {o.type(d)} {total}, i64 0") if f.width > 1 else total


def active_or_identity(f: LaneFrame, mask: Mask, op: str, d: DType, value: Atom) -> list[str]:
    """Returns the values of active lanes, with the identity in the others."""
    neutral = f.vector.constant(identity(op, d).value, d)
    return [f.blend(mask, d, f.vector_of(value, v), neutral, v) for v in range(f.vectors)]


@contextmanager
def each_active(f: LaneFrame, v: int) -> Generator[str]:
    """Opens a loop over the active lanes of vector v, in order; yields the lane's number as i64."""
    bits = f.text.op(f"bitcast {f.vector.bits} {f.mask_of(f.mask, v)} to i{f.width}")
    with each_bit(f.text, bits, f.width) as lane, f.region():
        yield lane


@contextmanager
def each_bit(text: Text, bits: str, width: int) -> Generator[str]:
    """Opens a loop over the bits of an integer that are set, the lowest first; yields the bit's number as i64."""
    wide = text.op(f"zext i{width} {bits} to i64")
    loop, done, before = text.fresh_label("lane"), text.fresh_label("lanes"), text.label
    inside = text.fresh_label("active")
    text.jump(loop)
    text.begin(loop)
    rest, hole = text.name(), text.hole()
    text.branch(text.op(f"icmp ne i64 {rest}, 0"), inside, done)
    text.begin(inside)
    text.module.declare("llvm.cttz.i64", "i64", "i64, i1")
    yield text.op(f"call i64 @llvm.cttz.i64(i64 {rest}, i1 true)")
    fewer = text.op(f"and i64 {rest}, {text.op(f'add i64 {rest}, -1')}")
    text.fill(hole, f"{rest} = phi i64 [ {wide}, %{before} ], [ {fewer}, %{text.label} ]")
    text.jump(loop)
    text.begin(done)
