"""Every elementwise primitive, every dtype, every kind of target: bit for bit as the reference (without fast_math)."""

import numpy as np
import pytest

from lowering.llvm.arithmetic import RULES
from lowering.llvm.options import EmitOptions
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.primitives import FUNCTIONS as MATHS
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Program, Var, literal
from qdtrace.ir.type_rules import IrTypeError
from qdtrace.ir.types import DType, ScalarType
from tests.lowering.harness import TARGETS, agrees, execute, program, same_bits, task

_FRAMED = {"quotient"}
"""Elementwise, but with a branch."""
_ELSEWHERE = {
    "load", "store", "accum", "atomic", "cell", "for", "while", "if", "bound", "check", "custom", "at_most",
    "lane_max", "lane_count", "lane_rank", "platform", "tell",
}  # fmt: skip
_POWERS = (0, 1, 2, 5, -3)


def values_of(dtype: DType) -> np.ndarray:
    """Edges of a dtype and some ordinary values."""
    rng = np.random.default_rng(7)
    if dtype is DType.bool:
        return np.array([False, True])
    if dtype.is_integer:
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        edges = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, high // 2, high // 3]
        edges += [-1, -2, -3, -7, -8] if dtype.is_signed else []
        return np.array([e for e in edges if low <= e <= high], dtype.numpy)
    info = {16: (6e-8, 6.1e-5, 65504.0), 32: (1.4e-45, 1.17549435e-38, 3.4028234e38)}.get(
        dtype.bits, (5e-324, 2.2250738585072014e-308, 1.7976931348623157e308)
    )
    if dtype is DType.bf16:
        info = (9.2e-41, 1.17549435e-38, 3.38e38)
    edges = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.5,
        3.0,
        100.7,
        127.5,
        255.5,
        256.5,
        2.0**31,
        2.0**62,
        np.inf,
        np.nan,
        *info,
        0.49999997,
    ]
    edges += list(rng.normal(size=4)) + list(rng.normal(size=3) * 1e4)
    with np.errstate(over="ignore"):
        array = np.array(edges, np.float64)
        return np.concatenate([array, -array]).astype(dtype.numpy)


def operations(dtype: DType) -> list[tuple[str, dict[str, object], int]]:
    """Primitives with their parameters and arity that accept operands of this dtype."""
    found = []
    for name in PRIMITIVES:
        if name in _ELSEWHERE or name == "select" or name in MATHS:
            continue
        choices: list[dict[str, object]] = [{}]
        if name == "convert":
            choices = [{"dtype": d} for d in DType]
        elif name == "bitcast":
            choices = [{"dtype": d} for d in DType if d.bits == dtype.bits]
        elif name == "integer_pow":
            choices = [{"y": y} for y in _POWERS]
        for params in choices:
            for arity in (1, 2, 3):
                try:
                    PRIMITIVES[name].type_rule([ScalarType(dtype)] * arity, params, ())
                except IrTypeError:
                    continue
                found.append((name, params, arity))
    return found


def table(dtype: DType, names: list[tuple[str, dict[str, object], int]], n: int) -> Program:
    """One task that applies all the operations to elements of three arrays and stores each result."""
    inputs = [ref_var(dtype, (n,), h) for h in "abc"]
    outs: list[Var] = []

    def body(b: Builder, i: Var) -> None:
        loaded = [b.load(r, i) for r in inputs]
        for name, params, arity in names:
            value = b(name, *loaded[:arity], **params)
            out = ref_var(value.dtype, (n,), name)
            outs.append(out)
            b.store(out, value, i)

    made = task(n, body)
    return Program("table", tuple(inputs), tuple(outs), (made,), tuple(outs))


def test_every_primitive_has_a_rule():
    assert set(PRIMITIVES) == set(RULES) | MATHS | _FRAMED | _ELSEWHERE
    assert not set(RULES) & MATHS


@pytest.mark.sample(full=5)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_primitives_agree_with_the_reference(dtype: DType, target: str):
    values = values_of(dtype)
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    c = np.roll(b, 3)
    names = operations(dtype)
    made = table(dtype, names, len(a))
    want = evaluate(made, [a, b, c])
    for (name, params, _), got, expected in zip(names, execute(made, [a, b, c], target), want, strict=True):
        same_bits(got, expected, (name, params, dtype, target))


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer], ids=lambda d: d.value)
@pytest.mark.parametrize("by", [0, 1, 2, 7, 10, -1, -3])
def test_integer_division_by_constants(dtype: DType, by: int):
    if by < 0 and not dtype.is_signed:
        by = int(np.iinfo(dtype.numpy).max) + by
    values = values_of(dtype)
    x, q, r, s = (ref_var(dtype, values.shape, h) for h in "xqrs")

    def body(b: Builder, i: Var) -> None:
        constant = literal(by, dtype)
        loaded = b.load(x, i)
        b.store(q, b("div", loaded, constant), i)
        b.store(r, b("rem", loaded, constant), i)
        b.store(s, b("shift_left", loaded, constant), i)

    agrees(Program("p", (x,), (q, r, s), (task(len(values), body),), (q, r, s)), [values], ("avx512", "scalar"), ())


@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16, DType.f32, DType.f64], ids=lambda d: d.value)
@pytest.mark.parametrize("constant", [0.0, -0.0, 1.5, float("nan"), float("inf")])
def test_min_and_max_with_constants(dtype: DType, constant: float):
    values = values_of(dtype)
    x, low, high = (ref_var(dtype, values.shape, h) for h in ("x", "low", "high"))

    def body(b: Builder, i: Var) -> None:
        loaded, c = b.load(x, i), literal(constant, dtype)
        b.store(low, b("min", loaded, c), i)
        b.store(high, b("max", c, loaded), i)

    agrees(Program("p", (x,), (low, high), (task(len(values), body),), (low, high)), [values], ("avx512", "avx2"), ())


@pytest.mark.parametrize("target", TARGETS)
def test_uniform_operands_are_computed_once_and_spread(target: str):
    scale, x, y = ref_var(DType.f32, (), "scale"), ref_var(DType.f32, (33,), "x"), ref_var(DType.f32, (33,), "y")

    def body(b: Builder, i: Var) -> None:
        s = b.load(scale)
        twice = b("add", s, s)
        positive = b("gt", twice, literal(0, DType.f32))
        b.store(y, b("select", positive, b("mul", b.load(x, i), twice), b.load(x, i)), i)

    made = program([scale, x, y], task(33, body), [y])
    agrees(made, [np.float32(3), np.arange(33, dtype=np.float32), np.zeros(33, np.float32)], (target,))


def test_a_division_by_a_constant_that_passes_left_is_one():
    x, y = ref_var(DType.f32, (20,), "x"), ref_var(DType.f32, (20,), "y")

    def body(b: Builder, i: Var) -> None:
        b.store(y, b("div", b.load(x, i), literal(3, DType.f32)), i)

    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, *np.linspace(-5, 5, 15)], np.float32)
    made = Program("p", (x,), (y,), (task(20, body),), (y,))
    (got,) = execute(made, [values], "avx512", EmitOptions(fast_math=True))
    np.testing.assert_array_equal(got, values / np.float32(3))
    assert np.signbit(got[4])


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_of_64_bits_are_rounded_once_to_halves(target: str):
    """Numbers beside the middle of two halves, closer to it than f32 can say."""
    x, y = ref_var(DType.f64, (40,), "x"), ref_var(DType.f16, (40,), "y")
    middle = (1 + 2 * np.arange(10)) * 2.0**-11 + 1
    values = np.concatenate([s * (middle + d * 2.0**-40) for s in (1, -1) for d in (1, -1)])
    body = task(40, lambda b, i: b.store(y, b.convert(b.load(x, i), DType.f16), i))
    (got,) = execute(Program("p", (x,), (y,), (body,), (y,)), [values], target)
    np.testing.assert_array_equal(got, values.astype(np.float16))
