"""Values combined by the operation of an accumulation: `add`, `mul`, `min`, `max` and the bitwise ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.arithmetic import RULES, minimum
from lowering.llvm.vectors import Value
from qdtrace.ir.combining import identity
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from lowering.llvm.vectors import Mask
    from qdtrace.ir.program import Atom


def combine(o: Ops, op: str, d: DType, a: str, b: str) -> str:
    """`a op b` as the elementwise primitives do it; of bools, `add` and `max` are or, `mul` and `min` and."""
    if op in ("min", "max"):
        return minimum(o, d, a, b, largest=op == "max")
    if d is DType.bool and op in ("add", "mul"):
        return o.binary("or" if op == "add" else "and", o.bits, a, b)
    return RULES[op](o, d, [a, b], {}, ())


def combined(f: Frame, op: str, old: Value, value: Atom) -> Value:
    """`old op value` in every lane."""
    d = old.dtype
    if old.scalar is not None:
        return Value(d, scalar=combine(f.scalar, op, d, old.scalar, f.scalar_of(value)))
    assert old.vectors is not None
    olds = old.vectors
    return f.each(d, lambda v: combine(f.vector, op, d, olds[v], f.vector_of(value, v)))


def reduce_lanes(f: Frame, op: str, d: DType, vectors: list[str]) -> str:
    """All lanes of all vectors combined, as a scalar."""
    o, total = f.vector, vectors[0]
    for other in vectors[1:]:
        total = combine(o, op, d, total, other)
    type_, width = o.type(d), f.width
    while width > 1:
        width //= 2
        order = ", ".join(f"i32 {k if k < f.width else 'poison'}" for k in range(width, width + f.width))
        moved = f.text.op(f"shufflevector {type_} {total}, {type_} poison, {f.lanes.of('i32')} <{order}>")
        total = combine(o, op, d, total, moved)
    return f.text.op(f"extractelement {type_} {total}, i64 0") if f.width > 1 else total


def active_or_identity(f: Frame, mask: Mask, op: str, d: DType, value: Atom) -> list[str]:
    """The values of active lanes, the identity in the others."""
    neutral = f.vector.constant(identity(op, d).value, d)
    return [f.blend(mask, d, f.vector_of(value, v), neutral, v) for v in range(f.vectors)]
