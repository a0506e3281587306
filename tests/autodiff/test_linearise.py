"""Derivatives of lanes by JAX's own rules: from outside of `qd.vmap(f)` they are those of `jax.vmap(f)`."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.scipy import special

import qdtrace as qd
from qdtrace.compose import staging
from qdtrace.compose.restaging import source_of
from qdtrace.errors import GradientError
from qdtrace.ir.builder import ref_var
from qdtrace.ir.types import DType
from tests.autodiff.lanes import each

diffrax, lineax, optimistix = map(pytest.importorskip, ("diffrax", "lineax", "optimistix"))
RNG = np.random.default_rng(3)
SymbolicZero = jax.custom_derivatives.SymbolicZero
POINTS = np.array([0.7, 1.3, 2.9])
ZEROS, SOME, ROWS = np.zeros((2, 300)), np.full((2, 300), 0.3), RNG.normal(size=(2, 300))
Z = np.array([0.3 + 0.5j, -0.7 + 0.2j])
REAL, IMAGINARY = np.array([0.6 + 0j, 0.3 + 0j]), np.array([0.6j, 0.4j])
TIES = np.array([[1.0, 1.0, 1.0, 0.0, 2.0, 2.0]])
MATRIX = jnp.array([[2.0, 1.0], [0.5, 3.0]])
IDENTITIES = np.stack([np.eye(3).ravel(), np.diag([1.0, 1.0, 2.0]).ravel()])


@jax.custom_jvp
def to_real(z):
    return jnp.abs(z) ** 2


to_real.defjvp(lambda p, t: (jnp.abs(p[0]) ** 2, 7.0 * jnp.real(jnp.conj(p[0]) * t[0])))


@jax.custom_jvp
def to_complex(x):
    return x * (1 + 2j)


to_complex.defjvp(lambda p, t: (p[0] * (1 + 2j), 7.0 * (1 + 2j) * t[0]))


@jax.custom_vjp
def backward(z):
    return z * z


backward.defvjp(lambda z: (z * z, z), lambda z, g: (9.0 * g * z,))


@jax.custom_vjp
def asks(x, y):
    return x * y


asks.defvjp(
    lambda x, y: (x.value * y.value, (y.value, x.value, jnp.where(y.perturbed, 100.0, 2.0))),
    lambda r, g: (r[2] * g * r[0], r[1] * g),
    symbolic_zeros=True,
)


@jax.custom_jvp
def sees(x, y):
    return x * y


sees.defjvp(
    lambda p, t: (p[0] * p[1], (2.0 if type(t[1]) is SymbolicZero else 100.0) * t[0] * p[1]), symbolic_zeros=True
)


@jax.custom_vjp
def pairs(tree, n):
    return {"a": tree["a"] * n, "b": tree["b"][0] + tree["b"][1]}


pairs.defvjp(
    lambda tree, n: (pairs(tree, n), (tree["a"], n)),
    lambda r, g: ({"a": 3.0 * g["a"] * r[1], "b": (g["b"], 2.0 * g["b"])}, None),
)


@jax.custom_jvp
def total(v):
    return jnp.sum(v * v)


total.defjvp(lambda p, t: (total(p[0]), 3.0 * jnp.sum(p[0] * t[0])))


def table(x):
    return lax.fori_loop(0, 20, lambda k, t: t.at[k].set(x * k), jnp.zeros(20))


def symmetric(v):
    return (v.reshape(3, 3) + v.reshape(3, 3).T) / 2


def solved(a):
    return lineax.linear_solve(lineax.MatrixLinearOperator(MATRIX + a * jnp.eye(2)), jnp.ones(2)).value[0]


def bisected(a):
    finder, options = optimistix.Bisection(1e-10, 1e-10), {"lower": 0.0, "upper": 4.0}
    return optimistix.root_find(lambda y, a: y**3 + y - a, finder, 0.5, args=a, options=options).value


def halved(a):
    def halve(f, _):
        def step(_, s):
            y = 0.5 * (s[0] + s[1])
            return jnp.where(f(y) < 0, jnp.array([y, s[1]]), jnp.array([s[0], y]))

        return lax.fori_loop(0, 60, step, jnp.array([0.0, 4.0])).mean()

    return lax.custom_root(lambda y: y**3 + y - a, 0.5, halve, lambda g, y: y / g(1.0))


def decay(k):
    solver = diffrax.Euler()
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, k: -k * y), solver, 0.0, 1.0, 0.3, k, args=k, max_steps=64
    ).ys.sum()


def pool(v):
    return lax.reduce_window(v, -jnp.inf, lax.max, (3,), (2,), "VALID").sum()


stop = lax.stop_gradient
CASES = {
    "abs of complex 0": (jnp.abs, np.zeros(2, complex)),
    "abs of a transform's zeros": (lambda v: jnp.abs(jnp.fft.fft(v)).sum(), np.ones((2, 8))),
    "sqrt at -0.0j": (jnp.sqrt, np.conj(REAL)),
    "arcsin at -0.0j": (jnp.arcsin, np.conj(REAL)),
    "exp on the real axis": (jnp.exp, REAL),
    "cosh on the imaginary axis": (jnp.cosh, IMAGINARY),
    "complex power": (lambda z: z**z, REAL),
    "custom_vjp, complex": (backward, Z),
    "custom_jvp, complex to real": (to_real, Z),
    "custom_jvp, real to complex": (lambda x: jnp.real(to_complex(x)), POINTS),
    "custom_jvp behind a complex sum": (lambda x: to_real(x + 1j * x), POINTS),
    "stop_gradient, complex": (lambda z: stop(z) * z, Z),
    "stop_gradient of 300": (lambda v: jnp.sum(stop(v) * v), ROWS),
    "straight-through rounding": (lambda v: jnp.sum((v + stop(jnp.round(v) - v)) ** 2), ROWS),
    "stop_gradient of a scan": (
        lambda s: (lambda t: jnp.sum(stop(t) * t))(lax.scan(lambda c, _: (c * s, c), s, None, length=20)[1]),
        POINTS,
    ),
    "ldexp of 300": (lambda v: jnp.ldexp(v, 3).sum(), SOME),
    "frexp of 300": (lambda v: jnp.frexp(v)[0].sum(), SOME),
    "softplus of 300 zeros": (lambda v: jax.nn.softplus(v).sum(), ZEROS),
    "relu of 300 zeros": (lambda v: jax.nn.relu(v).sum(), ZEROS),
    "max of 300 ones": (jnp.max, np.ones((2, 300))),
    "a rule of 20 elements of a loop": (lambda x: total(table(x)), POINTS),
    "symbolic zeros of a custom_vjp": (lambda x: asks(x, 3.0), POINTS),
    "symbolic zeros of a custom_jvp": (lambda x: sees(x, 3.0), POINTS),
    "a rule of trees and integers": (lambda x: pairs({"a": x, "b": (x, x * x)}, 3)["b"] * x, POINTS),
    "a custom_vjp in a loop": (lambda x: lax.fori_loop(0, 3, lambda _, s: backward(s) + x, x), POINTS * 0.1),
    "eigvalsh at equal values": (lambda v: jnp.linalg.eigvalsh(symmetric(v)).sum(), IDENTITIES),
    "svd at equal values": (lambda v: jnp.linalg.svd(v.reshape(3, 3))[1].sum(), IDENTITIES),
    "sort with ties": (lambda v: (jnp.sort(v) * jnp.arange(6)).sum(), TIES),
    "median with ties": (jnp.median, TIES),
    "max pooling with ties": (pool, TIES),
    "cummax with ties": (lambda v: lax.cummax(v)[-1], TIES),
    ".at.max with ties": (lambda v: jnp.zeros(2).at[jnp.zeros(6, int)].max(v)[0], np.ones((1, 6))),
    "custom_root": (halved, POINTS),
    "lineax.linear_solve": (solved, POINTS),
    "optimistix.Bisection": (bisected, POINTS),
    "diffrax, default adjoint": (decay, POINTS),
}


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_like_jax(name):
    f, x = CASES[name][0], jnp.asarray(CASES[name][1])
    out = jax.eval_shape(jax.vmap(f), x)
    ct = RNG.normal(size=out.shape) + (1j * RNG.normal(size=out.shape) if out.dtype.kind == "c" else 0)
    ct = jnp.asarray(ct, out.dtype)
    adjoint = lambda g: lambda ct: jax.vjp(g, x)[1](ct)[0]  # noqa: E731
    want, ours = jax.jit(adjoint(jax.vmap(f)))(ct), adjoint(qd.vmap(f))
    got = [ours(ct), jax.jit(ours)(ct)]  # what one trace has made serves in another
    np.testing.assert_allclose(got, [want, want], rtol=1e-8, atol=1e-10)


ONES = np.ones(2, complex)
SECOND = {
    "log": (jnp.log, np.array([1 + 1j, 0.5 - 0.5j])),
    "sqrt": (jnp.sqrt, np.array([1 + 1j, 0.5 - 0.5j])),
    "exp on the real axis": (jnp.exp, REAL),
    "cumlogsumexp at a tie": (lambda v: lax.cumlogsumexp(v)[1], np.zeros((2, 2))),
    "custom_jvp": (lambda x: total(x * jnp.arange(3.0)), POINTS),
    "custom_root": (halved, POINTS),
}


@pytest.mark.full
@pytest.mark.parametrize("name", SECOND)
def test_second_order(name):
    f, x = SECOND[name]
    t = jnp.ones_like(x)
    along = lambda g: jax.jit(lambda x: jax.jvp(lambda x: jax.jvp(g, (x,), (t,))[1], (x,), (t,))[1])(x)  # noqa: E731
    np.testing.assert_allclose(along(qd.vmap(f)), along(jax.vmap(f)), rtol=1e-8, atol=1e-10)
    if not np.iscomplexobj(x):
        back = lambda g: jax.jit(lambda x: jax.jvp(jax.grad(lambda x: jnp.sum(g(x))), (x,), (t,))[1])(x)  # noqa: E731
        np.testing.assert_allclose(back(qd.vmap(f)), back(jax.vmap(f)), rtol=1e-8, atol=1e-10)


@pytest.mark.full
def test_newton_to_third_order():
    newton = lambda a: lax.while_loop(lambda s: abs(s * s - a) > 1e-12 * a, lambda s: 0.5 * (s + a / s), a)  # noqa: E731
    x = jnp.linspace(2.0, 9.0, 5)
    one = jnp.ones_like(x)
    first = jax.grad(lambda x: qd.vmap(newton)(x).sum())
    second = lambda x: jax.jvp(first, (x,), (one,))[1]  # noqa: E731
    third = jax.jvp(second, (x,), (one,))[1]
    np.testing.assert_allclose(first(x), 0.5 * x**-0.5, rtol=1e-9)
    np.testing.assert_allclose(second(x), -0.25 * x**-1.5, rtol=1e-9)
    # the loop ends by the value, and each derivative converges a step behind the one before
    np.testing.assert_allclose(third, 0.375 * x**-2.5, rtol=1e-7)


@pytest.mark.full
def test_programs_of_one_value_and_two_derivatives():
    """Both have one graph, as a stopped gradient computes nothing."""
    x = jnp.asarray(ROWS)
    gradient = lambda f: jax.grad(lambda x: qd.vmap(f)(x).sum())(x)  # noqa: E731
    np.testing.assert_allclose(gradient(lambda v: (v * v).sum()), 2 * x)
    np.testing.assert_allclose(gradient(lambda v: (stop(v) * v).sum()), x)


def test_a_rule_for_reverse_mode_alone():
    for f in (backward, lambda x: lax.fori_loop(0, 3, lambda _, s: backward(s), x)):
        with pytest.raises(GradientError, match=r"(?s)`backward` has a rule for reverse mode alone.*got forw.*help:"):
            jax.jvp(qd.vmap(f), (POINTS,), (POINTS,))


def test_forward_mode_of_what_needs_no_tangent_of_the_rule():
    f = lambda x: jnp.where(backward(x) > 1, x, 2 * x)  # noqa: E731
    slope = jax.jvp(qd.vmap(f), (POINTS,), (np.ones(3),))[1]
    np.testing.assert_allclose(slope, np.where(POINTS**2 > 1, 1.0, 2.0))


@pytest.mark.full
def test_many_calls_at_once():
    """`jax.grad` of `jax.vmap` of lanes, with operands and results that all calls share."""
    lane = lambda v, w: (jnp.sum(stop(v) * v), stop(w) * w)  # noqa: E731
    x, w, ones = jnp.asarray(RNG.normal(size=(3, 4, 300))), jnp.arange(4.0), jnp.ones((3, 4, 300))

    def total(vmap, x, w):
        return sum(map(jnp.sum, jax.vmap(lambda x: vmap(lane)(x, w))(x)))

    for k in (0, 1):
        got, want = (jax.grad(total, 1 + k)(vmap, x, w) for vmap in (qd.vmap, jax.vmap))
        np.testing.assert_allclose(got, want, rtol=1e-12)
    got, want = (
        jax.jvp(lambda x, vmap=vmap: jax.grad(total, 1)(vmap, x, w), (x,), (ones,))[1] for vmap in (qd.vmap, jax.vmap)
    )
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.full
def test_many_calls_at_once_twice():
    x = jnp.asarray(RNG.normal(size=(2, 3, 4, 300)))
    lane = lambda v: jnp.sum(stop(v) * v)  # noqa: E731
    total = lambda vmap: lambda x: jax.vmap(jax.vmap(vmap(lane)))(x).sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(total(qd.vmap))(x), jax.grad(total(jax.vmap))(x), rtol=1e-12)


SPECIAL = {
    "i0e": special.i0e, "i1e": special.i1e, "gammainc": lambda v: special.gammainc(v + 0.5, v + 1),
    "digamma": special.digamma, "expi": special.expi, "mixed": lambda v: jnp.cos(v) * special.i0e(2 * v) + v,
    "complex": lambda v: jnp.abs(jnp.arcsin((0.2 + 0.3j) * v)),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("i1e", "digamma", "expi", "complex"))) for n in SPECIAL]
)
@pytest.mark.full
def test_long_functions_of_elements(name):
    f, x = SPECIAL[name], jnp.asarray(np.abs(RNG.normal(size=(2, 40))) + 0.1)
    weights = jnp.cos(jnp.arange(40.0))
    outside = lambda vmap: jax.grad(lambda x: (vmap(f)(x) * weights).sum())  # noqa: E731
    inside = lambda vmap: vmap(jax.grad(lambda v: (f(v) * weights).sum()))  # noqa: E731
    for derivative in (outside, inside):
        got, want = (jax.jit(derivative(vmap))(x) for vmap in (qd.vmap, jax.vmap))
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    if name != "gammainc":  # JAX has no second derivative
        along = lambda vmap: jax.jit(lambda x: jax.jvp(outside(vmap), (x,), (jnp.sin(x),))[1])(x)  # noqa: E731
        np.testing.assert_allclose(along(qd.vmap), along(jax.vmap), rtol=1e-9, atol=1e-9)


@pytest.mark.full
@pytest.mark.parametrize("name", ["i0e", "gammainc"])
def test_long_functions_are_written_once(name):
    total = lambda x: qd.vmap(lambda v: SPECIAL[name](v).sum())(x).sum()  # noqa: E731
    for f in (total, jax.grad(total)):
        few, many = (len(qd.jit(f).lower(np.ones((2, n))).graph("canonical").splitlines()) for n in (100, 256))
        assert many == few


@jax.custom_vjp
def fifty(z):
    return z * z


fifty.defvjp(lambda z: (z * z, z), lambda z, g: (50.0 * z * g,))


@pytest.mark.parametrize(
    "f",
    [fifty, lambda x: jnp.real(fifty(x + 0.5j * x)), lambda x: fifty(x * jnp.arange(40.0)).sum()],
    ids=["real", "complex", "array"],
)
def test_second_derivatives_of_a_backward_function(f):
    x = np.linspace(0.3, 1.7, 5)

    def second(batched):
        gradient = jax.grad(lambda x: batched(f)(x).sum())
        return jax.jit(lambda x, t: jax.jvp(gradient, (x,), (t,)))(x, np.ones_like(x))

    for got, want in zip(second(qd.vmap), second(jax.vmap), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("count", [256, 257, pytest.param(350, marks=pytest.mark.slow)])
@pytest.mark.full
def test_backward_functions_of_complex_arrays_around_the_size_of_registers(count):
    def f(x):
        return jnp.abs(fifty(x * (1 + 0.5j) * jnp.arange(count) / count)[1:]).sum()

    x = np.linspace(0.3, 1.7, 3)
    got, want = (jax.grad(lambda x, m=m: m(f)(x).sum())(x) for m in (qd.vmap, jax.vmap))
    np.testing.assert_allclose(got, want, rtol=1e-5 if got.dtype == np.float32 else 1e-12)


@pytest.mark.full
def test_forward_mode_of_a_rule_for_reverse_mode():
    """Over a gradient it is that of the rule's own steps, as in JAX; alone it is refused."""
    x = np.ones(3)
    got, want = (jax.jvp(jax.grad(lambda x, m=m: m(fifty)(x).sum()), (x,), (x,)) for m in (qd.vmap, jax.vmap))
    np.testing.assert_array_equal(got, want)
    with pytest.raises(GradientError, match=r"(?s)`fifty` has a rule for reverse mode alone.*forward mode"):
        jax.jvp(qd.vmap(fifty), (x,), (x,))


@jax.custom_vjp
def calls_another(z):
    return z * z


calls_another.defvjp(lambda z: (z * z, z), lambda z, g: (fifty(z) * g,))


def test_a_backward_function_that_has_no_derivative_is_refused():
    x = np.ones(3)
    second = jax.jit(lambda x: jax.jvp(jax.grad(lambda x: qd.vmap(calls_another)(x).sum()), (x,), (x,)))
    with pytest.raises(GradientError, match=r"the backward function of `calls_another` calls a function with a rule"):
        second(x)


def test_a_cell_of_a_constant_in_control_flow_of_jax():
    @each
    def ours(i, x):

        def branch(v):
            s = qd.local(1.0)
            for _ in qd.range(3):
                s.value = s.value * v
            return s.value

        return lax.cond(x[i] > 1.0, branch, lambda v: v, x[i])

    np.testing.assert_allclose(jax.grad(lambda x: ours(x).sum())(POINTS), np.where(POINTS > 1, 3 * POINTS**2, 1.0))


def beside(r, x, value):
    """The largest x beside a sum of values of another kind."""

    @qd.jit
    def ours(x, r):
        for i in qd.range(x.shape[0]):
            r.at[0].max(x[i])
            r.at[1].add(value(x[i]))
        return r

    return ours(x, r)


@pytest.mark.full
def test_rules_beside_an_accumulated_extreme():
    for f in (lambda x: total(x * jnp.arange(3.0)), lambda x: to_real(x + 1j * x)):
        got = jax.grad(lambda x: beside(np.zeros(2), x, f)[1] + beside(np.zeros(2), x, f)[0])(POINTS)  # noqa: B023
        want = jax.grad(lambda x: jax.vmap(f)(x).sum() + x.max())(POINTS)  # noqa: B023
        np.testing.assert_allclose(got, want, rtol=1e-12)


def rows(is_own, value):
    """Largest values of rows of 20, and what else is done with them."""

    @qd.jit
    def ours(x, r):
        for i in qd.range(x.shape[0]):
            if is_own:
                r[i, 0] = 0.5 * x[i]
            r.at[i * is_own, 0:20].max(x[i] * jnp.arange(20.0) + value(x[i]))
        return r

    return lambda x: ours(x, jnp.ones((3, 20))).sum()


def theirs(is_own, value):
    def function(x):
        values = x[:, None] * jnp.arange(20.0) + value(x)[:, None]
        if is_own:
            return jnp.maximum(values, jnp.ones((3, 20)).at[:, 0].set(0.5 * x)).sum()
        return jnp.maximum(values.max(0), 1.0).sum() + 40.0

    return function


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("value", [jnp.sin, lambda x: to_real(x + 1j * x)], ids=["real", "complex"])
@pytest.mark.full
def test_extremes_of_many_elements(value, is_own):
    ours, jaxs = rows(is_own, value), theirs(is_own, value)
    got, want = jax.value_and_grad(ours)(POINTS), jax.value_and_grad(jaxs)(POINTS)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(jax.hessian(ours)(POINTS), jax.hessian(jaxs)(POINTS), rtol=1e-12, atol=1e-12)


def test_a_rule_that_closes_over_a_traced_value():
    def outer(x, a):
        scaled = jax.custom_jvp(lambda z: z * a)
        scaled.defjvp(lambda p, t: (p[0] * a, 7.0 * a * t[0]))
        return qd.vmap(lambda x: jnp.real(scaled(x + 1j * x)))(x).sum()

    with pytest.raises(GradientError, match=r"the derivative rule of `.*<lambda>` uses a traced value of"):
        jax.jit(jax.grad(outer))(POINTS, 2.0)


@pytest.mark.parametrize("solver", [lineax.CG, lineax.BiCGStab, lineax.GMRES], ids=["cg", "bicgstab", "gmres"])
@pytest.mark.full
def test_solvers_that_iterate(solver):
    """A step of them is not linear: JAX transposes the solution."""

    def f(a):
        operator = lineax.MatrixLinearOperator(MATRIX @ MATRIX.T * a, lineax.positive_semidefinite_tag)
        return lineax.linear_solve(operator, jnp.array([1.0, a]), solver(1e-12, 1e-12)).value[0]

    def theirs(a):  # the solver itself fails under JAX's own eager `vmap` on GPUs
        return jnp.linalg.solve(MATRIX @ MATRIX.T * a, jnp.array([1.0, a]))[0]

    for derivative in (jax.grad, lambda g: jax.jit(lambda x: jax.jvp(jax.grad(g), (x,), (x,))[1])):
        got = derivative(lambda x: qd.vmap(f)(x).sum())(POINTS)
        np.testing.assert_allclose(got, derivative(lambda x: jax.vmap(theirs)(x).sum())(POINTS), rtol=1e-9)


@pytest.mark.full
def test_an_asymmetric_rule_goes_along_directions_in_order():
    """A rule that is no derivative: which direction comes first matters."""
    product = jax.custom_jvp(lambda a, b: a * b)
    product.defjvp(lambda p, t: (product(*p), 3.0 * p[1] * t[0] + p[0] * t[1]))
    x, y = np.array([1.0, 2.0]), np.array([0.5, -1.0])

    def pulled(batched):
        total = lambda x, y: jax.jvp(batched(product), (x, y), (y, x))[1].sum()  # noqa: E731
        return jax.grad(total, (0, 1))(x, y)

    np.testing.assert_allclose(pulled(qd.vmap), pulled(jax.vmap))


def settled(b, step):
    """What a loop that nobody can transpose step by step makes of a row."""

    def going(state):
        return (jnp.abs(state[1]).max() > 1e-10) & (state[2] < 100)

    def body(state):
        x, rest, k = state
        return x + step(rest), rest - 2.0 * step(rest), k + 1

    return jax.lax.while_loop(going, body, (jnp.zeros(3), b, 0))[0].sum()


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("while", lambda t: settled(t, lambda r: 0.25 * r)),
        ("mul", lambda t: (t * t).sum()),
        ("exp", lambda t: jnp.exp(t).sum()),
        ("div", lambda t: (1.0 / (t + 1.0)).sum()),
        ("bitcast", lambda t: lax.bitcast_convert_type(lax.bitcast_convert_type(t, jnp.int64) + 1, jnp.float64).sum()),
        ("if", lambda t: jax.lax.cond(t[0] > 0, lambda t: t.sum(), lambda t: 2.0 * t.sum(), t)),
    ],
)
def test_a_rule_that_is_not_linear_in_tangents_is_refused(name, rule):
    """Its derivative at zero is no transpose of it."""
    ruled = jax.custom_jvp(lambda b: settled(b, lambda r: 0.25 * r))
    ruled.defjvp(lambda p, t: (ruled(*p), rule(*t)))
    rows = np.random.default_rng(0).normal(size=(4, 3))
    of = lambda f: jax.jvp(lambda x: f(ruled)(x).sum(), (rows,), (np.cos(rows),))[1]  # noqa: E731
    np.testing.assert_allclose(of(qd.vmap), of(jax.vmap), rtol=1e-12)
    text = rf"(?s)needs a linear function of tangents to be transposed, got `{name}`.*help:.*custom_linear_solve"
    with pytest.raises(GradientError, match=text):
        jax.grad(lambda x: qd.vmap(ruled)(x).sum())(rows)


@pytest.mark.full
def test_a_primitive_that_a_user_taught_has_the_derivatives_of_its_function():
    doubled = Primitive("doubled_sine")
    doubled.def_abstract_eval(lambda x: x)
    qd.def_import_rule(doubled, lambda x: 2.0 * jnp.sin(x))

    def lane(x, sine):
        return jax.lax.cond(x > 1.0, sine, lambda x: x**3, x) * sine(x)

    for of in (jax.grad, jax.hessian):
        got = of(lambda x: qd.vmap(lambda x: lane(x, doubled.bind))(x).sum())(POINTS)
        want = of(lambda x: jax.vmap(lambda x: lane(x, lambda x: 2.0 * jnp.sin(x)))(x).sum())(POINTS)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_a_result_that_stands_for_no_value_has_no_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known of a result is not zero. No program has one."""

    def with_another(stager: Any, program: Any) -> Any:
        return source_of(stager, replace(program, results=(*program.results, ref_var(DType.f32, (3,), "lost"))))

    monkeypatch.setattr(staging, "source_of", with_another)

    @qd.jit
    def f(x):
        for i in qd.range(3):
            x[i] = 2 * x[i]
        return x

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(f(x), 2 * x)
    with pytest.raises(GradientError, match="`lost` stands for no value"):
        jax.grad(lambda x: f(x).sum())(x)
