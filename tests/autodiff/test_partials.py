"""Partial derivatives of every operation, against JAX's own, on values that include the edges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax

from qdtrace.autodiff.partials import RULES, WITHOUT, partials
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Block, Program, Task, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program

STRUCTURED = {"for", "while", "if", "load", "store", "accum", "atomic", "quotient", "custom"}
REAL = [-7.5, -2.25, -1.0, -0.3, 0.0, 0.25, 0.5, 1.0, 1.75, 3.0, 12.5]
DOMAIN = {
    "sqrt": [0.25, 1.0, 9.5], "rsqrt": [0.25, 1.0, 9.5], "cbrt": [-8.0, 0.3, 27.0], "log": [0.2, 1.0, 30.0],
    "log2": [0.2, 1.0, 30.0], "log1p": [-0.5, 0.0, 4.0], "asin": [-0.9, 0.0, 0.4], "acos": [-0.9, 0.0, 0.4],
    "atanh": [-0.9, 0.0, 0.4], "acosh": [1.1, 2.0, 40.0], "erf_inv": [-0.9, 0.0, 0.4], "tan": [-1.4, 0.0, 0.7],
    "lgamma": [0.3, 1.0, 5.5, -1.5], "digamma": [0.3, 1.0, 5.5, 80.0],
}  # fmt: skip
UNARY = [
    "neg", "abs", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "logistic", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv",
    "lgamma", "digamma", "sign", "floor", "ceil",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "max", "min", "pow", "atan2", "rem"]
LIMIT = {DType.f64: 1e-12, DType.f32: 2e-5}


def slopes(name, dtype, points, **params):
    """Partial derivatives by every operand at each point, by the interpreter."""
    points = [np.asarray(p, dtype.numpy) for p in points]
    n, arity = len(points[0]), len(points)
    ins = [ref_var(dtype, (n,), f"x{k}") for k in range(arity)]
    outs = [ref_var(dtype, (n,), f"d{k}") for k in range(arity)]
    b, i = Builder(), scalar_var(DType.i32, "i")
    with b.block() as body:
        values = [b.load(r, i) for r in ins]
        b(name, *values, **params)
        eqn = b.current.eqns[-1]
        for ref, part in zip(outs, partials(b, eqn, eqn.invars, eqn.outvar), strict=True):
            b.store(ref, literal(0, dtype) if part is None else part(literal(1, dtype)), i)
    task = Task("range_for", i, literal(0, DType.i32), literal(n, DType.i32), body.close())
    program = Program("p", tuple(ins), tuple(outs), (task,), tuple(outs))
    verify_program(program)
    return evaluate(program, points)


def of_last(builder):
    eqn = builder.current.eqns[-1]
    return partials(builder, eqn, eqn.invars, eqn.outvar)


def jax_slopes(fn, dtype, points):
    points = [jnp.asarray(p, dtype.numpy) for p in points]
    return [jax.vmap(jax.grad(fn, argnums=k))(*points) for k in range(len(points))]


def function(name):
    return jnp.log2 if name == "log2" else getattr(lax, name)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def close(got, want, dtype):
    for g, w in zip(got, want, strict=True):
        w = np.asarray(w)
        assert (np.isnan(g) == np.isnan(w)).all(), (g, w)
        np.testing.assert_allclose(g, w, rtol=LIMIT[dtype], atol=LIMIT[dtype])


def test_every_operation_has_a_rule_or_is_said_to_have_none():
    assert RULES.keys() | WITHOUT | STRUCTURED == PRIMITIVES.keys()
    assert not RULES.keys() & WITHOUT
    assert not (RULES.keys() | WITHOUT) & STRUCTURED


@pytest.mark.parametrize("dtype", [DType.f64, DType.f32])
@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name, dtype):
    points = [DOMAIN.get(name, REAL)]
    close(slopes(name, dtype, points), jax_slopes(function(name), dtype, points), dtype)


def is_rounded_to_a_number(x: float, y: float) -> bool:
    """Whether a quotient of f32 is a whole number by rounding alone: a derivative of `rem` is the whole part of it."""
    exact = float(np.float32(x)) / float(np.float32(y))
    return 0 < abs(exact - round(exact)) < 1e-5


@pytest.mark.parametrize("dtype", [DType.f64, DType.f32])
@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name, dtype):
    pairs = [(x, y) for x in REAL for y in REAL]
    if name == "pow":
        # below 0 the exponents are whole, as 0.0 / 0.0 follows from logarithms of negative numbers in both
        pairs = [(x, y) for x, y in pairs if x > 0 or (x == 0 and y >= 1)] + [(0.0, 0.0), (2.0, 0.0)]
    if name in ("div", "rem"):
        pairs = [(x, y) for x, y in pairs if y != 0 and not is_rounded_to_a_number(x, y)]
    if name == "atan2":
        pairs = [(x, y) for x, y in pairs if x != 0 or y != 0]
    points = list(zip(*pairs, strict=True))
    want = jax_slopes(function(name), dtype, points)
    got = slopes(name, dtype, points)
    if name == "pow":
        # JAX has 0 * 0 ** -1 = NaN at (0, 0); the base does not matter there
        at = pairs.index((0.0, 0.0))
        assert got[0][at] == 0
        got, want = [np.delete(g, at) for g in got], [np.delete(np.asarray(w), at) for w in want]
    close(got, want, dtype)


@pytest.mark.parametrize("y", [-3, -1, 0, 1, 2, 3, 7])
def test_integer_powers(y):
    points = [[-2.5, -1.0, 0.5, 3.0]]
    close(slopes("integer_pow", DType.f64, points, y=y), jax_slopes(lambda x: x**y, DType.f64, points), DType.f64)


def test_of_a_sum_of_a_product():
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(size=(3, 5))
    close(slopes("fma", DType.f64, [x, y, z]), [y, x, np.ones(5)], DType.f64)


@pytest.mark.parametrize("dtype", [DType.f64, DType.f32])
def test_derivative_of_digamma_over_the_line(dtype):
    points = np.array([-20.25, -3.5, -0.75, 1e-3, 0.25, 0.5, 0.75, 2.0, 11.5, 1e4])
    got = slopes("digamma", dtype, [points])[0]
    want = [float(mpmath.psi(1, mpmath.mpf(float(dtype.numpy.type(p))))) for p in points]
    # reflection subtracts: an absolute error of a few units of pi ** 2
    np.testing.assert_allclose(got, want, rtol=LIMIT[dtype], atol=LIMIT[dtype] * 10)


def test_what_is_not_chosen_adds_nothing():
    """An infinite adjoint of the side not taken is not multiplied by 0."""
    b = Builder()
    out, infinite = ref_var(DType.f64, (2,)), literal(np.inf, DType.f64)
    b.emit("select", literal(False, DType.bool), literal(1, DType.f64), literal(2, DType.f64))
    first = of_last(b)[1]
    b.emit("max", literal(1, DType.f64), literal(2, DType.f64))
    second = of_last(b)[0]
    assert first is not None
    assert second is not None
    b.store(out, first(infinite), literal(0, DType.i32))
    b.store(out, second(infinite), literal(1, DType.i32))
    zero = literal(0, DType.i32)
    task = Task("serial", None, zero, zero, Block((), tuple(b.current.eqns)))
    (got,) = evaluate(Program("p", (), (out,), (task,), (out,)), [])
    assert (got == 0).all()
