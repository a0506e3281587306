"""Products of matrices and vectors with sums of up to three terms: random axes, derivatives, batches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.lanes.products import product_p, with_products

pytestmark = pytest.mark.cpu
AXES = (1, 3, 7, 16)


def drawn_product(seed: int, dtype: str) -> tuple[Any, Any, Any]:
    """Returns operands in a random order of their axes, one of them without a free one that is longer than 1."""
    rng = np.random.default_rng(seed)
    batch = [int(n) for n in rng.choice((2, 3, 33), size=int(rng.integers(1, 3)))]
    free = [int(n) for n in rng.choice(AXES, size=int(rng.integers(0, 3)))]
    sides = [free, [1] * int(rng.integers(0, 2))][:: 1 if rng.random() < 0.5 else -1]
    depth = int(rng.integers(1, 4))
    made: list[Any] = []
    places: list[list[int]] = []
    for own in sides:
        shape = [*batch, depth, *own]
        order = [int(k) for k in rng.permutation(len(shape))]
        made.append(jnp.asarray(rng.normal(size=[shape[k] for k in order]).astype(dtype)))
        places.append([order.index(k) for k in range(len(batch) + 1)])
    *lead, over = zip(*places, strict=True)
    return made[0], made[1], (((over[0],), (over[1],)), tuple(zip(*lead, strict=True)))


def same(got: Any, want: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        digits = 1e-5 if one.dtype == np.float32 else 1e-13  # of the largest: sums over up to 33 x 33 lanes
        np.testing.assert_allclose(one, other, rtol=0, atol=digits * max(1.0, float(jnp.abs(other).max())))


@pytest.mark.full
@pytest.mark.sample(20, full=6)
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_axes_in_all_orders_of_derivatives(seed: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        x, y, numbers = drawn_product(seed, dtype)

        def f(x: Any, y: Any) -> Any:
            return lax.dot_general(x, y, numbers, precision="highest")

        def every(f: Any) -> Any:
            def slopes(x: Any, y: Any) -> Any:
                return jax.grad(lambda x, y: jnp.sum(jnp.sin(f(x, y))), argnums=(0, 1))(x, y)

            def run(x: Any, y: Any) -> Any:
                more = jax.vmap(f, (None, 0))(x, jnp.stack([y, -y])), jax.vmap(f, (0, 0))(x[None], y[None])
                return f(x, y), more, jax.jvp(slopes, (x, y), (jnp.cos(x), y))

            return jax.jit(run)(x, y)

        assert [e.primitive for e in jax.make_jaxpr(with_products(f))(x, y).eqns] == [product_p]
        same(every(with_products(f)), every(f))


@pytest.mark.full
def test_rotations_beside_a_factorisation_of_many_lanes() -> None:
    rng = np.random.default_rng(0)
    turns, points = (jnp.asarray(rng.normal(size=s).astype("float32")) for s in ((17, 6, 3, 3), (17, 6, 3)))
    a = jnp.asarray(rng.normal(size=(17, 18, 18)).astype("float32"))

    def lane(turns: Any, points: Any, a: Any) -> Any:
        moved = jax.vmap(jnp.matmul)(turns, points).reshape(-1)
        return jnp.linalg.solve(a @ a.T + jnp.eye(18), moved)

    with jax.default_matmul_precision("highest"):
        ours, theirs = jax.jit(qd.vmap(lane)), jax.jit(jax.vmap(lane))
        assert product_p.name in str(jax.make_jaxpr(ours)(turns, points, a))
        assert "dot_general" not in ours.lower(turns, points, a).as_text()  # a @ a.T is a kernel
        np.testing.assert_allclose(ours(turns, points, a), theirs(turns, points, a), rtol=0, atol=2e-3)


def test_equal_shapes_of_other_dtypes_and_longer_sums_stay_with_xla() -> None:
    for shape, dtype in (((5, 3, 3), jnp.bfloat16), ((5, 3, 3), jnp.complex64), ((5, 3, 4), jnp.float32)):
        x, y = jnp.ones(shape, dtype), jnp.ones((5, shape[-1]), dtype)
        made = jax.make_jaxpr(with_products(lambda x, y: jnp.einsum("ijk,ik->ij", x, y)))(x, y)
        assert product_p.name not in str(made)
