"""Lanes with more to do for the elements between their matrices than for the matrices: one loop over lanes on a CPU."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests.selection import drawn

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def likelihood(x: Any) -> Any:
    """Returns the likelihood of a Gaussian process on a line."""
    k = jnp.exp(-((x[:, None] - x[None]) ** 2)) + jnp.eye(x.size, dtype=x.dtype)
    factor = jnp.linalg.cholesky(k)
    y = jax.scipy.linalg.solve_triangular(factor, jnp.sin(x), lower=True)
    return jnp.sum(y * y) + jnp.sum(jnp.log(jnp.diagonal(factor)))


def products(times: int) -> Callable[[Any], Any]:
    """Returns a lane with a product and so many passes over a matrix in each of five steps."""

    def step(_: Any, m: Any) -> Any:
        m = m @ m / m.shape[0]
        for _ in range(times):
            m = jnp.sin(m) + 0.5 * m.T
        return m

    return lambda x: lax.fori_loop(0, 5, step, x[:, None] * x[None])


def generators(f: Any, x: Any) -> list[str]:
    return [task.codegen for task in qd.jit(lambda x: qd.vmap(f)(x)).lower(x).tasks]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("f", "shape", "found"),
    [
        (likelihood, (16, 20), "llvm"),
        (likelihood, (15, 20), "xla"),  # too few lanes for two vectors of AVX2
        (likelihood, (16, 150), "xla"),  # the factor outweighs what makes its matrix
        (products(4), (16, 20), "llvm"),
        (products(1), (16, 40), "xla"),
        (jax.vmap(products(4)), (16, 7, 20), "llvm"),
        (lambda a: jnp.sum(jnp.sin(a @ a)), (16, 20, 20), "xla"),  # lanes would gather their matrices for it
        (lambda x: jnp.linalg.eigvalsh(products(4)(x)), (16, 20), "xla"),
    ],
)
def test_what_runs_where(f: Any, shape: tuple[int, ...], found: str) -> None:
    assert generators(f, numbers(*shape)) == [found]


State = dict[str, Any]
MATRICES: dict[str, Callable[[State], State]] = {
    "product": lambda s: {**s, "m": s["m"] @ s["m"].T / s["m"].shape[0]},
    "product with a vector": lambda s: {**s, "v": jnp.tanh(s["m"] @ s["v"])},
    "factor": lambda s: {**s, "m": jnp.linalg.cholesky(_definite(s))},
    "solve": lambda s: {**s, "v": jnp.linalg.solve(_definite(s), s["v"])},
    "triangular": lambda s: {
        **s, "v": jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(_definite(s)), s["v"], lower=True)
    },
}  # fmt: skip
ELEMENTS: dict[str, Callable[[State], State]] = {
    "outer": lambda s: {**s, "m": s["m"] + jnp.cos(s["v"][:, None] - s["v"][None])},
    "turned": lambda s: {**s, "m": jnp.where(s["m"] > s["m"].T, jnp.sin(s["m"]), 0.5 * s["m"].T)},
    "rolled": lambda s: {**s, "m": jnp.roll(s["m"], 1, 0) * 0.5 + s["m"][::-1]},
    "rows taken": lambda s: {**s, "m": s["m"][jnp.array([1, 0, *range(2, s["v"].size)])]},
    "sums": lambda s: {**s, "v": jnp.tanh(jnp.cumsum(s["m"], 1).mean(0))},
    "joined": lambda s: {**s, "v": jnp.concatenate([s["m"][3, 5:], s["v"][:5]])},
    "placed": lambda s: {**s, "m": s["m"].at[2].set(s["v"]).at[:, 1].add(s["v"] * 0.5)},
    "sorted": lambda s: {**s, "v": jnp.sort(s["v"]) + 0.1 * s["m"][0]},
}  # fmt: skip


def _definite(s: State) -> Any:
    n = s["m"].shape[0]
    m = jnp.tanh(s["m"])
    return m @ m.T / n + 2 * jnp.eye(n, dtype=m.dtype)


def drawn_lane(rng: np.random.Generator) -> tuple[list[str], Callable[[Any], Any]]:
    """Returns names of steps and a lane that runs them some times, one of matrices and three of elements."""
    names = list(rng.choice(list(MATRICES), size=1)) + list(rng.choice(list(ELEMENTS), size=3))
    rng.shuffle(names)
    trips = int(rng.integers(1, 3))

    def step(s: State, _: Any) -> tuple[State, Any]:
        for name in names:
            s = {**MATRICES, **ELEMENTS}[name](s)
        s = {"m": jnp.tanh(s["m"]), "v": jnp.tanh(s["v"])}
        return s, s["v"][0]

    def lane(v: Any) -> Any:
        s, seen = lax.scan(step, {"m": jnp.outer(jnp.sin(v), v), "v": v}, None, length=trips)
        return s, seen

    return names, lane


@pytest.mark.full
@pytest.mark.sample(full=2)
@pytest.mark.parametrize("seed", range(drawn(4)))
def test_random_lanes_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names, lane = drawn_lane(rng)
    x = rng.normal(size=(int(rng.choice((16, 17, 41))), int(rng.choice((17, 20, 27)))))

    def loss(vmap: Any, x: Any) -> Any:
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(vmap(lane)(x)))

    with jax.enable_x64(True), qd.options(array_mapping="lanes"):
        x = jnp.asarray(x)
        for got, want in zip(jax.tree.leaves(qd.vmap(lane)(x)), jax.tree.leaves(jax.vmap(lane)(x)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=str(names))  # f64, conditions of 1e3
        got, want = (jax.grad(lambda x, vmap=vmap: loss(vmap, x))(x) for vmap in (qd.vmap, jax.vmap))
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7 * (1 + np.abs(want).max()), err_msg=str(names))
