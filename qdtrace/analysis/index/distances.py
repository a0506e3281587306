"""Upper bounds on the difference of two integers: loads from one array with known steps, and what is added to one.

    a: i32 = load row i                    # row: ref[i32,1001] in (0, 65536, 256)
    i_1: i32 = add i 1:i32
    b: i32 = load row i_1                  # at most 256 greater than a
    c: i32 = min b 10:i32                  # so is this
    d: i32 = min n 8:i32
    e: i32 = add a d                       # at most 8 greater than a

An index that is at most `k` steps behind another one, going around from the last element to the first, stays so where
both count from the end if they are negative, where both are clamped to the array, and where one wraps in a dtype that
has a negative number for each element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ADD, BOUND, CONVERT, LOAD, LT, MAX, MIN, SELECT, SUB
from qdtrace.ir.program import Literal, ref_type

if TYPE_CHECKING:
    from qdtrace.analysis.index.tight_ranges import TightRanges
    from qdtrace.ir.program import Atom, Eqn

_DEPTH = 6
"""Largest depth of definitions that a difference looks through."""


def most_apart(high: Atom, low: Atom, ranges: TightRanges, depth: int = _DEPTH) -> int | None:
    """Returns an upper bound of `high - low`, or None if no common origin of the two gives one."""
    if depth <= 0:
        return None
    if high is low:
        return 0

    def apart(high: Atom, low: Atom) -> int | None:
        return most_apart(high, low, ranges, depth - 1)

    up, down = ranges.definition(high), ranges.definition(low)
    found: list[int | None] = []
    if up is not None and down is not None and up.primitive is LOAD and down.primitive is LOAD:
        return _by_steps(up, down, ranges)
    if up is not None:
        source, shift = _shifted(up, ranges)
        if source is not None:
            known = apart(source, low)
            return None if known is None else known + shift
        if up.primitive is ADD:
            for a, b in (up.invars, up.invars[::-1]):
                known, (least, most) = apart(a, low), ranges.bound_of(b)
                # a sum that wraps upwards is less than both
                if known is not None and (least >= 0 or _is_exact(up, a, least, ranges)):
                    found.append(known + most)
        if up.primitive in (MIN, MAX):
            sides = [apart(a, low) for a in up.invars]
            found.append(_either(sides) if up.primitive is MIN else _both(sides))
    if down is not None:
        source, shift = _shifted(down, ranges)
        if source is not None:
            known = apart(high, source)
            return None if known is None else known - shift
        if down.primitive in (MIN, MAX):
            sides = [apart(high, a) for a in down.invars]
            found.append(_either(sides) if down.primitive is MAX else _both(sides))
    return _either(found)


def _either(found: list[int | None]) -> int | None:
    return min((each for each in found if each is not None), default=None)


def _both(found: list[int | None]) -> int | None:
    known = [each for each in found if each is not None]
    return max(known) if len(known) == len(found) else None


def _shifted(eqn: Eqn, ranges: TightRanges) -> tuple[Atom | None, int]:
    """Returns the value to which an equation adds a constant, surely without wrapping, and the constant."""
    source, shift = _sum(eqn)
    return (source, shift) if source is not None and _is_exact(eqn, source, shift, ranges) else (None, 0)


def _is_exact(eqn: Eqn, source: Atom, shift: int, ranges: TightRanges) -> bool:
    (first, last), (low, high) = ranges.of(source), range_of_dtype(eqn.outvar.dtype)
    return low <= first + shift and last + shift <= high


def _sum(eqn: Eqn) -> tuple[Atom | None, int]:
    """Returns the value to which an equation adds a constant, and the constant; None for another equation."""
    if eqn.primitive in (BOUND, CONVERT) and eqn.invars[0].dtype.is_integer:
        return eqn.invars[0], 0
    if eqn.primitive in (ADD, SUB):
        a, b = eqn.invars
        if isinstance(b, Literal):
            return a, int(b.value) * (1 if eqn.primitive is ADD else -1)
        if isinstance(a, Literal) and eqn.primitive is ADD:
            return b, int(a.value)
    return None, 0


def _by_steps(up: Eqn, down: Eqn, ranges: TightRanges) -> int | None:
    """Returns the most by which one load is greater than another one of the same array, a few steps before it."""
    ref = reference(up)
    known = ranges.limits.get(ref)
    if known is None or reference(down) is not ref:
        return None
    total = 0
    for before, behind, size, step in zip(
        indices_of(down), indices_of(up), ref_type(ref).shape, known.steps, strict=True
    ):
        count = _steps_behind(before, behind, size, ranges)
        if count is None:
            return None
        total += count * step
    return total


def _steps_behind(before: Atom, behind: Atom, size: int, ranges: TightRanges, depth: int = _DEPTH) -> int | None:
    """Returns the most steps from one index to another along an axis of that size, or None if it is not known."""
    (first, start), (second, end) = _base(before, size, ranges), _base(behind, size, ranges)
    if first is second or (isinstance(first, Literal) and isinstance(second, Literal)):
        return end - start if start <= end else None
    one, other = ranges.definition(first), ranges.definition(second)
    if start or end or one is None or other is None or one.primitive is not other.primitive or depth <= 0:
        return None
    if one.primitive is SELECT:
        a, b = _counted_from_end(one, size, ranges), _counted_from_end(other, size, ranges)
    else:
        a, b = _clamped(one, size), _clamped(other, size)
    return None if a is None or b is None else _steps_behind(a, b, size, ranges, depth - 1)


def _base(index: Atom, size: int, ranges: TightRanges) -> tuple[Atom, int]:
    """Returns the value that constants were added to, and their sum; a literal is its own value added to nothing."""
    total = 0
    for _ in range(_DEPTH):
        eqn = ranges.definition(index)
        source, shift = _sum(eqn) if eqn is not None else (None, 0)
        if eqn is None or source is None:
            break
        if size > 1 << (eqn.outvar.dtype.bits - 1) and not _is_exact(eqn, source, shift, ranges):
            break
        index, total = source, total + shift
    return index, total + (int(index.value) if isinstance(index, Literal) else 0)


def _clamped(eqn: Eqn, size: int) -> Atom | None:
    """Returns the index that an equation limits to an end of the axis; None for another equation."""
    end = 0 if eqn.primitive is MAX else size - 1 if eqn.primitive is MIN else None
    index, limit = eqn.invars if end is not None else (None, None)
    return index if isinstance(limit, Literal) and int(limit.value) == end else None


def _counted_from_end(eqn: Eqn, size: int, ranges: TightRanges) -> Atom | None:
    """Returns the index that a `select` counts from the end if it is negative; None for another equation."""
    condition, wrapped, index = eqn.invars
    test = ranges.definition(condition)
    if test is None or test.primitive is not LT or test.invars[0] is not index:
        return None
    is_zero = isinstance(test.invars[1], Literal) and not int(test.invars[1].value)
    (a, start), (b, end) = _base(index, size, ranges), _base(wrapped, size, ranges)
    return index if is_zero and a is b and end - start == size else None
