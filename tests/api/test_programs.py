"""Whole user programs through `qd.jit`, against NumPy or plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_elementwise_task() -> None:
    @qd.jit
    def f(x, y):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = 2.0 * x[i] + y[i]
        return out

    x, y = f32(1000), f32(1000)
    np.testing.assert_array_equal(f(x, y), np.float32(2) * x + y)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 33, 1000])
def test_arguments_are_values(n: int) -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + 1
        return x

    x = jnp.arange(n, dtype=jnp.int32)
    np.testing.assert_array_equal(f(x), np.arange(n) + 1)
    np.testing.assert_array_equal(x, np.arange(n))


@pytest.mark.full
def test_spring_step_of_the_readme() -> None:
    @qd.jit
    def spring_step(x, v, edge, rest, dt):
        f = qd.zeros(x.shape, x.dtype)
        for e in qd.range(edge.shape[0]):
            a, b = edge[e, 0], edge[e, 1]
            d = x[b] - x[a]
            n = jnp.linalg.norm(d) + 1e-9
            pull = 50.0 * (n - rest[e]) * d / n
            f[a] += pull
            f[b] += -pull
        for i in qd.range(x.shape[0]):
            v[i] = (v[i] + dt * f[i]) * 0.99
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + dt * v[i]
        return x, v

    n = 100
    x, v = f32(n, 2), f32(n, 2)
    edge = np.stack([np.arange(n), (np.arange(n) * 7 + 3) % n], 1).astype(np.int32)
    rest = np.abs(f32(n))
    dt = np.float32(0.01)
    force = np.zeros_like(x)
    d = x[edge[:, 1]] - x[edge[:, 0]]
    length = np.linalg.norm(d, axis=1) + np.float32(1e-9)
    pull = (50 * (length - rest))[:, None] * d / length[:, None]
    np.add.at(force, edge[:, 0], pull)
    np.add.at(force, edge[:, 1], -pull)
    want_v = (v + dt * force) * np.float32(0.99)
    got_x, got_v = spring_step(x, v, edge, rest, dt)
    # sums of a few terms in another order: a few roundings of values up to about 100
    np.testing.assert_allclose(got_v, want_v, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got_x, x + dt * want_v, rtol=1e-5, atol=1e-5)

    def loss(v0):
        def body(c, _):
            return spring_step(*c, edge, rest, dt), None

        (x1, _), _ = jax.lax.scan(body, (jnp.asarray(x), v0), None, length=3)
        return jnp.sum(x1)

    assert np.isfinite(jax.jit(loss)(jnp.asarray(v)))


@pytest.mark.full
def test_vmap_of_while() -> None:
    def newton(a):
        return jax.lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-6 * a, lambda s: 0.5 * (s + a / s), a)

    a = jnp.linspace(1.0, 1e6, 1001)
    # converged to the loop's own tolerance, half of it in the root
    np.testing.assert_allclose(qd.vmap(newton)(a), np.sqrt(a), rtol=1e-6)


def test_mandelbrot_counts() -> None:
    n, limit = 40, 50

    @qd.jit
    def escape():
        out = qd.zeros((n, n), jnp.int32)
        for i, j in qd.ndrange(n, n):
            cx, cy = -2 + 3 * j / n, -1.5 + 3 * i / n
            x, y, k = qd.local(0.0), qd.local(0.0), qd.local(0)
            for _ in qd.while_(lambda: (x * x + y * y < 4.0) & (k.value < limit)):  # noqa: B023
                x.value, y.value = x * x - y * y + cx, 2 * x * y + cy
                k += 1
            out[i, j] = k.value
        return out

    i, j = np.mgrid[:n, :n].astype(np.float32)
    cx, cy = -2 + 3 * j / np.float32(n), -1.5 + 3 * i / np.float32(n)
    x, y, k = np.zeros_like(cx), np.zeros_like(cx), np.zeros((n, n), np.int32)
    for _ in range(limit):
        inside = x * x + y * y < 4
        k += inside
        x, y = np.where(inside, x * x - y * y + cx, x), np.where(inside, 2 * x * y + cy, y)
    # the boundary of the set is chaotic: a rounding moves the count of a few points
    assert np.mean(np.asarray(escape()) != k) < 0.02


def test_histogram_and_scalar_loss() -> None:
    @qd.jit
    def f(x):
        bins, total = qd.zeros((8,), jnp.int32), qd.zeros((), jnp.float32)
        for i in qd.range(x.shape[0]):
            bins[x[i] % 8] += 1
            total[()] += x[i].astype(jnp.float32)
        return bins, total

    x = RNG.integers(0, 100, 5000).astype(np.int32)
    bins, total = f(x)
    np.testing.assert_array_equal(bins, np.bincount(x % 8, minlength=8))
    assert float(total) == x.sum()  # integers below 2**24 add exactly in f32


def test_array_code_between_tasks() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * 2
        mean = jnp.mean(x[...])
        for i in qd.range(x.shape[0]):
            x[i] = x[i] - mean
        return x, mean, x @ x

    x = f32(257)
    got, mean, dot = f(x)
    want = 2 * x - np.mean(2 * x)
    # one reduction of 257 terms in another order
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean, np.mean(2 * x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dot, want @ want, rtol=1e-5)


def test_bounds_read_from_a_buffer() -> None:
    @qd.jit
    def f(x, n):
        count, out = qd.zeros((1,), jnp.int32), qd.zeros(x.shape, x.dtype)
        for i in qd.range(n):
            with qd.when(x[i] > 0):
                count[0] += 1
        m = count[0] // 2
        for i in qd.range(m):
            out[i] = 1.0
        return out, count

    x = f32(300)
    out, count = f(x, 200)
    want = int((x[:200] > 0).sum())
    assert int(count[0]) == want
    np.testing.assert_array_equal(out, (np.arange(300) < want // 2).astype(np.float32))


@pytest.mark.parametrize(("start", "stop", "step"), [(2, 17, 3), (17, 2, -4), (5, 5, 1), (9, 3, 2)])
def test_ranges(start: int, stop: int, step: int) -> None:
    def f(start, stop, step):
        outer, inner = qd.zeros((32,), jnp.int32), qd.zeros((1,), jnp.int32)
        for i in qd.range(start, stop, step):
            outer[i] = i
        for _ in qd.range(1):
            for j in qd.range(start, stop, step):
                inner[0] += j
        return outer, inner

    want = np.zeros(32, np.int32)
    want[range(start, stop, step)] = range(start, stop, step)
    for fn in (qd.jit(f), qd.jit(f, static_argnums=(0, 1, 2))):
        outer, inner = fn(start, stop, step)
        np.testing.assert_array_equal(outer, want)
        assert int(inner[0]) == sum(range(start, stop, step))


def test_break_and_continue() -> None:
    @qd.jit
    def f(x, limit):
        out = qd.zeros((x.shape[0],), jnp.int32)
        for i in qd.range(x.shape[0]):
            total = qd.local(0)
            for j in qd.range(x.shape[1]):
                qd.continue_if(x[i, j] % 2 == 1)
                qd.break_if(total.value + x[i, j] > limit)
                total += x[i, j]
            out[i] = total.value
        return out

    x = RNG.integers(0, 20, (50, 30)).astype(np.int32)

    def row(r):
        total = 0
        for v in r:
            if v % 2 == 1:
                continue
            if total + v > 60:
                break
            total += v
        return total

    np.testing.assert_array_equal(f(x, 60), [row(r) for r in x])


def test_local_array_insertion_sort() -> None:
    @qd.jit
    def smallest(x):
        out = qd.zeros((x.shape[0], 4), x.dtype)
        for i in qd.range(x.shape[0]):
            best = qd.local(jnp.full((4,), jnp.inf))
            for j in qd.range(x.shape[1]):
                v = x[i, j]
                with qd.when(v < best[3]):
                    k = qd.local(3)
                    for _ in qd.while_(lambda: (k > 0) & (best[jnp.maximum(k.value - 1, 0)] > v)):  # noqa: B023
                        best[k.value] = best[k.value - 1]
                        k -= 1
                    best[k.value] = v
            out[i] = best[...]
        return out

    x = f32(37, 50)
    np.testing.assert_array_equal(smallest(x), np.sort(x, axis=1)[:, :4])


@pytest.mark.full
def test_host_loop_of_tasks() -> None:
    @qd.jit
    def relax(x):
        y, error, steps = qd.zeros(x.shape, x.dtype), qd.full((), 1.0, jnp.float32), qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: (error[()] > 1e-3) & (steps[()] < 1000)):
            error[()] = 0.0
            steps[()] += 1
            for i in qd.range(1, x.shape[0] - 1):
                y[i] = 0.5 * (x[i - 1] + x[i + 1])
            for i in qd.range(1, x.shape[0] - 1):
                error.at[()].max(jnp.abs(y[i] - x[i]))
                x[i] = y[i]
        return x, steps

    x = np.zeros(12, np.float32)
    x[-1] = 1
    got, steps = relax(x)
    want, count = x.copy(), 0
    error = 1.0
    while error > 1e-3:
        new = np.float32(0.5) * (want[:-2] + want[2:])
        error = np.abs(new - want[1:-1]).max()
        want[1:-1] = new
        count += 1
    assert int(steps) == count
    np.testing.assert_array_equal(got, want)


def test_tasks_under_a_condition() -> None:
    @qd.jit
    def f(x, flag):
        with qd.when(flag):
            for i in qd.range(x.shape[0]):
                x[i] = x[i] + 1
            x[0] = -1
        with qd.otherwise():
            for i in qd.range(x.shape[0]):
                x[i] = x[i] * 2
        return x

    x = np.arange(5, dtype=np.int32)
    np.testing.assert_array_equal(f(x, True), [-1, 2, 3, 4, 5])
    np.testing.assert_array_equal(f(x, False), [0, 2, 4, 6, 8])


def test_nested_functions_and_pytrees() -> None:
    @qd.dataclass
    class State:
        x: jax.Array
        v: jax.Array

    @qd.jit
    def drift(s, dt):
        for i in qd.range(s.x.shape[0]):
            s.x[i] = s.x[i] + dt * s.v[i]
        return s

    @qd.jit
    def two(s, dt):
        a = drift(s, dt)
        b = drift(a, dt)
        for i in qd.range(b.x.shape[0]):
            b.v[i] = b.v[i] + a.x[i]
        return {"state": b, "first": a.x}

    x, v = f32(20), f32(20)
    out = two(State(x, v), np.float32(0.5))
    first = x + np.float32(0.5) * v
    np.testing.assert_array_equal(out["first"], first)
    np.testing.assert_array_equal(out["state"].x, first + np.float32(0.5) * v)
    np.testing.assert_array_equal(out["state"].v, v + first)


@pytest.mark.full
def test_transformations_around() -> None:
    @qd.jit
    def cumulate(x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * 2 + 1
        return x

    x = f32(3, 10)
    np.testing.assert_array_equal(jax.vmap(cumulate)(x), 2 * x + 1)
    np.testing.assert_array_equal(jax.jit(lambda x: cumulate(cumulate(x)))(x[0]), 2 * (2 * x[0] + 1) + 1)
    got = jax.lax.fori_loop(0, 5, lambda _, c: cumulate(c), jnp.zeros(4))
    np.testing.assert_array_equal(got, np.full(4, 31, np.float32))


def test_donated_argument_is_updated_in_place() -> None:
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + 1
        return x

    x = jnp.zeros(4096)
    before = x.unsafe_buffer_pointer()
    y = qd.jit(f, donate_argnums=0)(x)
    assert y.unsafe_buffer_pointer() == before
    assert x.is_deleted()


def test_atomics_give_unique_tickets() -> None:
    @qd.jit
    def f(n_buf):
        ticket, slot = qd.zeros((1,), jnp.int32), qd.full(n_buf.shape, -1, jnp.int32)
        for i in qd.range(n_buf.shape[0]):
            with qd.when(n_buf[i] > 0):
                slot[i] = qd.atomic_add(ticket, 0, 1)
        return ticket, slot

    x = f32(1000)
    ticket, slot = f(x)
    taken = np.asarray(slot)[x > 0]
    assert int(ticket[0]) == (x > 0).sum()
    np.testing.assert_array_equal(np.sort(taken), np.arange(len(taken)))


@pytest.mark.full
def test_random_numbers_in_a_body_match_jax() -> None:
    @qd.jit
    def f(seed):
        out = qd.zeros((100,), jnp.float32)
        key = jax.random.key(seed)
        for i in qd.range(100):
            out[i] = jax.random.uniform(jax.random.fold_in(key, i))
        return out

    key = jax.random.key(7)
    want = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(jnp.arange(100))
    np.testing.assert_array_equal(f(7), want)


def test_closed_over_table_and_outer_tracer() -> None:
    table = jnp.asarray(f32(500))

    @jax.jit
    def outer(x, scale):
        @qd.jit
        def f(x):
            for i in qd.range(x.shape[0]):
                x[i] = x[i] + scale * table[(i * 7) % 500]
            return x

        return f(x)

    x = f32(100)
    want = x + np.float32(3) * np.asarray(table)[(np.arange(100) * 7) % 500]
    # a multiply and an add may be one fused operation: half an ulp of the product
    np.testing.assert_allclose(outer(x, np.float32(3)), want, rtol=1e-6, atol=1e-6)


def test_grad_inside_a_body() -> None:
    def potential(p):
        return jnp.sum(p**4) + jnp.prod(p)

    @qd.jit
    def forces(x):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = -jax.grad(potential)(x[i])
        return out

    x = f32(50, 3)
    want = -(4 * x**3 + np.prod(x, 1, keepdims=True) / x)
    # the reference divides by x: one rounding more, amplified where x is small
    np.testing.assert_allclose(forces(x), want, rtol=2e-5, atol=1e-5)
