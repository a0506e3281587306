"""Checks of passes: text in, text out, and the same results from the interpreter."""

import functools
import random
from collections.abc import Callable, Sequence

import numpy as np

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from tests.ir.equal import programs_equal

Transform = Callable[[Program], Program]


def parsed(text: str) -> Program:
    """The program, verified."""
    program = parse_program(text)
    verify_program(program)
    return program


def check(transform: Transform, before: str, after: str) -> Program:
    """The pass gives `after` for `before`, nothing more the second time, and the results stay the same."""
    program, wanted = parsed(before), parsed(after)
    got = transform(program)
    verify_program(got)
    assert programs_equal(got, wanted), f"got\n{print_program(got)}wanted\n{print_program(wanted)}"
    assert transform(got) is got
    assert_same_results(program, got)
    return got


def rewrites(transform: Transform) -> Callable[[str], Program]:
    """As `check`, of one text: the pass takes out the lines that begin with `-` and puts in those with `+`."""

    def one(text: str) -> Program:
        return check(transform, _without(text, "+", "-"), _without(text, "-", "+"))

    return one


def _without(text: str, left_out: str, kept: str) -> str:
    lines = [line for line in text.split("\n") if not line.startswith(left_out)]
    return "\n".join(" " * line.startswith(f"{kept} ") + line.removeprefix(kept) for line in lines)


def unchanged(transform: Transform, text: str) -> None:
    """The pass gives back the same object."""
    program = parsed(text)
    got = transform(program)
    assert got is program, print_program(got)


def keeps(transform: Transform) -> Callable[[str], None]:
    """As `unchanged`, with the pass first."""
    return functools.partial(unchanged, transform)


def changes(transform: Transform, text: str) -> bool:
    """Whether the pass changes the program, whose results stay the same."""
    program = parsed(text)
    got = transform(program)
    assert_same_results(program, got)
    return got is not program


def drawn(rng: random.Random, kind: str, name: str, place: str, values: Sequence[str]) -> str:
    """A load of a place, an operation on values, or a store or accumulation of one there, without its indentation."""
    if kind == "load":
        return f"{name}: f32 = load {place}"
    if kind == "op":
        return f"{name}: f32 = {rng.choice(['add', 'mul', 'max'])} {values[-1]} {rng.choice(values)}"
    ref, *index = place.split()
    word = "store" if kind == "store" else "accum[op=add]"
    return f"{word} {ref} {rng.choice(values)} {' '.join(index)}"


def arguments(program: Program, seed: int = 0) -> list[np.ndarray]:
    """Small numbers for floats and integers of many elements, 3 for those of one (they are often lengths)."""
    rng = np.random.default_rng(seed)
    made = []
    for param in program.params:
        shape, dtype = param.type.shape, param.dtype.numpy  # type: ignore[union-attr]
        if shape == ():
            made.append(np.array(3).astype(dtype))
        elif param.dtype.is_float:
            made.append(rng.normal(size=shape).astype(dtype))
        else:
            made.append(rng.integers(0, 4, size=shape).astype(dtype))
    return made


def assert_same_results(a: Program, b: Program, args: Sequence[np.ndarray] | None = None) -> None:
    """Both programs give the same bits (any NaN for a NaN)."""
    args = arguments(a) if args is None else args
    for x, y in zip(evaluate(a, args), evaluate(b, args), strict=True):
        assert_same_bits(x, y)


def assert_same_bits(x: np.ndarray, y: np.ndarray) -> None:
    """Equal bit for bit, so -0.0 is not 0.0; a NaN may be another NaN."""
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    same = x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}")
    if DType.of(x.dtype).is_float:
        same |= np.isnan(x) & np.isnan(y)
    assert same.all(), f"{x[~same][:4]} became {y[~same][:4]}"
