"""What no lane of a `qd.vmap` differs in is computed once: values, derivatives, and where it is decided."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

RNG = np.random.default_rng(7)
LANES = 3000


def normal(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def tasks(f: Any, axes: Any, *args: Any, **options: Any) -> list[tuple[str, Any]]:
    with qd.options(**options):
        low = qd.jit(lambda *args: qd.vmap(f, axes)(*args)).lower(*args)
    return [(task.codegen, task.bounds) for task in low.tasks]


def weights(x: Any, w: Any) -> Any:
    return jnp.dot(jax.nn.softmax(w), x)


def gain(x: Any, a: Any) -> Any:
    def step(_: Any, p: Any) -> Any:
        return jnp.eye(3) + a.T @ p @ jnp.linalg.solve(jnp.eye(3) + p, a)

    return lax.fori_loop(0, 20, step, jnp.eye(3)) @ x


def half_inside_of_a_call(x: Any, a: Any) -> Any:
    return jnp.linalg.solve(a + 9 * jnp.eye(8), x)


def counted(x: Any, a: Any) -> Any:
    """A `while`, which only this package differentiates in reverse."""
    trips = lax.while_loop(lambda c: c[0] < 30 + 0 * a[0], lambda c: (c[0] + 1, jnp.sin(c[1] + a[1])), (0.0, a[0]))
    return x * trips[1]


def steps(x: Any, a: Any) -> Any:
    """A filter: the covariance of its model depends on no measurement."""

    def step(c: Any, z: Any) -> Any:
        x, p = c
        p = a @ p @ a.T + jnp.eye(3)
        g = jnp.linalg.solve(p + jnp.eye(3), p).T
        return (x + g @ (z - x), p - g @ p), x[0]

    return lax.scan(step, (jnp.zeros(3), jnp.eye(3)), x)


def table(x: Any, w: Any) -> Any:
    return jnp.interp(x[0], jnp.linspace(-3.0, 3.0, 33), jnp.cumsum(jax.nn.softplus(w)))


def nothing_of_a_lane(x: Any, w: Any) -> Any:
    del x
    return jnp.cumsum(jnp.exp(w))


def both(x: Any, w: Any) -> Any:
    """Results that differ, that do not, an argument as it is, and a constant."""
    s = jax.nn.softmax(w)
    return {"dot": s[:3] @ x[:3], "same": s, "given": w, "number": 1.0, "more": jnp.exp(x) + s[0]}


PROGRAMS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "weights": (weights, (40,), (40,)),
    "gain": (gain, (3,), (3, 3)),
    "half_inside_of_a_call": (half_inside_of_a_call, (8,), (8, 8)),
    "steps": (steps, (12, 3), (3, 3)),
    "counted": (counted, (2,), (2,)),
    "table": (table, (1,), (33,)),
    "nothing_of_a_lane": (nothing_of_a_lane, (1,), (50,)),
    "both": (both, (4,), (60,)),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_once(name: str) -> None:
    f, lane, shared = PROGRAMS[name]
    x, w = normal(LANES, *lane), normal(*shared) * 0.4
    found = jax.jit(qd.vmap(f, (0, None)))(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-5, 2e-5), found, jax.vmap(f, (0, None))(x, w))
    rows = tasks(f, (0, None), x, w)
    assert ("llvm", (0, 1)) in rows, rows
    assert ("llvm", (0, 1)) not in tasks(f, (0, None), x, w, array_mapping="lanes")


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name: str) -> None:
    """Of the shared argument, too: lanes add to what is computed once, whose derivative is taken once."""
    f, lane, shared = PROGRAMS[name]
    x, w = normal(LANES, *lane), normal(*shared) * 0.4

    def loss(mapped: Any, x: Any, w: Any) -> Any:
        leaves = jax.tree.leaves(mapped(x, w))
        return sum(jnp.sum(jnp.sin(y) * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)) for y in leaves)

    ours = jax.jit(jax.grad(lambda *args: loss(qd.vmap(f, (0, None)), *args), (0, 1)))(x, w)
    with qd.options(array_mapping="lanes"):
        lanes = jax.jit(jax.grad(lambda *args: loss(qd.vmap(f, (0, None)), *args), (0, 1)))(x, w)
    for a, b in zip(ours, lanes, strict=True):
        np.testing.assert_allclose(a, b, 2e-3, 2e-3 * float(jnp.abs(b).max() + 1e-6))  # sums of 3000 lanes in f32


@pytest.mark.cpu
def test_little_work_stays_in_lanes() -> None:
    """Scalars are in the head of the task, and few lanes save less than a call costs."""
    x, w = normal(LANES), normal(8)
    assert tasks(lambda x, w: x * jnp.exp(w[0]), (0, None), x, w) == [("llvm", (0, LANES))]
    long = normal(400)
    assert tasks(weights, (0, None), normal(3, 400), long) == [("llvm", (0, 3))]


@pytest.mark.cpu
def test_large_arrays_are_for_the_library() -> None:
    x, w = normal(LANES, 4), normal(64, 64)
    rows = tasks(lambda x, w: jnp.sum(jnp.tanh(w @ w)) * x, (0, None), x, w)
    assert rows[0] == ("xla", (0, 1))


def test_a_key_that_lanes_share() -> None:
    x = normal(LANES)

    def noisy(x: Any, key: Any) -> Any:
        return x + jax.random.normal(key, (64,)).sum()

    found = jax.jit(qd.vmap(noisy, (0, None)))(x, jax.random.key(3))
    np.testing.assert_allclose(found, jax.vmap(noisy, (0, None))(x, jax.random.key(3)), 1e-5, 1e-5)


def test_under_more_maps() -> None:
    x, w = normal(4, LANES, 40), normal(4, 40)
    found = jax.vmap(qd.vmap(weights, (0, None)))(x, w)
    np.testing.assert_allclose(found, jax.vmap(jax.vmap(weights, (0, None)))(x, w), 1e-5, 1e-5)
    several = jax.jit(lambda x, w: qd.vmap(weights, (0, None))(x, w))(x[0], w[0])
    np.testing.assert_allclose(several, found[0], 1e-5, 1e-5)


def test_checks_and_prints_stay_in_lanes() -> None:
    """What has effects is done by each lane."""

    def loud(x: Any, w: Any) -> Any:
        s = jax.nn.softmax(w)
        jax.debug.callback(lambda s: seen.append(float(s)), s[0])
        return x * s[1]

    seen: list[float] = []
    x, w = normal(900), normal(500)
    found = jax.jit(qd.vmap(loud, (0, None)))(x, w)
    np.testing.assert_allclose(found, x * jax.nn.softmax(w)[1], 1e-5)
    jax.effects_barrier()
    assert len(seen) == 900


def filtered(p: Any, q: Any, *, reverse: bool) -> Any:
    """A scan with a state that varies if `p` does, one of `q` alone, a counter, rows of both, and a scan inside."""

    def step(state: Any, rows: Any) -> Any:
        x, s, n = state
        a, b = rows
        k = jnp.exp(-jnp.abs(jnp.sin(s * n)) - b)
        inner = lax.scan(lambda c, r: (jnp.sin(c + r), jnp.dot(k, k)), b, k)
        return (jnp.sin(x + a) * k + inner[0], jnp.tanh(s + k.sum()), n + 1), (x[0], k, inner[1].sum(), 2.0)

    rows = (jnp.linspace(0, 1, 6) * p[0], q)
    (x, s, n), ys = lax.scan(step, (p, q, jnp.float32(1)), rows, reverse=reverse)
    return x + s + n + ys[0] + ys[1].sum(0) + ys[2] + ys[3]


def swapped(p: Any, q: Any) -> Any:
    """A scan whose states change places, and become an argument, a number and a row."""

    def step(state: Any, row: Any) -> Any:
        a, b, c, d, e = state
        return (b, jnp.cos(a) * 0.5, q, jnp.zeros(6), jnp.full(6, row)), (a, jnp.cumsum(jnp.exp(-c * c)), d, e * p)

    ends, ys = lax.scan(step, (q, q * 2, q, p, q), q)
    return sum(ends) + sum(y.sum(0) for y in ys) * 0.1


KINDS = (
    lambda p, q: jnp.tanh(p) + 0 * q,
    lambda p, q: jax.nn.softmax(p + q),
    lambda p, q: jnp.cumsum(p) * 0.3,
    lambda p, q: p * q,
    lambda p, q: jnp.where(p > q, p, jnp.sin(q)),
    lambda p, q: lax.fori_loop(0, 5, lambda i, c: jnp.cos(c * 0.5 + i) + p, q),
    lambda p, q: jnp.broadcast_to(jnp.max(q), (6,)) - p,
    lambda p, q: jnp.linalg.solve(jnp.outer(q, q) + 3 * jnp.eye(6), p),
    lambda p, q: filtered(p, q, reverse=True),
    lambda p, q: filtered(q, p, reverse=False),
    swapped,
    lambda p, q: lax.while_loop(lambda c: c[1] < 4, lambda c: (jnp.sin(c[0]) + q, c[1] + 1), (p, 0))[0],
)


def drawn_program(rng: np.random.Generator) -> Any:
    """A random function of a lane's array and a shared one, of work, of moves, and of what mixes both."""
    steps = [
        (int(rng.integers(len(KINDS))), *(int(k) for k in rng.integers(0, 8, 2)))
        for _ in range(int(rng.integers(4, 12)))
    ]

    def f(x: Any, w: Any) -> Any:
        pool = [w, x, jnp.arange(6.0) * 0.1]
        for kind, a, b in steps:
            pool.append(KINDS[kind](pool[a % len(pool)], pool[b % len(pool)]))
        return jnp.stack(pool[-2:]), pool[len(pool) // 2]

    return f


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the limits would leave all of it in lanes."""
    from qdtrace.lanes import shared

    monkeypatch.setattr(shared, "LEAST", 1)
    monkeypatch.setattr(shared, "LEAST_OF_ALL", 1)
    f = drawn_program(np.random.default_rng(seed))
    x, w = normal(17, 6), normal(6)
    found = jax.jit(qd.vmap(f, (0, None)))(x, w)
    meant = jax.vmap(f, (0, None))(x, w)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(meant), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, 3e-4, 3e-4)


def test_values_that_a_function_closes_over() -> None:
    """Of an outer trace, and of none."""
    x, w = normal(LANES, 40), normal(40)

    def loss(mapped: Any, w: Any) -> Any:
        return jnp.sum(jnp.sin(mapped(lambda x: weights(x, w))(x)))

    np.testing.assert_allclose(
        jax.grad(lambda w: loss(qd.vmap, w))(w), jax.grad(lambda w: loss(jax.vmap, w))(w), 1e-3, 1e-3
    )
    np.testing.assert_allclose(qd.vmap(lambda x: weights(x, w))(x), jax.vmap(weights, (0, None))(x, w), 1e-5, 1e-5)


def of_constants(x: Any, w: Any) -> Any:
    """A product of constants, as tangents of a basis and a matrix of the element make, and one of an argument."""
    corners = jnp.eye(12).reshape(12, 4, 3)
    basis = (corners[:, 1:] - corners[:, :1]) @ jnp.diag(jnp.arange(1.0, 4.0))
    return (basis * x[:, None]).sum((1, 2)) * jnp.sum(jnp.exp(w))


def test_constants_are_numbers_in_lanes() -> None:
    """They fold there; an array in memory would be read by each lane, and its zeros be multiplied."""
    x, w = normal(LANES, 3), normal(64)
    assert tasks(lambda x: of_constants(x, x), 0, x) == [("llvm", (0, LANES))]
    low = qd.jit(lambda x, w: qd.vmap(of_constants, (0, None))(x, w)).lower(x, w)
    assert [task.bounds for task in low.tasks] == [(0, 1), (0, LANES)]
    once = low.graph().split("program ")[1]
    assert once.count("buffer") == 1
    want = jax.vmap(of_constants, (0, None))(x, w)
    np.testing.assert_allclose(qd.vmap(of_constants, (0, None))(x, w), want, rtol=2e-5, atol=1e-4)


def test_constants_of_many_operations_are_computed_once() -> None:
    def f(x: Any) -> Any:
        table = jnp.exp(jnp.arange(3000.0) * 1e-3)
        return x * jnp.cumsum(table)[-1]

    x = normal(LANES)
    assert len(tasks(f, 0, x)) == 2
    np.testing.assert_allclose(qd.vmap(f)(x), jax.vmap(f)(x), rtol=1e-5)
