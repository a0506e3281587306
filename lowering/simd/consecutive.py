"""Loads at indices that are consecutive in all lanes but at borders: wrapped and clamped neighbours of stencils.

`x[(i + 1) % n]` and `x[min(i + 1, n - 1)]` are no affine forms, so lanes would gather. Of all steps of a row, only the
first and the last one reach a border. So the lanes compare their indices with those of a contiguous load, and gather
only if these differ. The comparison decides, whatever the index is: what is known of it says where to try, and where
two lanes tell about all of them, as no index rises by more than one from lane to lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.arithmetic import RULES
from lowering.llvm.types import REGISTER
from lowering.simd.addresses import lane_stride
from qdtrace.ir.primitives import ADD, AND, BOUND, CONVERT, GE, GT, LE, LT, MAX, MIN, REM, SELECT, SUB
from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowering.simd.descriptions import Address
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn

    Through = Callable[[LaneFrame, Eqn, Callable[[Atom], bool]], bool]
    """Says of an equation whether its result grows so, given whether an operand does."""

DEPTH = 8
"""Largest number of operations between an index and the affine form that it follows."""
ROWS = 4
"""A remainder is tried if its divisor is at least this number of vectors."""


def mostly_consecutive(f: LaneFrame, indices: Sequence[Atom]) -> bool:
    """Returns whether lanes access consecutive elements of the last axis, except perhaps at borders."""
    *others, last = indices
    if any(not isinstance(i, Literal) and not f.is_uniform(i) for i in others):
        return False
    return _walks(f, last, _follows)


def rises_by_one(f: LaneFrame, atom: Atom) -> bool:
    """Returns whether a value rises by one from lane to lane at most, so that its ends tell whether it always does.

    A remainder rises by one, or falls; what is clamped rises as its operand or stays.
    """
    return _walks(f, atom, _rises)


def _walks(f: LaneFrame, atom: Atom, through: Through, depth: int = DEPTH) -> bool:
    """Returns whether a value is affine and grows by one from lane to lane, or is made of one `through` equations."""
    if isinstance(atom, Literal) or f.is_uniform(atom) or not depth:
        return False
    if lane_stride(f, f.facts.forms.of(atom)) == 1:
        return True
    eqn = f.facts.definitions.get(atom)
    return eqn is not None and through(f, eqn, lambda operand: _walks(f, operand, through, depth - 1))


def _follows(f: LaneFrame, eqn: Eqn, follows: Callable[[Atom], bool]) -> bool:
    """Returns whether a result grows by one from lane to lane, except perhaps at borders."""
    prim, operands = eqn.primitive, eqn.invars
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


def _rises(f: LaneFrame, eqn: Eqn, rises: Callable[[Atom], bool]) -> bool:
    """Returns whether a result rises by one from lane to lane at most."""
    prim, operands = eqn.primitive, eqn.invars
    if prim is SELECT:
        return _falls_where_it_wraps(f, *operands)
    if prim in (AND, REM) and not (isinstance(operands[1], Literal) and _is_divisor(prim is AND, operands[1])):
        return False
    if prim in (MIN, MAX, ADD, SUB, AND, REM) and not _is_shared(f, operands[1]):
        return False
    return prim in (CONVERT, BOUND, MIN, MAX, ADD, SUB, AND, REM) and rises(operands[0])


def _is_shared(f: LaneFrame, atom: Atom) -> bool:
    return isinstance(atom, Literal) or f.is_uniform(atom)


def _is_long(f: LaneFrame, divisor: Atom) -> bool:
    """Returns whether a divisor, or the mask of a remainder, leaves most vectors without a border."""
    if isinstance(divisor, Literal):
        return int(divisor.value) >= ROWS * f.width - 1
    return f.is_uniform(divisor)


def _is_divisor(is_mask: bool, constant: Literal) -> bool:
    """Returns whether a constant is positive and, if it is a mask, one below a power of two."""
    value = int(constant.value)
    return value > 0 and not (is_mask and value & (value + 1))


def _falls_where_it_wraps(f: LaneFrame, condition: Atom, moved: Atom, rest: Atom) -> bool:
    """Returns whether `select(x < a, x + c, x)`, or `select(x >= a, x - c, x)`, has a rising x and no negative c."""
    less = f.facts.definitions.get(condition) if isinstance(condition, Var) else None
    if less is None or less.invars[0] is not rest or not _is_shared(f, less.invars[1]):
        return False
    x = f.facts.forms.of(rest)
    distance = f.facts.forms.of(moved).plus(x, -1)
    if lane_stride(f, x) != 1 or distance.terms:
        return False
    return (less.primitive in (LT, LE) and distance.constant >= 0) or (
        less.primitive in (GT, GE) and distance.constant <= 0
    )


def load_or_gather(
    f: LaneFrame,
    kind: str,
    address: Address,
    contiguous: Callable[[str, int, int], str],
    gathered: Callable[[int], str],
    *,
    rising: Atom | None,
) -> list[str]:
    """Emits, by vectors, `contiguous` of a pointer and a distance from it where lanes are consecutive, else `gathered`.

    If the index is `rising` by one at most, the first and the last lane tell about all vectors; else each vector's
    lanes are compared.
    """
    together = [range(v, v + 1) for v in range(f.vectors)] if rising is None else [range(f.vectors)]
    return [raw for group in together for raw in _group(f, kind, address, group, contiguous, gathered, rising)]


def _of_lane(f: LaneFrame, atom: Atom, lane: int) -> str:
    """Emits the value of a rising index in one lane, in scalar code: only lanes that gather need the others."""
    if isinstance(atom, Literal) or f.is_uniform(atom):
        return f.scalar_of(atom)
    eqn, kind = f.facts.definitions.get(atom), REGISTER[atom.dtype]
    moved = eqn is not None and eqn.primitive in (ADD, SUB, CONVERT)
    if eqn is None or (lane_stride(f, f.facts.forms.of(atom)) == 1 and not moved):
        vector = f.vector_of(atom, 0)
        first = f.cached(("lane", vector), lambda: f.text.op(f"extractelement {f.lanes.of(kind)} {vector}, i32 0"))
        return f.text.op(f"add {kind} {first}, {lane}") if lane else first
    values = [_of_lane(f, a, lane) for a in eqn.invars]
    if eqn.primitive is BOUND:
        return values[0]
    if eqn.primitive is SELECT:
        return f.scalar.select(values[0], kind, *values[1:])
    return RULES[eqn.primitive.name](f.scalar, eqn.invars[0].dtype, values, eqn.params, eqn.invars)


def _group(
    f: LaneFrame,
    kind: str,
    address: Address,
    group: range,
    contiguous: Callable[[str, int, int], str],
    gathered: Callable[[int], str],
    rising: Atom | None,
) -> list[str]:
    assert address.offsets is not None
    text, offsets, number = f.text, address.offsets[group[0]], address.offset_type
    vector = f.lanes.of(number)
    if rising is not None:
        count, own = f.width * len(group), REGISTER[rising.dtype]
        if f.split or f.is_part:  # what the index is made of may be elsewhere
            own, lanes = number, ((offsets, 0), (address.offsets[group[-1]], f.width - 1))
            first, last = (text.op(f"extractelement {vector} {name}, i32 {lane}") for name, lane in lanes)
        else:
            first, last = _of_lane(f, rising, 0), _of_lane(f, rising, count - 1)
        distance = text.op(f"sub {own} {last}, {first}")
        condition = text.op(f"icmp eq {own} {distance}, {count - 1}")
        first = first if own == number else f.scalar.cast("sext", own, first, number)
        pointer = text.op(f"getelementptr {kind}, ptr {address.pointer}, {number} {first}")
    else:
        first = text.op(f"extractelement {vector} {offsets}, i32 0")
        pointer = text.op(f"getelementptr {kind}, ptr {address.pointer}, {number} {first}")
        steps = text.op(f"add {vector} {f.spread(number, first)}, {f.lanes.range(number)}")
        same = text.op(f"bitcast {f.vector.bits} {text.op(f'icmp eq {vector} {offsets}, {steps}')} to i{f.width}")
        condition = text.op(f"icmp eq i{f.width} {same}, -1")
    labels = text.fresh_label("consecutive"), text.fresh_label("apart")
    join = text.fresh_label("loaded")
    text.branch(condition, *labels)
    results: list[list[str]] = []
    sources: list[str] = []

    def side_by_side(v: int) -> str:
        return contiguous(pointer, (v - group[0]) * f.width, v)

    for label, make in zip(labels, (side_by_side, gathered), strict=True):
        text.begin(label)
        with f.region():
            results.append([make(v) for v in group])
        sources.append(text.label)
        text.jump(join)
    text.begin(join)
    type_, (one, other) = f.lanes.of(kind), sources
    return [text.op(f"phi {type_} [ {a}, %{one} ], [ {b}, %{other} ]") for a, b in zip(*results, strict=True)]
