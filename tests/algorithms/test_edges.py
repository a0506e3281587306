"""Keys and positions of every dtype, lengths of 0, values that are no numbers: what tests of one function leave out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

INTEGERS = [f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DRAW = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _wide() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", *FLOATS])
def test_keys_of_every_dtype_are_counted_and_scanned(dtype: str) -> None:
    keys = jnp.sort(jnp.asarray(DRAW.integers(0, 5, 60)).astype(dtype))
    wanted, counts = np.unique(np.asarray(keys), return_counts=True)
    found, sums, runs = jax.jit(lambda keys: qd.reduce_by_key(keys, jnp.ones(60, jnp.int32), size=6))(keys)
    assert found.dtype == dtype
    assert int(runs) == len(wanted)
    np.testing.assert_array_equal(found[: len(wanted)], wanted)
    np.testing.assert_array_equal(sums[: len(wanted)], counts)
    np.testing.assert_array_equal(qd.scan(jnp.maximum, keys[::-1]), jnp.full(60, keys[-1]))
    rows = jax.vmap(lambda keys: qd.reduce_by_key(keys, keys, jnp.maximum, size=6)[1])(jnp.stack([keys, keys]))
    np.testing.assert_array_equal(rows, jnp.stack([found, found]))


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_segments_of_every_integer(dtype: str) -> None:
    """Also more numbers of keys than the dtype has, keys at its ends, and rows."""
    most = np.iinfo(dtype).max
    keys = np.sort(DRAW.integers(0, 100, 50)).astype(dtype)
    for n in (128, 300):
        np.testing.assert_array_equal(qd.segments(keys, n), np.searchsorted(keys, np.arange(n + 1)))
    both = jax.jit(jax.vmap(lambda keys: qd.segments(keys, 100)))(np.stack([keys, keys // 2]))
    np.testing.assert_array_equal(both[1], np.searchsorted(keys // 2, np.arange(101)))
    for bad in ([0, most], [5, 4], [0, np.iinfo(dtype).min] if np.iinfo(dtype).min else [101, 101]):
        with pytest.raises(qd.CheckError, match=r"qd\.segments needs"):
            jax.block_until_ready(qd.segments(np.array(bad, dtype), 100))


@qd.jit
def near(x: Any, low: Any, radius: Any) -> Any:
    grid, tree = qd.grid(x, 0.5), qd.boxes(low, x)
    count = qd.zeros((x.shape[0], 2), jnp.int32)
    for i in qd.range(x.shape[0]):
        for _ in grid.near(x[i], radius):
            count[i, 0] += 1
        for _ in tree.near(x[i], radius):
            count[i, 1] += 1
    return count


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", FLOATS)
def test_positions_of_every_dtype(dtype: str) -> None:
    """In halves, so that sums are exact; NaN, infinities and boxes whose low corner is above are near nothing."""
    x = jnp.asarray(DRAW.integers(-6, 7, (30, 2)) / 2).astype(dtype)
    x = x.at[3].set(jnp.nan).at[5, 1].set(jnp.inf).at[6].set(-jnp.inf)
    low = x.at[7].add(1)
    numbers = np.asarray(x, np.float64)
    is_place = np.isfinite(numbers).all(1)
    with np.errstate(invalid="ignore"):
        squares = ((numbers[:, None] - numbers[None]) ** 2).sum(-1)
    for radius in (0.0, 0.5, 2.0, 100.0, np.inf, -1.0, np.nan):
        wanted = (squares <= radius**2) & (radius >= 0) & is_place & is_place[:, None]
        found = near(x, low, jnp.asarray(radius, dtype))
        np.testing.assert_array_equal(found[:, 0], wanted.sum(1))
        np.testing.assert_array_equal(found[:, 1], wanted[:, np.arange(30) != 7].sum(1))


@pytest.mark.full
def test_places_among_nothing() -> None:
    places = jnp.ones((4, 3))

    @qd.jit
    def search(x: Any, places: Any) -> Any:
        grid, tree = qd.grid(x, 1.0), qd.boxes(x, x).refit(x, x)
        count, items, found = qd.zeros(4, jnp.int32), qd.empty((4, 2), jnp.int32), qd.empty((4, 2))
        for i in qd.range(places.shape[0]):
            p = places[i]
            for _ in grid.near(p, jnp.inf):
                count[i] += 1
            for _ in tree.near(p, jnp.inf):
                count[i] += 1
            items[i, 0], found[i, 0] = tree.closest(p, lambda _: jnp.float64(0.0))
            items[i, 1], found[i, 1] = tree.ray(p, p, lambda _: jnp.float64(0.0))
        return count, items, found

    for run in (search, jax.jit(lambda x, places: jax.vmap(search, (None, 0))(x, places[None]))):
        count, items, found = run(jnp.zeros((0, 3)), places)
        assert not count.any()
        assert (items == -1).all()
        assert (found == jnp.inf).all()
    assert search(jnp.zeros((2, 3)), places[:0])[0].tolist() == [0] * 4


@pytest.mark.full
def test_hits_have_derivatives_in_every_world() -> None:
    """The parameter of a ray is that of the ball that it hits; `jax.vmap` has a tree a world."""
    balls = jnp.asarray(DRAW.normal(size=(3, 9, 3)))
    origins = jnp.asarray(DRAW.normal(size=(3, 5, 3))) * 0.1 - jnp.array([0.0, 0.0, 9.0])

    def depth(ball: Any, start: Any) -> Any:
        to = ball - start
        square = 0.5 - to[0] ** 2 - to[1] ** 2
        return jnp.where(square >= 0, to[2] - jnp.sqrt(jnp.where(square >= 0, square, 1)), jnp.inf)

    @qd.jit
    def depths(balls: Any, origins: Any) -> Any:
        tree, total = qd.boxes(balls - 1.0, balls + 1.0), qd.zeros((), balls.dtype)
        for i in qd.range(origins.shape[0]):
            start = origins[i]
            j, t = tree.ray(start, jnp.array([0.0, 0.0, 1.0]), lambda j: depth(balls[j], start))  # noqa: B023 - traced here
            with qd.when(j >= 0):
                total[()] += t
        return total

    def by_all(balls: Any, origins: Any) -> Any:
        found = jax.vmap(lambda o: jax.vmap(lambda b: depth(b, o))(balls).min())(origins)
        return jnp.sum(jnp.where(found < jnp.inf, found, 0))

    got, want = (jax.jit(jax.vmap(jax.grad(f, (0, 1))))(balls, origins) for f in (depths, by_all))
    assert float(jnp.abs(want[0]).max()) > 0.5
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
