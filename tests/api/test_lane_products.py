"""Products of the matrices of all lanes by kernels of this package: every order of axes, derivatives of any order."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from qdtrace.lanes.products import product_p, with_products

pytestmark = pytest.mark.cpu
SIZES = [
    (1, (1, 1, 8)), (3, (8, 8, 8)), (2, (17, 9, 33)), (5, (3, 27, 12)), (33, (16, 2, 16)), (2, (7, 128, 40)),
]  # fmt: skip
"""Lanes; rows, terms of a sum and columns of a product."""


def operands(lanes: int, sizes: Sequence[int], order: Sequence[bool], dtype: Any) -> tuple[Any, Any, Any]:
    """Returns both operands and the dimension numbers of their product; each has its two axes in one of two orders."""
    rows, depth, columns = sizes
    rng = np.random.default_rng(sum(sizes))
    x = jnp.asarray(rng.normal(size=(lanes, depth, rows) if order[0] else (lanes, rows, depth)).astype(dtype))
    y = jnp.asarray(rng.normal(size=(lanes, columns, depth) if order[1] else (lanes, depth, columns)).astype(dtype))
    return x, y, (((1 if order[0] else 2,), (2 if order[1] else 1,)), ((0,), (0,)))


def same(got: Any, want: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        digits = 1e-5 if one.dtype == np.float32 else 1e-13  # of the largest, in sums of up to 128 terms
        np.testing.assert_allclose(one, other, rtol=0, atol=digits * max(1.0, float(jnp.abs(other).max())))


def gradient(f: Any) -> Any:
    return jax.grad(lambda x, y: jnp.sum(jnp.sin(f(x, y))), argnums=(0, 1))


def primitives(f: Any, *args: Any) -> list[str]:
    return [eqn.primitive.name for eqn in jax.make_jaxpr(with_products(f))(*args).eqns]


@pytest.mark.sample(full=3)
@pytest.mark.parametrize(("lanes", "sizes"), SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.full
def test_values_and_adjoints_in_every_order_of_axes(lanes: int, sizes: tuple[int, ...], dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        for order in product((False, True), repeat=2):
            x, y, numbers = operands(lanes, sizes, order, dtype)

            def f(x: Any, y: Any, numbers: Any = numbers) -> Any:
                return lax.dot_general(x, y, numbers, precision="highest")

            assert primitives(f, x, y) == [product_p.name]
            for of in (lambda f: f, gradient):
                same(jax.jit(of(with_products(f)))(x, y), of(f)(x, y))


@pytest.mark.full
def test_second_order_tangents_and_batches() -> None:
    x, y, numbers = operands(3, (9, 8, 12), (False, True), "float32")

    def f(x: Any, y: Any) -> Any:
        return lax.dot_general(x, y, numbers, precision="highest")

    def curvature(f: Any) -> Any:
        def slope(x: Any) -> Any:
            return jax.grad(lambda x: jnp.sum(f(x, f(x, y)[:, :, :8]) ** 2))(x)

        return jax.jvp(slope, (x,), (jnp.cos(x),))

    same(curvature(with_products(f)), curvature(f))
    more = jnp.stack([x, 2 * x])
    cases = [((0, None), (more, y)), ((None, 1), (x, jnp.stack([y, -y], 1))), ((0, 0), (more, more[..., :8]))]
    for axes, given in cases:
        same(jax.vmap(with_products(f), axes)(*given), jax.vmap(f, axes)(*given))


@pytest.mark.full
def test_products_in_loops_branches_and_calls_read_what_was_transposed_for_them() -> None:
    x = operands(3, (16, 16, 16), (False, False), "float32")[0] / 8

    def f(x: Any) -> Any:
        def step(m: Any, _: Any) -> tuple[Any, None]:
            turned = x.swapaxes(1, 2)
            return lax.cond(m[0, 0, 0] > 0, lambda m: m @ turned + x, lambda m: jax.jit(jnp.matmul)(x, m), m), None

        return jax.checkpoint(lambda m: lax.scan(step, m, None, 3)[0])(x)

    with jax.default_matmul_precision("highest"):
        same(with_products(f)(x), f(x))
        assert "dot_general" not in str(jax.make_jaxpr(with_products(f))(x))
        same(jax.grad(lambda x: jnp.sum(with_products(f)(x)))(x), jax.grad(lambda x: jnp.sum(f(x)))(x))


@pytest.mark.full
@pytest.mark.parametrize("order", [0, 1])
def test_a_matrix_that_all_share_times_one_of_each(order: int) -> None:
    """XLA would transpose all matrices for one large product."""
    y = operands(5, (1, 9, 16), (False, False), "float32")[1]
    w = jnp.asarray(np.random.default_rng(0).normal(size=(9, 4) if order == 0 else (4, 9)).astype("float32"))

    def f(w: Any, y: Any) -> Any:
        return lax.dot_general(w, y, (((order,), (1,)), ((), ())), precision="highest")

    assert product_p.name in primitives(f, w, y)
    assert primitives(f, w.astype(complex), y.astype(complex)) == ["dot_general"]
    for of in (lambda f: f, gradient):
        same(jax.jit(of(with_products(f)))(w, y), of(f)(w, y))


@pytest.mark.parametrize(
    ("x", "y", "numbers"),
    [
        ((8, 8), (8, 8), (((1,), (0,)), ((), ()))),  # one product: a library has it
        ((2, 8, 8), (2, 8), (((2,), (1,)), ((0,), (0,)))),  # with a vector: as fast as memory
        ((2, 8, 8), (2, 8, 3), (((2,), (1,)), ((0,), (0,)))),  # short rows
        ((2, 8, 0), (2, 0, 8), (((2,), (1,)), ((0,), (0,)))),
        ((2, 8, 200), (2, 200, 8), (((2,), (1,)), ((0,), (0,)))),
        ((2, 8, 4, 4), (2, 4, 4, 8), (((2, 3), (1, 2)), ((0,), (0,)))),
    ],
)
def test_other_products_stay_with_xla(x: Any, y: Any, numbers: Any) -> None:
    given = jnp.ones(x), jnp.ones(y)
    assert primitives(lambda x, y: lax.dot_general(x, y, numbers), *given) == ["dot_general"]


def test_other_dtypes_stay_with_xla() -> None:
    for dtype in (jnp.int32, jnp.bfloat16, jnp.complex64):
        x = jnp.ones((2, 8, 8), dtype)
        assert primitives(jnp.matmul, x, x) == ["dot_general"]
    x = jnp.ones((2, 8, 8), jnp.bfloat16)
    assert primitives(lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32), x) == ["dot_general"]


def test_lowered_for_a_gpu_it_is_xlas_product() -> None:
    x = jnp.ones((2, 8, 8))
    text = jax.jit(with_products(jnp.matmul)).trace(x, x).lower(lowering_platforms=("cuda",)).as_text()
    assert "dot_general" in text
