"""Derivatives of accumulations into shared places: sums, extremes with ties, products with zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError

K = np.array([0, 1, 2, 0, 1, 0, 3])
RNG = np.random.default_rng(0)
W, U = RNG.normal(size=5), RNG.normal(size=7)
IN_JAX = {"add": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "mul": jnp.multiply}


def ours(op):
    @qd.jit
    def f(x, r):
        y, k = qd.empty(x.shape, x.dtype), jnp.asarray(K)
        for i in qd.range(x.shape[0]):
            v = jnp.sin(x[i]) * 2
            y[i] = v * v
            getattr(r.at[k[i]], op)(v)
        return r, y

    return f


def theirs(op):
    def f(x, r):
        v, out = jnp.sin(x) * 2, jnp.asarray(r)
        for i, k in enumerate(K):
            out = out.at[k].set(IN_JAX[op](out[k], v[i]))
        return out, v * v

    return f


def loss(f):
    return lambda x, r: (f(x, r)[0] * W).sum() + (f(x, r)[1] * U).sum()


def check(op, x, r):
    f, g = ours(op), theirs(op)
    derivatives = lambda h: lambda x, r: (jax.grad(loss(h), (0, 1))(x, r), jax.jvp(h, (x, r), (U, W))[1])  # noqa: E731
    pairs = derivatives(f)(x, r), jax.jit(derivatives(g))(x, r)
    for got, want in zip(*map(jax.tree.leaves, pairs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("op", IN_JAX)
def test_first_derivatives(op):
    check(op, RNG.normal(size=7), RNG.normal(size=5))


@pytest.mark.full
@pytest.mark.parametrize("zeros", [[0], [0, 3], [0, 3, 6], [1, 2, 4]])
@pytest.mark.parametrize("before", [[], [0], [3, 4]])
def test_products_with_zeros(zeros, before):
    x, r = RNG.normal(size=7), RNG.normal(size=5)
    x[zeros], r[before] = 0, 0
    check("mul", x, r)


@pytest.mark.full
@pytest.mark.parametrize("op", ["add", "max", "min"])
def test_second_derivatives(op):
    x, r = RNG.normal(size=7), RNG.normal(size=5)
    got, want = (jax.jit(jax.hessian(loss(f(op))))(x, r) for f in (ours, theirs))
    np.testing.assert_allclose(got, want, atol=1e-10)


def test_ties_share_equally():
    x = np.array([1.0, 2, 3, 1, 2, 1, 4])
    got = jax.grad(lambda x: ours("max")(x, np.zeros(5))[0].sum())(x)
    share = np.array([1 / 3, 1 / 2, 1, 1 / 3, 1 / 2, 1 / 3, 0])  # sin(4) is below what was there
    share[[1, 4]] = 1 / 2
    np.testing.assert_allclose(got, 2 * np.cos(x) * share, rtol=1e-12)


@pytest.mark.full
def test_products_have_first_derivatives_only():
    with pytest.raises(GradientError, match=r"(?s)product accumulated .* first .* only, got a second one.*help:"):
        jax.hessian(lambda x: ours("mul")(x, np.ones(5))[0].sum())(np.ones(7))


def test_old_values_of_atomics_are_refused():
    @qd.jit
    def f(x, r):
        y = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            y[i] = qd.atomic_add(r, 0, x[i]) * x[i]
        return y

    with pytest.raises(GradientError, match=r"(?s)accumulations without their old value, got `atomic` add.*help:"):
        jax.grad(lambda x: f(x, np.zeros(1)).sum())(np.ones(3))


@pytest.mark.full
def test_atomics_whose_old_value_nobody_reads():
    """Also inside of a branch of JAX."""

    @qd.jit
    def ours(x):
        r, largest = qd.full((3,), 0.0), qd.full((1,), 0.0)
        for i in qd.range(5):

            def added(v):
                qd.atomic_add(r, i % 3, v**2)  # noqa: B023
                return v

            r.at[i % 3].add(jax.lax.cond(x[i] > 1, added, lambda v: 2 * v, x[i]))
            qd.atomic_add(r, 0, x[i] ** 3)
        for i in qd.range(5):
            qd.atomic_max(largest, 0, x[i] ** 2)
        return r, largest

    def theirs(x):
        r = jnp.zeros(3).at[jnp.arange(5) % 3].add(jnp.where(x > 1, x**2 + x, 2 * x))
        return r.at[0].add((x**3).sum()), x[-1:] ** 2

    x = np.arange(5.0) + 0.5
    for of in (jax.grad, jax.hessian):
        got, want = (jax.jit(of(lambda x: sum((y**2).sum() for y in f(x))))(x) for f in (ours, theirs))  # noqa: B023
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-10)


def numbers(r, n):
    """From a counter: which element gets which differs from run to run."""
    number = qd.zeros(n, jnp.int32)
    for i in qd.range(n):
        number[i] = qd.atomic_add(r, 0, 1)
    return number


def placed(x, number):
    y = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        y[number[i]] = x[i] * x[i]
    return y


@pytest.mark.full
def test_numbers_from_a_counter():
    """What would take other numbers than the primal is refused; those of a function of its own are operands."""
    x, r = np.arange(3.0), np.zeros(1, np.int32)
    once = qd.jit(lambda x, r: placed(x, numbers(r, 3)))
    for derivative in (jax.grad, jax.hessian):
        with pytest.raises(
            GradientError, match=r"(?s)without their old value, got `atomic` add.*a function of its own"
        ):
            derivative(lambda x: once(x, r).sum())(x)
    first, second = qd.jit(numbers, static_argnums=1), qd.jit(placed)
    np.testing.assert_array_equal(jax.grad(lambda x: second(x, first(r, 3)).sum())(x), 2 * x)


def test_forward_mode_of_old_values_is_refused():
    @qd.jit
    def f(x, r):
        y = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            y[qd.atomic_add(r, 0, 1)] = x[i]
        return y

    with pytest.raises(GradientError, match=r"(?s)without their old value, got `atomic` add.*help:"):
        jax.jvp(lambda x: f(x, np.zeros(1, np.int32)), (np.ones(3),), (np.ones(3),))


def bounding_box(x, r):
    for i in qd.range(x.shape[0]):
        r.at[0].min(x[i])
        r.at[1].max(x[i])
        r.at[2].add(jnp.sin(x[i]))
        r.at[3].mul(x[i])
    return r


def two_loops(x, r):
    for i in qd.range(x.shape[0]):
        r.at[0].max(x[i])
    for i in qd.range(x.shape[0]):
        r.at[1].add(x[i])
    return r


@pytest.mark.full
@pytest.mark.parametrize("x", [[1.0, 3, 2], [2.0, 2, -1], [5.0]])
def test_elements_that_constant_indices_tell_apart(x):
    x, r = np.array(x), np.array([1.5, 0.3, 0.1, 0.7])
    theirs = lambda x, r: jnp.stack(  # noqa: E731
        [jnp.minimum(r[0], x.min()), jnp.maximum(r[1], x.max()), r[2] + jnp.sin(x).sum(), r[3] * jnp.prod(x)]
    )
    wanted, moved = jax.jit(lambda *v: (jax.jacfwd(theirs, (0, 1))(*v), jax.jvp(theirs, v, v)[1]))(x, r)
    for got, want in zip(jax.jacrev(qd.jit(bounding_box), (0, 1))(x, r), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    np.testing.assert_allclose(jax.jvp(qd.jit(bounding_box), (x, r), (x, r))[1], moved)


@pytest.mark.full
def test_elements_that_forms_tell_apart():
    def ours(x, r):
        for i in qd.range(x.shape[0]):
            r.at[2 * (i % 3)].max(x[i])
            r.at[2 * (i % 3) + 1].add(jnp.sin(x[i]))
        return r

    def theirs(x, r):
        k = 2 * (jnp.arange(x.shape[0]) % 3)
        return r.at[k].max(x).at[k + 1].add(jnp.sin(x))

    x, r = np.array([0.3, 2.0, -1.0, 2.5, 0.7, 1.1, -0.2]), np.array([1.5, 0.3, 0.1, 0.7, -2.0, 0.2])
    wanted = jax.jacrev(theirs, (0, 1))(x, r)
    for got, want in zip(jax.jacrev(qd.jit(ours), (0, 1))(x, r), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.full
def test_loops_that_fusion_joined():
    """What a joined loop refuses is differentiated in the loops of the user."""
    x, r = np.array([1.0, 3, 2]), np.zeros(2)
    np.testing.assert_array_equal(jax.jacrev(qd.jit(two_loops))(x, r), [[0, 1, 0], [1, 1, 1]])


def test_one_element_by_two_operations():
    @qd.jit
    def f(x):
        r = qd.zeros((1,), x.dtype)
        for i in qd.range(x.shape[0]):
            r.at[0].max(x[i])
            r.at[x[i].astype(int) * 0].add(x[i])
        return r[0]

    with pytest.raises(GradientError, match=r"(?s)accesses by `max` alone, got `add` of a possibly equal.*help:"):
        jax.grad(f)(np.ones(3))


@pytest.mark.full
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("op", IN_JAX)
def test_rows_of_the_iteration(op, returned):
    """Filled, accumulated into, and read by the same iteration once the loops are joined."""

    @qd.jit
    def f(x, k):
        rows, y = qd.full((x.shape[0], 4), 0.5, x.dtype), qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            for j in qd.range(k.shape[0]):
                getattr(rows.at[i, k[j]], op)(jnp.sin(x[i] * (j + 1)))
        for i in qd.range(x.shape[0]):
            y[i] = rows[i, 0] * 3 + rows[i, 2] * rows[i, 1]
        return (y, rows) if returned else (y, y)

    def theirs(x):
        rows = [0.5] * 4
        for j, k in enumerate(K):
            rows[k] = IN_JAX[op](rows[k], jnp.sin(x * (j + 1)))
        return rows[0] * 3 + rows[2] * rows[1] + (sum(rows) if returned else 0)

    x = np.array([1.0, 3, 2])
    total = lambda x: f(x, K)[0].sum() + (f(x, K)[1].sum() if returned else 0)  # noqa: E731
    np.testing.assert_allclose(jax.grad(total)(x), jax.vmap(jax.grad(theirs))(x), rtol=1e-12)


@pytest.mark.full
def test_roundings_of_values_that_are_looked_for():
    """One run of the loop could fuse the multiplication and the addition, and another, which needs the product
    alone, could not: then no value would equal the maximum."""

    @qd.jit
    def f(a, b, c):
        r, y = qd.full(3, -100, a.dtype), qd.empty(a.shape, a.dtype)
        for i in qd.range(a.shape[0]):
            product = a[i] * b[i]
            r.at[i % 3].max(product + c[i])
            y[i] = jnp.sin(product)
        return r, y

    a, b, c = np.random.default_rng(0).normal(size=(3, 999)).astype(np.float32)
    got = jax.jit(jax.grad(lambda a: f(a, b, c)[0].sum() + f(a, b, c)[1].sum()))(a)
    want = np.cos(a * b) * b
    for k in range(3):
        at = k + 3 * np.argmax((a * b + c)[k::3])
        want[at] += b[at]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
