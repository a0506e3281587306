"""Interval arithmetic (Moore 1966): the smallest and largest value of a result, from those of the operands.

Where a result can wrap, its interval is that of the dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import primitive
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

Interval = tuple[int, int]


def inside(low: int, high: int, size: int) -> Interval:
    """Returns the range of an index after a check against the length of its axis."""
    low, high = max(low, 0), min(high, size - 1)
    return (low, high) if low <= high else (0, max(size - 1, 0))


def range_of_dtype(dtype: DType) -> Interval:
    """Returns the range of all values of an integer dtype or bool."""
    if dtype is DType.bool:
        return 0, 1
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def range_of_loop(start: Interval, stop: Interval, step: int) -> Interval | None:
    """Returns the range of the index of `for i in start:stop:step` inside of the body, or None if it cannot run."""
    low, high = (start[0], stop[1] - 1) if step > 0 else (stop[0] + 1, start[1])
    return (low, high) if low <= high else None


def range_of_result(name: str, operands: Sequence[Interval], dtype: DType, source: DType) -> Interval:
    """Returns the range of an equation's integer result; `source` is the dtype of the first operand."""
    whole = range_of_dtype(dtype)
    found = _transfer(name, operands, dtype, source)
    if found is None or found[0] < whole[0] or found[1] > whole[1]:
        return whole
    return found


def compared(name: str, a: Interval, b: Interval) -> bool | None:
    """Returns the result of a comparison if it is the same for all values in the two ranges, else None."""
    less, more = a[1] < b[0], a[0] > b[1]
    at_most, at_least = a[1] <= b[0], a[0] >= b[1]
    match name:
        case "lt":
            return True if less else False if at_least else None
        case "le":
            return True if at_most else False if more else None
        case "gt":
            return True if more else False if at_most else None
        case "ge":
            return True if at_least else False if less else None
        case "eq":
            return True if a[0] == a[1] == b[0] == b[1] else False if less or more else None
        case _:
            are_equal = compared("eq", a, b)
            return None if are_equal is None else not are_equal


def _transfer(name: str, operands: Sequence[Interval], dtype: DType, source: DType) -> Interval | None:
    a, b = operands[0]
    c, d = operands[1] if len(operands) > 1 else (0, 0)
    match name:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            products = (a * c, a * d, b * c, b * d)
            return min(products), max(products)
        case "neg":
            return -b, -a
        case "abs":
            return (a, b) if a >= 0 else (-b, -a) if b <= 0 else (0, max(-a, b))
        case "sign":
            return (a > 0) - (a < 0), (b > 0) - (b < 0)
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "select":
            e, f = operands[2]
            return min(c, e), max(d, f)
        case "convert" if source.is_integer or source is DType.bool:
            return a, b
        case "div" if c > 0:
            return (a // d if a >= 0 else -(-a // c)), (b // c if b >= 0 else -(-b // d))
        case "rem" if c > 0:
            return (0 if a >= 0 else max(a, 1 - d)), (0 if b <= 0 else min(b, d - 1))
        case "and" if dtype is not DType.bool and (a >= 0 or c >= 0):
            return 0, min(x for x, low in ((b, a), (d, c)) if low >= 0)
        case "or" if dtype is not DType.bool and a >= 0 and c >= 0:
            return max(a, c), (1 << max(b, d).bit_length()) - 1
        case "xor" if dtype is not DType.bool and a >= 0 and c >= 0:
            return 0, (1 << max(b, d).bit_length()) - 1
        case "shift_right_arithmetic" if b >> (dtype.bits - 1):  # it repeats the top bit of an unsigned integer too
            return None
        case "shift_right_logical" | "shift_right_arithmetic" if a >= 0 and c >= 0 and d < dtype.bits:
            return a >> d, b >> c
        case "shift_left" if a >= 0 and c >= 0 and d < dtype.bits:
            return a << c, b << d
        case "and" if dtype is DType.bool:
            return a & c, b & d
        case "or" if dtype is DType.bool:
            return a | c, b | d
        case "not" if dtype is DType.bool:
            return 1 - b, 1 - a
        case _ if primitive(name).negation and not source.is_float:
            truth = compared(name, (a, b), (c, d))
            return None if truth is None else (int(truth), int(truth))
        case "lane_max":
            return a, b
        case "at_most" if a >= 0:
            return 0, b
        case "population_count" | "clz":
            return 0, dtype.bits
        case _:
            return None
