"""Products of pieces of bf16 in groups: as exact as in f32, and again in f32 for lanes that pieces do not hold."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from qdtrace.groups import pieces
from qdtrace.groups.forms import forms_of
from qdtrace.groups.kernel import run_groups
from qdtrace.groups.primitive import grouped

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def precision() -> Any:
    with jax.default_matmul_precision("highest"):
        yield


def by_kernel(f: Callable[..., Any], *args: Any) -> Any:
    lane = jax.make_jaxpr(f)(*(x[0] for x in args))
    assert [form for form in forms_of(lane) if form.by_pieces]
    (made,) = run_groups(lane, [True] * len(args), args, interpret=True)
    return made


def chain(a: Any, b: Any) -> Any:
    return (a @ b) @ b


def chained(a: Any, b: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, x: x @ b, a)


def drawn(seed: int, n: int, lanes: int = 2) -> list[Any]:
    """Returns matrices whose elements differ by up to 2^20, so that a part of a sum counts for little or for all."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-10, 10, (2, lanes, n, n)))
    return [jnp.asarray(x, jnp.float32) for x in rng.normal(size=(2, lanes, n, n)) * scale]


@pytest.mark.full
@pytest.mark.parametrize(("n", "seed"), [(17, 0), (33, 1), pytest.param(64, 2, marks=pytest.mark.slow)])
def test_errors_are_those_of_f32(n: int, seed: int) -> None:
    """Errors count against sums of magnitudes, which bound those of f32 element by element."""
    a, b = drawn(seed, n)
    got = np.asarray(by_kernel(chain, a, b), np.float64)
    x, y = (np.asarray(m, np.float64) for m in (a, b))
    bound = abs(x) @ abs(y) @ abs(y)
    ours, theirs = (np.percentile(abs(z - x @ y @ y) / bound, 99.9) for z in (got, np.asarray(jax.vmap(chain)(a, b))))
    assert ours <= 2 * theirs


ODD = (1.0, 1.0), (np.inf, 1.0), (np.nan, 1.0), (3e38, 1e-20), (1.0 + 2.0**-20, 1e-30), (0.0, 0.0)
"""An element, and a factor of all the others, of a lane each; none is subnormal, as a CPU may flush those."""


@pytest.mark.full
def test_lanes_that_pieces_do_not_hold() -> None:
    """Lanes beside them stay as they are."""
    a, b = (jnp.clip(x, -4, 4) for x in drawn(3, 5, len(ODD)))
    for k, (value, scale) in enumerate(ODD):
        a = a.at[k].multiply(scale).at[k, 2, 3].set(value * (scale or 1.0))
    got, want = np.asarray(by_kernel(chained, a, b)), np.asarray(jax.vmap(chained)(a, b))
    assert np.array_equal(np.isnan(got), np.isnan(want))
    for one, other in zip(got, want, strict=True):
        finite = np.isfinite(other)
        np.testing.assert_array_equal(one[~finite], other[~finite])
        np.testing.assert_allclose(one[finite], other[finite], rtol=1e-6, atol=1e-6 * abs(other[finite]).max(initial=0))


@pytest.mark.full
def test_a_product_that_leaves_the_range_within_a_loop() -> None:
    a, b = jnp.eye(5)[None] * jnp.float32(1 + 2.0**-20), jnp.eye(5)[None] * jnp.float32(2.0**63)
    np.testing.assert_array_equal(by_kernel(chained, a, b), jax.vmap(chained)(a, b))


@pytest.mark.full
def test_a_last_product_beyond_the_range_is_infinite() -> None:
    a, b = jnp.full((2, 5, 5), 2.0**20, jnp.float32).at[1].multiply(-1), jnp.full((2, 5, 5), 2.0**60, jnp.float32)
    want = jax.vmap(chained)(a, b)
    assert np.array_equal(np.isinf(want), np.full((2, 5, 5), True))
    np.testing.assert_array_equal(by_kernel(chained, a, b), want)


@pytest.mark.full
def test_lanes_beside_nan_need_no_second_run() -> None:
    x = jnp.ones((16, 16)).at[2, 3].set(jnp.nan)
    with pieces.made_by("pieces") as conditions:
        found = pieces.pieces_of(x)
    assert all(map(bool, conditions))
    assert bool(jnp.isnan(found[2][2, 3]))


@pytest.mark.full
def test_pieces_hold_all_bits() -> None:
    bits = np.random.default_rng(4).integers(27 << 23, 253 << 23, (16, 16), np.int32)
    x = jnp.asarray(bits.view(np.float32))
    with pieces.made_by("pieces") as conditions:
        found = pieces.pieces_of(x)
    assert all(map(bool, conditions))
    assert np.array_equal(sum(np.asarray(y, np.float64) for y in found), np.asarray(x, np.float64))


@pytest.mark.parametrize(
    ("f", "precision"),
    [
        (lambda a, b: a @ b, "highest"),
        (lambda a, b: (a @ b) @ b, "default"),
        (lambda a, b: (a @ b).astype("bfloat16") @ b.astype("bfloat16"), "highest"),
        (lambda a, b: a[0] @ b @ b, "highest"),
        (lambda a, b: a, "highest"),
    ],
    ids=["one product", "less precision", "bf16", "a vector", "nothing"],
)
def test_what_has_no_pieces(f: Callable[..., Any], precision: str) -> None:
    with jax.default_matmul_precision(precision):
        lane = jax.make_jaxpr(f)(jnp.ones((17, 17)), jnp.ones((17, 17)))
    assert not [form for form in forms_of(lane) if form.by_pieces]


@pytest.mark.parametrize(("n", "products", "has"), [(16, 8, True), (16, 9, False), (9, 9, False), (17, 9, True)])
def test_many_products_of_short_tiles_have_no_pieces(n: int, products: int, has: bool) -> None:
    lane = jax.make_jaxpr(lambda a: functools.reduce(lambda b, _: b @ a, range(products), a))(jnp.ones((n, n)))
    assert any(form.by_pieces for form in forms_of(lane)) == has


@pytest.mark.gpu
@pytest.mark.parametrize("n", [12, 16, 24, 32, 48, 64])
def test_errors_on_a_gpu_are_those_of_f32(n: int) -> None:
    """The units cut off sums, and hold subnormal numbers."""
    a, b = drawn(n, n, 64)
    x, y = (np.asarray(m, np.float64) for m in (a, b))
    bound = abs(x) @ abs(y) @ abs(y)
    run: Any = jax.jit(grouped(lambda *xs: [chain(*xs)], [True] * 2))
    found = (run(a, b)[0], jax.vmap(chain)(a, b))
    ours, theirs = (np.percentile(abs(np.asarray(z) - x @ y @ y) / bound, 99.9) for z in found)
    assert ours <= 1.5 * theirs
    one, small = (jnp.broadcast_to(jnp.eye(n) * jnp.float32(k), (2, n, n)) for k in (1 + 2.0**-20, 2.0**-65))
    np.testing.assert_array_equal(run(one, small)[0], jax.vmap(chain)(one, small))
