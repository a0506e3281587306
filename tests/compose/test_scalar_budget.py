"""How large an array is written out as scalars: less for rows, and as before for what picks elements."""


from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.machine import CPU
from qdtrace.compose import scalar_budget as scalars
from qdtrace.compose.scalar_budget import scalar_budget

N = 70
ROWS, LOOPS, ALL = CPU.scalars_of_rows, CPU.scalars_of_matrices, CPU.scalars


def picked(r: jax.Array, w: jax.Array) -> jax.Array:
    return r.at[3].set(r[0] * w[1] - r[2] * w[0]) * 0.5 + jnp.stack([r[k] * w[N - 1 - k] for k in range(N)])


def stepped(r: jax.Array, w: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, v: v + 0.1 * (jnp.roll(v, 1) - v), r) * w


CASES = {
    "arithmetic": (lambda r, w: jnp.sin(r) * w, ROWS),
    "shifted": (lambda r, w: jnp.roll(r, 1) - 2 * r + jnp.roll(r, -1) + w, ROWS),
    "sorted": (lambda r, w: jnp.sort(r) * w, ROWS),
    "running sum": (lambda r, w: jnp.cumsum(r) * w, ROWS),
    "histogram": (lambda r, w: jnp.histogram(r, bins=8, range=(-3.0, 3.0), weights=w)[0], LOOPS),
    "vectors' product": (lambda r, w: jnp.dot(r, w) * r, ROWS),
    "scattered": (lambda r, w: jnp.zeros_like(r).at[(jnp.abs(w) * 7).astype(int) % N].add(r), ROWS),
    "in a loop": (stepped, LOOPS),
    "picked": (picked, ALL),
    "a small product": (lambda r, w: (r[:36].reshape(6, 6) @ w[:6]).sum() * r, ALL),
    "a factorisation": (lambda r, _: jnp.linalg.cholesky(jnp.outer(r[:3], r[:3]) + jnp.eye(3)).sum() * r, ALL),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", CASES)
def test_what_is_mostly_of_rows(name: str) -> None:
    f, most = CASES[name]
    example = jnp.ones(N)
    assert scalar_budget(jax.make_jaxpr(f)(example, example).jaxpr.eqns) == most


@pytest.mark.cpu
@pytest.mark.parametrize(("shape", "most"), [((10, 10), ROWS), ((9, 10), ALL), ((4, 4, 6), ROWS), ((2, 32), ROWS)])
def test_arrays_of_short_axes_are_rows(shape: tuple[int, ...], most: int) -> None:
    moved = lambda b: jnp.flip(jnp.tanh(b), 0) + b  # noqa: E731
    looped = lambda b: lax.fori_loop(0, 3, lambda _, x: moved(x), b)  # noqa: E731
    assert scalar_budget(jax.make_jaxpr(moved)(jnp.ones(shape)).jaxpr.eqns) == most
    assert scalar_budget(jax.make_jaxpr(looped)(jnp.ones(shape)).jaxpr.eqns) == (LOOPS if most == ROWS else ALL)


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["svd", "eigh", "eig"])
@pytest.mark.parametrize(("n", "most"), [(9, ALL), (10, LOOPS)])
def test_what_is_made_of_turned_matrices_is_in_memory(name: str, n: int, most: int) -> None:
    """As the matrices are, from 96 elements on: scaling one of 100 was 400 lines of scalars beside its loops."""
    decomposed = jax.make_jaxpr(lambda a: getattr(jnp.linalg, name)(a / jnp.max(jnp.abs(a))))(jnp.eye(n))
    assert scalar_budget(decomposed.jaxpr.eqns) == most


@pytest.mark.cpu
@pytest.mark.full
def test_many_arrays_are_fewer_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of Jumanji's BinPack has 2,000 equations on arrays of 40 beside a scan: 69,000 lines, a minute."""

    def many(count: int) -> Callable[..., jax.Array]:
        def f(r: jax.Array) -> jax.Array:
            for k in range(count):
                r = r * 0.5 + k
            return lax.fori_loop(0, 3, lambda _, v: v + 0.1, r)

        return f

    few, much = (jax.make_jaxpr(many(count))(jnp.ones(40)).jaxpr.eqns for count in (350, 450))
    assert (scalar_budget(few), scalar_budget(much)) == (LOOPS, ROWS)
    picks = lambda r: jnp.stack([r[k] * r[99 - k] for k in range(100)])  # noqa: E731
    chain = lambda count: lambda r: [r := picks(r) for _ in range(count)][-1]  # noqa: E731
    monkeypatch.setattr(scalars, "MOST_WRITTEN", 1000)
    few, much = (jax.make_jaxpr(chain(count))(jnp.ones(100)).jaxpr.eqns for count in (9, 11))
    assert (scalar_budget(few), scalar_budget(much)) == (ALL, LOOPS)


@pytest.mark.sample(full=4)
@pytest.mark.full
@pytest.mark.parametrize("n", [36, 65])
@pytest.mark.parametrize("name", [name for name in CASES if name != "picked"])
def test_rows_of_every_kind_agree(name: str, n: int) -> None:
    f: Callable[..., jax.Array] = CASES[name][0]
    rng = np.random.default_rng(n)
    r, w = (jnp.asarray(rng.normal(size=(9, n)), jnp.float32) for _ in range(2))

    def loss(mapped: Callable[..., Callable[..., jax.Array]]) -> tuple[jax.Array, ...]:
        value = mapped(f)(r, w)
        of_both = jax.grad(lambda r, w: (mapped(f)(r, w) ** 2).sum(), (0, 1))(r, w)
        return value, *of_both

    for got, want in zip(loss(qd.vmap), loss(jax.vmap), strict=True):
        # sums of 65 squares and products, whose parts are a few units large, in another order
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
