"""Loads at indices that are consecutive in all lanes but at borders: wrapped and clamped neighbours of stencils.

`x[(i + 1) % n]` and `x[min(i + 1, n - 1)]` are no affine forms, so lanes would gather. Of all steps of a row, only the
first and the last one reach a border. So the lanes compare their indices with those of a contiguous load, and gather
only if these differ. The comparison decides, whatever the index is: what is known of it says only where to try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.addresses import lane_stride
from qdtrace.ir.primitives import ADD, AND, BOUND, CONVERT, MAX, MIN, REM, SELECT, SUB
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowering.simd.descriptions import Address
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom

DEPTH = 8
"""Largest number of operations between an index and the affine form that it follows."""
ROWS = 4
"""A remainder is tried if its divisor is at least this number of vectors."""


def mostly_consecutive(f: LaneFrame, indices: Sequence[Atom]) -> bool:
    """Returns whether lanes access consecutive elements of the last axis, except perhaps at borders."""
    *others, last = indices
    if any(not isinstance(i, Literal) and not f.is_uniform(i) for i in others):
        return False
    return _follows(f, last, DEPTH)


def _follows(f: LaneFrame, atom: Atom, depth: int) -> bool:
    """Returns whether a value grows by one from lane to lane, except perhaps at borders."""
    if isinstance(atom, Literal) or f.is_uniform(atom) or not depth:
        return False
    if lane_stride(f, f.facts.forms.of(atom)) == 1:
        return True
    eqn = f.facts.definitions.get(atom)
    if eqn is None:
        return False
    prim, operands = eqn.primitive, eqn.invars

    def follows(a: Atom) -> bool:
        return _follows(f, a, depth - 1)

    if prim in (CONVERT, BOUND):
        return follows(operands[0])
    if prim in (MIN, MAX):
        return any(map(follows, operands))
    if prim is SELECT:
        return any(map(follows, operands[1:]))
    if prim in (ADD, SUB):
        return follows(operands[0]) and _is_shared(f, operands[1])
    if prim in (AND, REM):
        return follows(operands[0]) and _is_long(f, operands[1])
    return False


def _is_shared(f: LaneFrame, atom: Atom) -> bool:
    return isinstance(atom, Literal) or f.is_uniform(atom)


def _is_long(f: LaneFrame, divisor: Atom) -> bool:
    """Returns whether a divisor, or the mask of a remainder, leaves most vectors without a border."""
    if isinstance(divisor, Literal):
        return int(divisor.value) >= ROWS * f.width - 1
    return f.is_uniform(divisor)


def load_or_gather(
    f: LaneFrame, kind: str, address: Address, v: int, contiguous: Callable[[str], str], gathered: Callable[[], str]
) -> str:
    """Emits `contiguous` at lane 0's pointer if the lanes of vector v are consecutive, else `gathered`."""
    assert address.offsets is not None
    text, offsets, number = f.text, address.offsets[v], address.offset_type
    vector = f.lanes.of(number)
    first = text.op(f"extractelement {vector} {offsets}, i32 0")
    pointer = text.op(f"getelementptr {kind}, ptr {address.pointer}, {number} {first}")
    steps = text.op(f"add {vector} {f.spread(number, first)}, {f.lanes.range(number)}")
    same = text.op(f"bitcast {f.vector.bits} {text.op(f'icmp eq {vector} {offsets}, {steps}')} to i{f.width}")
    labels = text.fresh_label("consecutive"), text.fresh_label("apart")
    join = text.fresh_label("loaded")
    text.branch(text.op(f"icmp eq i{f.width} {same}, -1"), *labels)
    results: list[str] = []
    ends: list[str] = []
    for label, make in zip(labels, (lambda: contiguous(pointer), gathered), strict=True):
        text.begin(label)
        with f.region():
            results.append(make())
        ends.append(text.label)
        text.jump(join)
    text.begin(join)
    type_ = f.lanes.of(kind)
    return text.op(f"phi {type_} [ {results[0]}, %{ends[0]} ], [ {results[1]}, %{ends[1]} ]")
