"""Transposes that are JAX's and not those of the steps that a lane takes, from outside of the lane."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.sparse import linalg

import qdtrace as qd
from qdtrace.errors import GradientError

eqxi, lineax = map(pytest.importorskip, ("equinox.internal", "lineax"))
RNG = np.random.default_rng(11)


def pulled(batched, *args):
    """Cotangents of the arguments, for the same cotangents of the results each time."""
    outs, pull = jax.vjp(batched, *args)
    return pull(jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype), outs))


def check(f, *args, rtol=1e-12):
    want, got = (jax.jit(lambda *xs, m=m: pulled(m(f), *xs))(*args) for m in (jax.vmap, qd.vmap))
    for w, g in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol)


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("size", [5, 40, 300])
@pytest.mark.parametrize("name", ["min", "max", "multiply"])
def test_updates_out_of_bounds(name, size):
    """JAX's rules gather there, promising that they do not; the transpose adds nothing to the nearest element."""
    count = 1 if name == "multiply" else 4
    index = np.array([[size, -size - 1, 0, size - 1], [-size - 9, size + 9, 2, 2]])[:, :count]
    x, u = RNG.normal(size=(2, size)), RNG.normal(size=(2, count))
    options = {"unique_indices": True} if name == "multiply" else {}
    check(lambda x, u: getattr(x.at[index_of(x, index)], name)(u, **options), x, u)


def index_of(x, index):
    """Indices that depend on the lane."""
    return jnp.where(x[0] > 0, *map(jnp.asarray, index))


@pytest.mark.parametrize("size", [5, 40])
def test_a_broken_promise(size):
    """The nearest element is read, and tangents with it; in reverse it gets nothing."""
    x, at = RNG.normal(size=(4, size)), np.array([0, -9 - size, size - 1, size + 3])

    def f(x, k):
        return x.at[jnp.stack([k, k + 1])].get(mode="promise_in_bounds") * x[1]

    check(lambda x, k: f(x, k.astype(int)), x, at.astype(float))
    for derivative in (lambda m: m(f)(x, at), lambda m: jax.jvp(lambda x: m(f)(x, at), (x,), (jnp.sin(x),))[1]):
        # on a GPU XLA rounds another product first
        np.testing.assert_allclose(derivative(qd.vmap), derivative(jax.vmap), rtol=1e-15)


SQUARE = RNG.normal(size=(3, 4, 4))
DEFINITE = SQUARE @ SQUARE.transpose(0, 2, 1) + np.eye(4)
COMPLEX = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))


SOLVERS = [linalg.cg, linalg.bicgstab, pytest.param(linalg.gmres, marks=pytest.mark.slow)]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("b", [COMPLEX.real, COMPLEX], ids=["real", "complex"])
@pytest.mark.full
def test_solvers_of_jax(solver, b):
    check(lambda a, b: solver(lambda v: a @ v, b, tol=1e-13)[0], DEFINITE, b, rtol=1e-9)  # they iterate up to `tol`


@pytest.mark.full
@pytest.mark.parametrize("size", [4, 300])
def test_a_solver_whose_steps_are_linear(size):
    def solve(a, b):
        return lax.custom_linear_solve(lambda v: a * v, b, lambda _, c: c / a, lambda _, c: c / a)

    check(solve, RNG.uniform(1, 2, (3, size)), RNG.normal(size=(3, size)))


@pytest.mark.full
def test_what_a_solver_gives_beside():
    def f(x):
        solve = lambda _, b: (b / x, (b, jnp.sum(b)))  # noqa: E731
        return lax.custom_linear_solve(lambda v: x * v, jnp.sin(x) * jnp.arange(3.0), solve, solve, has_aux=True)

    check(f, np.array([1.0, 2.0]))


def conjugate_gradients(d, b):
    return linalg.cg(lambda v: 3 * d * v - 0.4 * (jnp.roll(v, 1) + jnp.roll(v, -1)), b, tol=1e-13)[0]


def conjugate_gradients_of_lineax(d, b):
    struct = jax.ShapeDtypeStruct(b.shape, b.dtype)
    operator = lineax.FunctionLinearOperator(lambda v: 3 * d * v, struct, lineax.positive_semidefinite_tag)
    return lineax.linear_solve(operator, b, lineax.CG(1e-13, 1e-13)).value


OF_LINEAX = pytest.param(conjugate_gradients_of_lineax, marks=pytest.mark.slow)


@pytest.mark.parametrize("f", [conjugate_gradients, OF_LINEAX])
@pytest.mark.full
def test_many_unknowns_of_a_solver_that_iterates(f):
    """Step by step the transpose would be wrong: it is refused, and values and tangents are right."""
    d, b = RNG.uniform(1, 2, (2, 300)), RNG.normal(size=(2, 300))
    for derivative in (lambda m: m(f)(d, b), lambda m: jax.jvp(m(f), (d, b), (b, d))[1]):
        np.testing.assert_allclose(derivative(qd.vmap), derivative(jax.vmap), rtol=1e-9, atol=1e-12)  # up to `tol`
    with pytest.raises(GradientError, match=r"(?s)a linear function .* got `while` that one decides.*at most 256"):
        pulled(qd.vmap(f), d, b)


@pytest.mark.full
def test_many_unknowns_inside_of_a_lane():
    d, b = RNG.uniform(1, 2, (2, 300)), RNG.normal(size=(2, 300))
    got, want = (m(lambda d, b: pulled(conjugate_gradients, d, b))(d, b) for m in (qd.vmap, jax.vmap))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-12)  # up to `tol`


@pytest.mark.full
@pytest.mark.parametrize("size", [3, 24, 300])
def test_a_loop_with_a_buffer_that_it_changes_in_place(size):
    """Equinox's update of a buffer has a transpose of its own; the buffer is read before it is changed."""

    def fill(a):
        def step(c):
            return c[0] + 1, c[1] * 0.5, c[2].at[c[0]].set(c[1])

        start = (jnp.array(0), a, jnp.zeros(size))
        running = lambda c: (c[0] < size) & (c[1] > 1)  # noqa: E731
        return eqxi.while_loop(running, step, start, kind="bounded", max_steps=size, buffers=lambda c: c[2])[1:]

    check(fill, np.array([1.0, 700.0, 9e3]))


@jax.custom_vjp
def halfway(v):
    return jnp.sum(jnp.sin(v) * v)


halfway.defvjp(lambda v: (halfway(v), v), lambda v, c: (c * jnp.cos(v) * 3,))


@pytest.mark.full
@pytest.mark.parametrize("size", [40, 700])
def test_a_backward_function_of_many_elements(size):
    check(halfway, RNG.normal(size=(3, size)))


def test_rules_that_close_over_a_number_of_the_lane():
    def f(x):
        y = jnp.asarray(2.5)
        backward = jax.custom_vjp(lambda z: z * y)
        backward.defvjp(lambda z: (z * y, None), lambda _, c: (c * y * 3,))
        forward = jax.custom_jvp(lambda z: z * y)
        forward.defjvp(lambda p, t: (p[0] * y, t[0] * y * 5))
        return backward(x * 2.0) + forward(x)

    check(f, np.array([1.0, 2.0]))


@pytest.mark.parametrize("loops", [0, 1, 3])
def test_second_derivatives_through_a_rule_that_calls_another(loops):
    """Forward mode of the inner one is needed, which has none: it counted as zero. JAX refuses too."""

    @jax.custom_vjp
    def inner(x):
        return jnp.sin(x)

    inner.defvjp(lambda x: (jnp.sin(x), x), lambda x, bar: (jnp.cos(x) * bar,))

    @jax.custom_vjp
    def outer(x):
        return x**2

    def forward(x):
        kept = inner(x)
        for _ in range(loops):
            kept = lax.fori_loop(0, 3, lambda _, k: 1.1 * k, kept)
        return x**2, kept

    outer.defvjp(forward, lambda kept, bar: (kept * bar,))
    x = jnp.linspace(0.5, 2, 3)

    def hessian(batched):
        return jax.jit(lambda x: jax.jvp(jax.grad(lambda q: batched(outer)(q).sum()), (x,), (jnp.ones(3),))[1])(x)

    with pytest.raises(TypeError, match="can't apply forward-mode autodiff"):
        hessian(jax.vmap)
    with pytest.raises(GradientError, match=r"`inner` has a rule for reverse mode alone .*got forward mode"):
        hessian(qd.vmap)
