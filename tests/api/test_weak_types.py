"""Arrays whose type another operand decides (`weak_type` of JAX): arguments, elements and results keep that."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import qdtrace as qd

RESULTS = {
    "a number": lambda v: 2.0,
    "where": lambda v: jnp.where(v > 1, 1, 2),
    "a counted loop": lambda v: lax.fori_loop(0, 3, lambda i, s: s * 2.0, 1.0),
    "a loop": lambda v: lax.while_loop(lambda s: s < v, lambda s: s + 1, 0),
    "two branches": lambda v: lax.cond(v > 1, lambda: 1.0, lambda: 2.0),
    "beside one of its own type": lambda v: {"weak": jnp.full((2,), 1.0), "strong": v},
    "a product of large arrays": lambda v: jnp.full((20, 20), 1.0) @ jnp.full((20, 20), 1.0),
}
AROUND = {
    "alone": lambda mapped, f: mapped(f),
    "under jit": lambda mapped, f: jax.jit(mapped(f)),
    "nested": lambda mapped, f: lambda x: mapped(mapped(f))(jnp.stack([x, x])),
    "under vmap": lambda mapped, f: lambda x: jax.vmap(mapped(f))(jnp.stack([x, x])),
}


def _types(tree: object) -> list[tuple[str, bool]]:
    return [(x.dtype.name, x.weak_type) for x in jax.tree.leaves(tree)]


@pytest.mark.full
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("result", RESULTS)
def test_results(result: str, around: str) -> None:
    x = jnp.arange(4.0, dtype=jnp.bfloat16)
    made, expected = (AROUND[around](mapped, RESULTS[result])(x) for mapped in (qd.vmap, jax.vmap))
    assert _types(made) == _types(expected)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, made, expected)))


@pytest.mark.full
@pytest.mark.parametrize("axes", [(0, 0), (None, 0)])
@pytest.mark.parametrize("other", ["bfloat16", "int8"])
def test_arguments(other: str, axes: tuple[int | None, int]) -> None:
    x = jnp.arange(4).astype(other)
    weak = jnp.full((4,), 0.5), jnp.where(x > 1, 1, 0), jnp.full((4, 3), 1.5), jnp.full((4, 300), 2.0)
    for a, f in itertools.product(weak, (lambda a, b: a * b, lambda a, b: (a, jnp.sum(a) + b))):
        assert a.weak_type
        made, expected = (mapped(f, in_axes=axes)(a, x) for mapped in (qd.vmap, jax.vmap))
        assert _types(made) == _types(expected)
        assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, made, expected)))


def test_elements_and_contents_of_buffers() -> None:
    @qd.jit
    def scaled(weak, x):
        out, own = qd.empty_like(x), qd.empty_like(weak)
        assert (weak[0] * x[0]).dtype == (weak[...] * x[...]).dtype == x.dtype
        for i in qd.range(x.shape[0]):
            factor = qd.local(weak[i])
            out[i] = weak[i] * x[i]
            own[i] = factor.value
            assert factor.dtype == weak.dtype
        return out, own

    out, own = scaled(jnp.full((3,), 1.5), jnp.ones(3, jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    assert own.dtype == jnp.full((3,), 1.5).dtype
    assert out.tolist() == own.tolist() == [1.5] * 3


@pytest.mark.full
def test_gradients_of_weak_arrays() -> None:
    def slope(mapped):
        return jax.grad(lambda a: jnp.sum(mapped(lambda a, b: a * b)(a, jnp.arange(3.0)) ** 2))(jnp.full((3,), 0.5))

    made, expected = slope(qd.vmap), slope(jax.vmap)
    assert _types(made) == _types(expected)
    assert made.tolist() == expected.tolist() == [0.0, 1.0, 4.0]
