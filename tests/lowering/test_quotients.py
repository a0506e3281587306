"""Quotients: a rounding more than the division at most, and the class and sign of its result for every operand."""


from collections.abc import Callable

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Program, Var, literal
from qdtrace.ir.types import DType
from tests.differential.compare import distance
from tests.lowering.harness import TARGETS, branch, execute, i32, loop, program, serial, task, while_loop

FAST = EmitOptions(fast_math=True)
ULPS = 2
"""The reciprocal and the product are both rounded: 1.5 units in the last place of the larger one."""


def numbers(dtype: DType) -> np.ndarray:
    """Every class of number, the borders of what has a normal reciprocal, and some ordinary ones, of both signs."""
    info, rng = np.finfo(dtype.numpy), np.random.default_rng(3)
    exponents = [info.minexp, info.minexp + 1, -1, 0, 1, 10, info.maxexp - 3, info.maxexp - 2, info.maxexp - 1]
    powers = [np.ldexp(m, e) for e in exponents for m in (1.0, 1.0 + info.eps, 1.75)]
    tiny = [info.smallest_subnormal, info.tiny / 2, info.tiny / 4, np.nextafter(info.tiny, 0, dtype=dtype.numpy)]
    special = [0.0, np.inf, np.nan, info.max, 3.0, 49.0, 0.1]
    found = np.array([*special, *tiny, *powers, *rng.lognormal(size=6)], dtype.numpy)
    return np.concatenate([found, -found])


def quotients(b: Builder, x: Var, r: Var) -> Var:
    return b("quotient", x, r, b("div", literal(1.0, r.dtype), r))


def of_lanes(dtype: DType, n: int, m: int) -> tuple[Program, Callable]:
    """Lanes share the divisor, which a loop loads: y[i, j] = x[i] / r[j]."""
    x, r, y = ref_var(dtype, (n,), "x"), ref_var(dtype, (m,), "r"), ref_var(dtype, (n, m), "y")

    def body(b: Builder, i: Var) -> None:
        a = b.load(x, i)
        loop(b, i32(0), i32(m), i32(1), (), lambda j: b.store(y, quotients(b, a, b.load(r, j)), i, j))

    return program((x, r, y), task(n, body), (y,)), lambda a, c: a[:, None] / c


def of_the_head(dtype: DType, n: int, m: int) -> tuple[Program, Callable]:
    """A task for each divisor."""
    x, r, y = ref_var(dtype, (n,), "x"), ref_var(dtype, (m,), "r"), ref_var(dtype, (m, n), "y")

    def made(k: int):
        def body(b: Builder, i: Var, shared: tuple[Var, Var]) -> None:
            b.store(y, b("quotient", b.load(x, i), *shared), i32(k), i)

        def head(b: Builder) -> tuple[Var, Var]:
            d = b.load(r, i32(k))
            return d, b("div", literal(1.0, dtype), d)

        return task(n, body, head)

    return program((x, r, y), [made(k) for k in range(m)], (y,)), lambda a, c: a[None, :] / c[:, None]


def of_a_loop(dtype: DType, n: int, m: int) -> tuple[Program, Callable]:
    """Each lane has a divisor of its own that its loop keeps: y[i, j] = r[j] / x[i]."""
    x, r, y = ref_var(dtype, (n,), "x"), ref_var(dtype, (m,), "r"), ref_var(dtype, (n, m), "y")

    def body(b: Builder, i: Var) -> None:
        d = b.load(x, i)
        c = b("div", literal(1.0, dtype), d)
        loop(b, i32(0), i32(m), i32(1), (), lambda j: b.store(y, b("quotient", b.load(r, j), d, c), i, j))

    return program((x, r, y), task(n, body), (y,)), lambda a, c: c / a[:, None]


def of_lanes_apart(dtype: DType, n: int, m: int) -> tuple[Program, Callable]:
    """Under a mask, in a loop that lanes leave at different times (those of refill, where there are masks)."""
    x, r, y = ref_var(dtype, (n,), "x"), ref_var(dtype, (m,), "r"), ref_var(dtype, (n, m), "y")

    def body(b: Builder, i: Var) -> None:
        d = b.load(x, i)
        c = b("div", literal(1.0, dtype), d)
        odd = b("eq", b("rem", i, i32(2)), i32(1))

        def step(j: Var) -> tuple[Var, ...]:
            v = b.load(r, j)
            (q,) = branch(b, odd, lambda: (b("quotient", v, d, c),), lambda: (b("div", v, d),))
            b.store(y, q, i, j)
            return (b("add", j, i32(1)),)

        while_loop(b, [b("rem", i, i32(3))], lambda j: b("lt", j, i32(m)), step)

    def want(a: np.ndarray, c: np.ndarray) -> np.ndarray:
        skipped = np.arange(m)[None, :] < (np.arange(n) % 3)[:, None]
        return np.where(skipped, 0, c / a[:, None]).astype(a.dtype)

    return program((x, r, y), task(n, body), (y,)), want


def of_one_thread(dtype: DType, n: int, m: int) -> tuple[Program, Callable]:
    """A serial task."""
    x, r, y = ref_var(dtype, (n,), "x"), ref_var(dtype, (m,), "r"), ref_var(dtype, (n, m), "y")

    def body(b: Builder) -> None:
        def row(i: Var) -> None:
            d = b.load(x, i)
            c = b("div", literal(1.0, dtype), d)
            loop(b, i32(0), i32(m), i32(1), (), lambda j: b.store(y, b("quotient", b.load(r, j), d, c), i, j))

        loop(b, i32(0), i32(n), i32(1), (), row)

    return program((x, r, y), serial(body), (y,)), lambda a, c: c / a[:, None]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
@pytest.mark.parametrize("make", [of_lanes, of_the_head, of_a_loop, of_lanes_apart, of_one_thread])
def test_values(make: Callable, dtype: DType, target: str) -> None:
    values = numbers(dtype)
    divisors = values[:: 5 if make is of_the_head else 1]
    made, divide = make(dtype, values.size, divisors.size)
    outs = np.zeros(next(p.type.shape for p in made.params if p in made.results), dtype.numpy)
    (got,) = execute(made, [values, divisors, outs], target, FAST, (0.3,))
    with np.errstate(all="ignore"):
        want = divide(values, divisors)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(np.signbit(got)[~nan], np.signbit(want)[~nan])
    for find in (np.isinf, lambda v: v == 0):
        np.testing.assert_array_equal(find(got), find(want))
    assert (distance(got, want)[~nan] <= ULPS).all()


@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16, DType.f32, DType.f64])
def test_without_fast_math_it_is_the_division(dtype: DType) -> None:
    with np.errstate(over="ignore"):
        values = numbers(DType.f32).astype(dtype.numpy)
    made, divide = of_lanes(dtype, values.size, values.size)
    (got,) = execute(made, [values, values, np.zeros((values.size,) * 2, dtype.numpy)], "avx512")
    with np.errstate(all="ignore"):
        want = divide(values, values)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
