"""Ranges of integers hold every value that the interpreter computes, and are tight where it is easy."""

import random

import pytest

from qdtrace.analysis.index.intervals import range_of_dtype, range_of_loop, range_of_result
from qdtrace.analysis.index.ranges import Ranges
from qdtrace.interpret.numpy_rules import quiet, scalar_function
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

BINARY = [
    "add",
    "sub",
    "mul",
    "min",
    "max",
    "div",
    "rem",
    "and",
    "or",
    "xor",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
]
UNARY = ["neg", "abs", "population_count", "clz", "not", "sign"]


def intervals(rng: random.Random, dtype: DType) -> tuple[int, int]:
    low, high = range_of_dtype(dtype)
    start = rng.choice([low, 0, rng.randint(low, high), rng.randint(max(low, -4), 9)])
    return start, min(high, start + rng.randint(0, 9))


@pytest.mark.parametrize("dtype", [DType.i8, DType.u8])
@pytest.mark.parametrize("name", BINARY + UNARY)
def test_every_result_is_in_the_range(name: str, dtype: DType) -> None:
    rng = random.Random(name)
    make = dtype.numpy.type
    function = scalar_function(name, [dtype, dtype], {})
    with quiet():
        for _ in range(200):
            operands = [intervals(rng, dtype) for _ in range(1 if name in UNARY else 2)]
            low, high = range_of_result(name, operands, dtype, dtype)
            values = [[make(v) for v in range(a, b + 1)] for a, b in operands]
            for x in values[0]:
                for rest in values[1] if len(values) > 1 else (None,):
                    result = int(function(x) if rest is None else function(x, rest))
                    assert low <= result <= high, (name, operands, x, rest)


@pytest.mark.parametrize(
    ("name", "operands", "wanted"),
    [
        ("add", [(0, 7), (1, 2)], (1, 9)),
        ("add", [(0, 7), (0, 2**31 - 1)], (-(2**31), 2**31 - 1)),
        ("sub", [(0, 7), (1, 2)], (-2, 6)),
        ("mul", [(-2, 3), (4, 5)], (-10, 15)),
        ("div", [(0, 15), (2, 4)], (0, 7)),
        ("div", [(0, 15), (0, 4)], (-(2**31), 2**31 - 1)),
        ("rem", [(0, 100), (8, 8)], (0, 7)),
        ("rem", [(-3, 100), (8, 8)], (-3, 7)),
        ("and", [(-5, 100), (7, 7)], (0, 7)),
        ("or", [(0, 5), (8, 8)], (8, 15)),
        ("shift_left", [(0, 3), (2, 2)], (0, 12)),
        ("abs", [(-3, 2)], (0, 3)),
        ("select", [(0, 1), (2, 3), (7, 9)], (2, 9)),
        ("not", [(0, 3)], (-(2**31), 2**31 - 1)),
    ],
)
def test_tight(name: str, operands: list[tuple[int, int]], wanted: tuple[int, int]) -> None:
    assert range_of_result(name, operands, DType.i32, DType.i32) == wanted


def test_loops_and_constants() -> None:
    assert range_of_loop((0, 0), (8, 8), 1) == (0, 7)
    assert range_of_loop((7, 7), (-1, -1), -1) == (0, 7)
    assert range_of_loop((0, 3), (2, 9), 2) == (0, 8)
    assert range_of_loop((8, 8), (8, 8), 1) is None
    ranges = Ranges(lambda atom: None)
    assert ranges.of(literal(-3, DType.i8)) == (-3, -3)
    assert ranges.of(literal(True, DType.bool)) == (1, 1)
