"""`qd.grid`: the points near a place, against all pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

BOUND = {1: 8.0, 2: 3.0, 3: 1.5}


def points(axes, count=70):
    return np.random.default_rng(axes).uniform(-BOUND[axes], BOUND[axes], (count, axes)).astype(np.float32)


def distances(x):
    return np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))


@qd.jit
def counts(x, radius):
    grid, count = qd.grid(x, 0.7), qd.zeros(x.shape[0], jnp.int32)
    for i in qd.range(x.shape[0]):
        for _ in grid.near(x[i], radius):
            count[i] += 1
    return count


@qd.jit
def pairs(x, radius):
    grid, out = qd.grid(x, 0.7), qd.append(1000, like=(0, 0))
    for i in qd.range(x.shape[0]):
        for j in grid.near(x[i], radius):
            with qd.when(i < j):
                out.push((i, j))
    return out


@pytest.mark.full
@pytest.mark.parametrize("axes", [2, 3, pytest.param(1, marks=pytest.mark.slow)])
def test_all_that_is_near_is_found_once(axes):
    x = points(axes)
    for radius in (0.5, 0.7, 2.0, 1e3, np.inf):
        np.testing.assert_array_equal(counts(x, radius), (distances(x) <= radius).sum(1))
    assert counts(x, 0.0).tolist() == [1] * 70
    assert not counts(x, -1.0).any()
    assert not counts(x, np.nan).any()
    far = x + np.float32(1e5)
    np.testing.assert_array_equal(counts(far, 0.5), (distances(far) <= 0.5).sum(1))


@pytest.mark.full
def test_pairs_are_pushed():
    x = points(2)
    out = pairs(x, 0.5)
    found = np.stack(out.values, 1)[: int(out.count)]
    assert sorted(found.tolist()) == np.argwhere(np.triu(distances(x) <= 0.5, 1)).tolist()
    assert found[:, 0].tolist() == sorted(found[:, 0].tolist())


@pytest.mark.full
def test_what_is_not_finite_is_near_nothing():
    x = points(2)
    x[3], x[5], x[6], x[7, 1] = np.nan, np.inf, 1e30, -np.inf
    finite = np.isfinite(x).all(1)
    for radius in (0.6, 5.0):
        with np.errstate(all="ignore"):
            wanted = ((distances(x) <= radius) & finite).sum(1) * finite
        np.testing.assert_array_equal(counts(x, radius), wanted)
    assert counts(np.zeros((0, 2), np.float32), 1.0).shape == (0,)
    assert counts(np.zeros((1, 2), np.float32), 1.0).tolist() == [1]


@pytest.mark.full
def test_jumps_leave_the_whole_loop():
    @qd.jit
    def some(x, radius):
        grid, count = qd.grid(x, 0.7), qd.zeros(x.shape[0], jnp.int32)
        for i in qd.range(x.shape[0]):
            for j in grid.near(x[i], radius):
                qd.continue_if(j % 2 == 0)
                count[i] += 1
                qd.break_if(count[i] == 3)
        return count

    x = points(2)
    wanted = np.minimum((distances(x) <= 1.0)[:, 1::2].sum(1), 3)
    assert (wanted == 3).sum() > 20
    assert (wanted < 3).sum() > 5
    np.testing.assert_array_equal(some(x, 1.0), wanted)


@pytest.mark.full
def test_derivatives_and_lanes():
    def energy(x, radius):
        @qd.jit
        def summed(x):
            grid, total = qd.grid(x, 0.7), qd.zeros(())
            for i in qd.range(x.shape[0]):
                for j in grid.near(x[i], radius):
                    with qd.when(i != j):
                        total[()] += jnp.sum((x[i] - x[j]) ** 2) ** 2
            return total

        return summed(x)

    x = points(2, 40)
    near = (distances(x) <= 0.9) & ~np.eye(40, dtype=bool)

    def by_hand(x):
        return jnp.sum(jnp.where(near, ((x[:, None] - x[None]) ** 2).sum(-1) ** 2, 0))

    np.testing.assert_allclose(jax.grad(energy)(jnp.asarray(x), 0.9), jax.grad(by_hand)(x), rtol=1e-4, atol=1e-5)
    both = jax.vmap(counts, (0, None))(jnp.stack([x, 2 * x]), 0.9)
    np.testing.assert_array_equal(both, np.stack([counts(x, 0.9), counts(2 * x, 0.9)]))


@pytest.mark.full
def test_a_grid_is_a_tree():
    x = points(2)
    grid = qd.grid(x, 1.0)

    @qd.jit
    def nearest(grid, x, place):
        best = qd.full((), jnp.inf)
        for _ in qd.range(1):
            for j in grid.near(place[...], 2.0):
                best.at[()].min(jnp.sum((x[j] - place[...]) ** 2))
        return best

    def near_lane(place):
        count = qd.local(0)
        for _ in grid.near(place, 0.9):
            count += 1
        return count.value

    np.testing.assert_allclose(nearest(grid, x, x[0] + 0.01), ((x - x[0] - 0.01) ** 2).sum(1).min(), rtol=1e-4)
    np.testing.assert_array_equal(qd.vmap(near_lane)(x), counts(x, 0.9))


@pytest.mark.parametrize(
    ("positions", "cell", "kind", "text"),
    [
        (np.zeros(3, np.float32), 1.0, qd.TraceValueError, r"shape \(n, 1\), \(n, 2\) or \(n, 3\), got \(3,\)"),
        (np.zeros((3, 4), np.float32), 1.0, qd.TraceValueError, r"got \(3, 4\)"),
        (np.zeros((3, 2), np.int32), 1.0, qd.TraceTypeError, "positions of floats, got int32"),
        (points(2), 0.0, qd.TraceValueError, "a positive side of a cell, got 0.0"),
        (points(2), np.nan, qd.TraceValueError, "got nan"),
        (points(2), -1, qd.TraceValueError, "got -1"),
        (points(2), np.inf, qd.TraceValueError, "got inf"),
        (points(2), 10**400, qd.TraceValueError, "a positive side of a cell, got 1000"),
        (points(2), jnp.float32(1), qd.TraceTypeError, "as a Python number"),
        (points(2), True, qd.TraceTypeError, "as a Python number, got bool"),
        (points(2), None, qd.TraceTypeError, "as a Python number, got NoneType"),
    ],
)
def test_what_a_grid_needs(positions, cell, kind, text):
    with pytest.raises(kind, match=text):
        qd.grid(positions, cell)


def carries(grid, x):
    for i in qd.range(3):
        count = 0
        for _ in grid.near(x[i], 1.0):
            count = count + 1
        x[i, 0] = count


def leaves_early(grid, x):
    for i in qd.range(3):
        for _ in grid.near(x[i], 1.0):
            break


def between_loops(grid, x):
    for _ in grid.near(x[0], 1.0):
        pass


def short_place(grid, x):
    for i in qd.range(3):
        for _ in grid.near(x[i, :1], 1.0):
            pass


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (carries, "would carry a value"),
        (leaves_early, "must run to its end"),
        (between_loops, "grid.near needs to be in a loop"),
        (short_place, r"a place of shape \(2,\), got \(1,\)"),
    ],
)
def test_refusals(function, text):
    @qd.jit
    def wrong(x):
        function(qd.grid(x, 1.0), x)
        return x

    with pytest.raises(qd.TraceValueError, match=text):
        wrong(points(2))
