"""Derivatives of products accumulated in memory whose factors over- and underflow on the way, against exact ones."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import qdtrace as qd
from tests.selection import drawn

PLACES = 3
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@qd.jit
def products(x, r):
    for i in qd.range(x.shape[0]):
        r.at[i % PLACES].mul(x[i])
    return r


@qd.jit
def product(x):
    r = qd.ones((), x.dtype)
    for i in qd.range(x.shape[0]):
        r.at[()].mul(x[i])
    return r


def factors(rng: np.random.Generator, count: int, dtype: np.dtype) -> np.ndarray:
    """Factors of all sizes whose product is often one of the dtype, with zeros among some."""
    info = ml_dtypes.finfo(dtype)
    spread = int(rng.choice([1, 4, min(-int(info.minexp), int(info.maxexp)) - 2]))
    exponents = rng.integers(-spread, spread + 1, count)
    if rng.integers(2):
        exponents[1::2] = -exponents[: 2 * (count // 2) : 2]  # large and small ones, which make up for each other
        rng.shuffle(exponents)
    x = np.ldexp(rng.uniform(1, 2, count) * rng.choice([-1, 1], count), exponents)
    x[rng.choice(count, min(count, int(rng.integers(4))), replace=False)] = 0 if rng.integers(2) else 1
    return x.astype(dtype)


def others(x: np.ndarray) -> np.ndarray:
    """The product of all elements but one, for each; in a format whose range no product here leaves."""
    wide = x.astype(np.longdouble)
    before = np.concatenate([[1], np.cumprod(wide)[:-1]])
    behind = np.concatenate([np.cumprod(wide[::-1])[-2::-1], [1]])
    return before * behind


def check(seed: int, kind: str) -> None:
    rng, dtype = np.random.default_rng(seed), np.dtype(DTYPES[kind])
    # beyond some 2000 factors of one side of a power of two f64 does not hold what is left of them
    count = int(rng.choice([1, 4, 7, 40, 300 if kind == "f64" else 900]))
    x, r = factors(rng, count, dtype), factors(rng, PLACES, dtype)
    w = rng.choice([-1.0, 1.0, 2.0], PLACES).astype(dtype)
    _, back = jax.vjp(products, x, r)
    got_x, got_r = back(jnp.asarray(w))
    moved = np.zeros_like(x)
    moved[count // 2] = 1
    slope = jax.jvp(products, (x, r), (moved, np.zeros_like(r)))[1]
    info = ml_dtypes.finfo(dtype)
    close = {"rtol": (count + 8) * float(info.eps), "atol": 4 * float(info.smallest_normal)}
    with np.errstate(over="ignore", under="ignore"):
        for place in range(PLACES):
            whole = others(np.concatenate([r[place : place + 1], x[place::PLACES]]))
            want = (whole.astype(dtype) * w[place]).astype(np.float64)
            found = np.asarray(got_x[place::PLACES], np.float64)
            np.testing.assert_allclose(np.concatenate([[float(got_r[place])], found]), want, **close)
            if not np.isfinite(whole.astype(dtype)).all():
                continue  # a tangent of zero times infinity
            mine = np.flatnonzero(moved[place::PLACES])
            want = whole[1 + mine[0]] if mine.size else 0.0
            np.testing.assert_allclose(float(slope[place]), np.float64(np.asarray(want).astype(dtype)), **close)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.full
def test_random_factors(kind):
    with jax.enable_x64(kind == "f64"):
        for seed in range(drawn(15)):
            check(seed, kind)


@pytest.mark.full
@pytest.mark.parametrize("kind", DTYPES)
def test_many_random_factors(kind):
    with jax.enable_x64(kind == "f64"):
        for seed in range(1000, 1100):
            check(seed, kind)


@pytest.mark.full
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_as_jax_differentiates_a_product(zeros):
    """JAX needs f64 for it: in f32 products of some of the others overflow."""
    x = np.float32([1e-30, 2e-30, 3e30, -4e30, 5e25, 6e-25, 0.5, 1.4, 0.7])
    x[:zeros] = 0
    one = lambda x: products(x, jnp.ones(PLACES, x.dtype)).prod()  # noqa: E731
    with jax.enable_x64(True):
        want = jax.grad(jnp.prod)(x.astype(float))
    np.testing.assert_allclose(jax.grad(one)(x), want, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(product)(x), want, rtol=1e-5)


def test_factors_on_both_sides_of_a_power_of_two():
    """1.42 is 0.71 times 2, so the exponents and what is left of 2000 factors drift apart."""
    x = np.tile(np.float32([1.42, 0.703]), 1000)
    got = jax.grad(product)(x)
    want = np.exp(np.log(x.astype(float)).sum() - np.log(x.astype(float)))
    np.testing.assert_allclose(got, want, rtol=1e-4)
