"""Floats that become integers, around the limits of each integer dtype, and remainders by powers of two."""

import re

import numpy as np
import pytest

from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Program, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import TARGETS, execute, program, same_bits, task

FLOATS = [DType.f16, DType.bf16, DType.f32, DType.f64]
INTEGERS = [d for d in DType if d.is_integer]
DIVISORS = [2.0**k for k in (0, 1, 7, 14)]


def around(number: float, dtype: DType) -> list[np.ndarray]:
    """A number in a float dtype, its neighbours, and both negated."""
    x = np.asarray(number).astype(dtype.numpy)
    ends = [np.nextafter(x, np.asarray(np.inf, dtype.numpy)), x, np.nextafter(x, np.asarray(0, dtype.numpy))]
    return [*ends, *(-v for v in ends)]


def values_of(dtype: DType) -> np.ndarray:
    numbers = [2.0**k for k in (0, 7, 8, 15, 16, 31, 32, 63, 64)]
    numbers += [0.0, 0.5, 127.5, 1e-30, np.inf, 6.5e4]
    with np.errstate(all="ignore"):
        return np.array([*(v for x in numbers for v in around(x, dtype)), *np.full(2, np.nan)]).astype(dtype.numpy)


def converted(dtype: DType, count: int) -> Program:
    """A program that converts elements to every integer dtype, and takes their remainders by powers of two."""
    x = ref_var(dtype, (count,), "x")
    outs = [ref_var(d, (count,), f"to_{d}") for d in INTEGERS]
    rests = [ref_var(dtype, (count,), f"rem_{k:.0f}") for k in DIVISORS]

    def body(b: Builder, i: Var) -> None:
        value = b.load(x, i)
        for out in outs:
            b.store(out, b.convert(value, out.dtype), i)
        for rest, divisor in zip(rests, DIVISORS, strict=True):
            b.store(rest, b("rem", value, literal(divisor, dtype)), i)

    return program([x, *outs, *rests], task(count, body), [*outs, *rests])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_limits(dtype: DType, target: str) -> None:
    x = values_of(dtype)
    made = converted(dtype, x.size)
    args = [x, *(np.zeros(x.size, r.dtype.numpy) for r in made.results)]
    with np.errstate(all="ignore"):
        wanted = evaluate(made, args)
    for out, got, want in zip(made.results, execute(made, args, target), wanted, strict=True):
        same_bits(got, want, out)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_vectors_are_converted_as_vectors(target: str) -> None:
    """LLVM converts each element of a vector alone, where it is to saturate."""
    text = emit_task(converted(DType.f32, 64).tasks[0], Target.named(target)).text
    assert not re.search(r"fpto[su]i\.sat\.v", text)
    assert "qdm.rem" not in text
