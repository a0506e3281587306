# ruff: noqa: B023 - conditions of loops are asked while they are traced
"""Programs that other systems of loops differentiate wrongly or refuse, with the right answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd


def close(got, want, rtol=1e-9):
    np.testing.assert_allclose(got, want, rtol=rtol)


@pytest.mark.full
def test_a_product_in_a_loop():
    """The value that the loop carries is that of its iteration, not the last."""

    @qd.jit
    def power(x, n):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a = qd.local(jnp.ones((), x.dtype))
            for _ in qd.range(n):
                a.value = a.value * x[i]
            out[i] = a.value
        return out

    x = np.array([1.1, 2, 3])
    close(jax.grad(lambda x: power(x, 5).sum())(x), 5 * x**4)
    close(jax.vmap(jax.hessian(lambda x: power(x[None], 5)[0]))(x), 20 * x**3)


def test_a_loop_that_ends_by_its_value():
    @qd.jit
    def squared(x):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a = qd.local(x[i])
            for _ in qd.while_(lambda: a.value < 100):
                a.value = a.value * a.value
            out[i] = a.value
        return out

    close(jax.grad(lambda x: squared(x).sum())(np.array([3.0, 2, 1.5])), [17496, 1024, 16 * 1.5**15])


def test_a_count_times_a_value():
    @qd.jit
    def counted(x):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            g, a = x[i] * x[i], qd.local(0)
            for _ in qd.range(5):
                a.value = a.value + 1
            out[i] = g * a.value
        return out

    x = np.array([1.1, 2, 3])
    close(jax.grad(lambda x: counted(x).sum())(x), 10 * x)


def test_batches_do_not_meet():
    @qd.jit
    def roll(x):
        out, n = qd.empty(x.shape, x.dtype), x.shape[0]
        for i in qd.range(n):
            out[i] = x[i] * x[(i + 1) % n]
        return out

    x = np.arange(12.0).reshape(3, 4)
    close(jax.vmap(roll)(x), x * np.roll(x, -1, 1))
    close(jax.vmap(jax.grad(lambda x: roll(x).sum()))(x), np.roll(x, -1, 1) + np.roll(x, 1, 1))


def test_batched_tables_at_batched_indices():
    @qd.jit
    def gather(t, k):
        out = qd.empty(k.shape, t.dtype)
        for i in qd.range(k.shape[0]):
            out[i] = t[k[i]] * 2
        return out

    t, k = np.arange(15.0).reshape(3, 5), np.array([[0, 4], [1, 1], [3, 2]])
    close(jax.vmap(gather)(t, k), 2 * np.take_along_axis(t, k, 1))


def step(x, other):
    """Two updates in place, the second of what the first made."""
    for i in qd.range(x.shape[0]):
        x[i] = jnp.sin(x[i]) * other[i]
    for i in qd.range(x.shape[0]):
        x[i] = x[i] * x[i] + other[i]
    return x


@pytest.mark.full
def test_updates_in_place_are_versions():
    ours = qd.jit(step)

    def three(f):
        return lambda x, o: f(f(f(x, o), o), o).sum()

    x, o = np.array([0.3, 0.7]), np.array([1.1, 0.4])
    theirs = lambda x, o: (jnp.sin(x) * o) ** 2 + o  # noqa: E731
    close(jnp.stack(jax.grad(three(ours), (0, 1))(x, o)), jnp.stack(jax.grad(three(theirs), (0, 1))(x, o)))


@pytest.mark.full
def test_bounds_from_memory_that_changes():
    """The reverse runs as often as the loop did, though a later task changes what its bound was loaded from."""

    @qd.jit
    def f(x, n):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a = qd.local(x[i])
            for _ in qd.range(n[i]):
                a.value = jnp.sin(a.value)
            out[i] = a.value
        for i in qd.range(x.shape[0]):
            n[i] = 0
        return out, n

    def theirs(x, n):
        for i, count in enumerate(n):
            for _ in range(count):
                x = x.at[i].set(jnp.sin(x[i]))
        return x

    x, n = np.array([0.3, 0.9, 1.4]), np.array([2, 0, 5])
    close(jax.grad(lambda x: f(x, n)[0].sum())(x), jax.grad(lambda x: theirs(jnp.asarray(x), n).sum())(x))


@pytest.mark.full
@pytest.mark.parametrize("n", [0, 1, 7])
def test_scalar_arguments_as_bounds(n):
    @qd.jit
    def f(x, n):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a = qd.local(x[i])
            for _ in qd.range(n // 2):
                a.value = jnp.cos(a.value) * x[i]
            out[i] = a.value
        return out

    def theirs(x):
        a = x
        for _ in range(n // 2):
            a = jnp.cos(a) * x
        return a.sum()

    x = np.array([0.3, 0.9])
    close(jax.grad(lambda x: f(x, n).sum())(x), jax.grad(theirs)(x))


@pytest.mark.full
def test_break_and_continue():
    @qd.jit
    def f(x):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a = qd.local(jnp.ones((), x.dtype))
            for k in qd.range(20):
                qd.continue_if(k % 3 == 1)
                a.value = a.value * (x[i] + k)
                qd.break_if(a.value > 50)
            out[i] = a.value
        return out

    def theirs(x):
        a = 1.0
        for k in range(20):
            if k % 3 == 1:
                continue
            a = a * (x + k)
            if a > 50:
                break
        return a

    x = np.array([0.5, 1.5, 4.0])
    close(jax.grad(lambda x: f(x).sum())(x), [jax.grad(theirs)(v) for v in x])


@pytest.mark.full
def test_inner_loops_over_two_axes():
    @qd.jit
    def f(x, w):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a = qd.local(x[i])
            for j, k in qd.ndrange(2, 3):
                a.value = jnp.sin(a.value) + w[j, k] * a.value
            out[i] = a.value
        return out

    def theirs(x, w):
        for j in range(2):
            for k in range(3):
                x = jnp.sin(x) + w[j, k] * x
        return x

    x, w = np.array([0.3, 0.9]), np.linspace(0.1, 0.6, 6).reshape(2, 3)
    for got, want in zip(
        jax.grad(lambda x, w: f(x, w).sum(), (0, 1))(x, w),
        jax.grad(lambda x, w: theirs(x, w).sum(), (0, 1))(x, w),
        strict=True,
    ):
        close(got, want)


@pytest.mark.parametrize("trips", [1, 63, 64, 65, 200, 1000])
def test_any_number_of_iterations(trips):
    """A stack that has thinned gives the same gradient: x after n steps of x + h f(x), by the chain rule."""

    @qd.jit
    def f(x, n):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a, k = qd.local(x[i]), qd.local(0)
            for _ in qd.while_(lambda: k.value < n):
                a.value = a.value + 0.01 * jnp.sin(a.value)
                k.value = k.value + 1
            out[i] = a.value
        return out

    x = np.array([0.3, 0.9])
    value, slope = x.copy(), np.ones(2)
    for _ in range(trips):
        slope *= 1 + 0.01 * np.cos(value)
        value += 0.01 * np.sin(value)
    close(f(x, trips), value)
    close(jax.grad(lambda x: f(x, trips).sum())(x), slope)


@pytest.mark.full
@pytest.mark.parametrize("op", ["min", "max", "mul"])
def test_accumulations_have_the_rule_of_their_operation(op):
    """A maximum has the derivative of the largest, a product that of the others; none that of a sum."""

    @qd.jit
    def f(x):
        out = qd.full((), 1.5, x.dtype)
        for i in qd.range(x.shape[0]):
            getattr(out.at[()], op)(x[i])
        return out

    theirs = {"min": jnp.min, "max": jnp.max, "mul": jnp.prod}[op]
    x = np.array([0.5, 2.0, -3.0, 1.25])
    close(jax.grad(f)(x), jax.grad(lambda x: theirs(jnp.append(x, 1.5)))(x))


@pytest.mark.full
def test_lanes_with_very_different_numbers_of_iterations():
    """One of 4096 runs 1000 iterations, the others 10: each goes back through its own."""

    @qd.jit
    def f(x, n):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a = qd.local(x[i])
            for _ in qd.range(n[i]):
                a.value = a.value + 0.01 * jnp.sin(a.value)
            out[i] = a.value
        return out

    x, n = np.linspace(0.1, 1, 4096), np.full(4096, 10)
    n[1234] = 1000
    value, slope = x.copy(), np.ones(4096)
    for k in range(1000):
        runs = k < n
        slope[runs] *= 1 + 0.01 * np.cos(value[runs])
        value[runs] += 0.01 * np.sin(value[runs])
    close(jax.grad(lambda x: f(x, n).sum())(x), slope)


@pytest.mark.full
def test_products_of_the_hessian():
    ours, other, along = qd.jit(step), np.array([1.1, 0.4]), np.array([0.2, -1.0])

    def theirs(x, o):
        return (jnp.sin(x) * o) ** 2 + o

    x = np.array([0.3, 0.7])
    for product in (
        lambda f: jax.jvp(jax.grad(lambda x: (f(x, other) ** 2).sum()), (x,), (along,))[1],
        lambda f: jax.grad(lambda x: jax.grad(lambda x: (f(x, other) ** 2).sum())(x) @ along)(x),
    ):
        close(product(ours), product(theirs))
