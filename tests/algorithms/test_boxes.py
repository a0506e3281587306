"""`qd.boxes`: what is near, closest and hit first, against all boxes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.algorithms import walks
from qdtrace.algorithms.pair_walks import walk_pairs

QUERIES = 40
NOTHING = np.float32(np.inf)


def random_boxes(axes, count):
    """Corners in halves, so that sums are exact, and ties, equal boxes and points happen."""
    rng = np.random.default_rng(10 * axes + count)
    low = rng.integers(-8, 8, (count, axes)).astype(np.float32) / 2
    high = low + rng.integers(0, 3, (count, axes)).astype(np.float32)
    return low, high, rng.integers(-10, 11, (QUERIES, axes)).astype(np.float32) / 2


def distances(low, high, places):
    outside = np.maximum(np.maximum(low[None] - places[:, None], places[:, None] - high[None]), 0)
    return (outside**2).sum(-1)


def squares_from(p, low, high):
    """Returns a test: the squared distance from a box."""
    return lambda j: jnp.sum(jnp.maximum(jnp.maximum(low[j] - p, p - high[j]), 0) ** 2)


def entry(o, d, low, high):
    """Returns the parameter at which a ray enters a box, by the sides that it is not parallel to."""
    flat = d == 0
    inverse = 1 / jnp.where(flat, 1, d)
    one, other = (low - o) * inverse, (high - o) * inverse
    inside = (low <= o) & (o <= high)
    enters = jnp.max(jnp.where(flat, jnp.where(inside, -jnp.inf, jnp.inf), jnp.minimum(one, other)))
    leaves = jnp.min(jnp.where(flat, jnp.inf, jnp.maximum(one, other)))
    enters = jnp.maximum(enters, 0)
    return jnp.where(enters <= leaves, enters, jnp.inf)


def entries(o, d, low, high):
    """Returns a test: where a ray enters a box."""
    return lambda j: entry(o, d, low[j], high[j])


@qd.jit
def near(tree, places, radius):
    found = qd.zeros((places.shape[0], tree.count), jnp.int32)
    for i in qd.range(places.shape[0]):
        for j in tree.near(places[i], radius):
            found[i, j] += 1
    return found


@qd.jit
def closest(tree, low, high, places):
    item, square = qd.empty(places.shape[0], jnp.int32), qd.empty(places.shape[0])
    for i in qd.range(places.shape[0]):
        p = places[i]
        item[i], square[i] = tree.closest(p, squares_from(p, low, high))
    return item, square


@qd.jit
def hits(tree, low, high, origins, directions):
    item, parameter = qd.empty(origins.shape[0], jnp.int32), qd.empty(origins.shape[0])
    for i in qd.range(origins.shape[0]):
        o, d = origins[i], directions[i]
        item[i], parameter[i] = tree.ray(o, d, entries(o, d, low, high))
    return item, parameter


def smallest(values):
    """Returns the first of the smallest values in each row, -1 and infinity where there is none."""
    if not values.shape[1]:
        return np.full(len(values), -1), np.full(len(values), NOTHING)
    values = np.where(np.isnan(values), NOTHING, values)
    least = values.min(1)
    return np.where(least < NOTHING, values.argmin(1), -1), least


def agrees_with_all(low, high, places, tree=None):
    """Compares three searches with those of all boxes."""
    tree = qd.boxes(low, high) if tree is None else tree
    with np.errstate(invalid="ignore"):
        squares = distances(low, high, places)
    squares[:, ~(low <= high).all(1)] = np.inf
    squares[~np.isfinite(places).all(1)] = np.inf
    for radius in (0.0, 0.5, 2.0, np.inf, -1.0, np.nan):
        wanted = (squares <= radius**2) & np.isfinite(squares) & (radius >= 0)
        np.testing.assert_array_equal(near(tree, places, np.float32(radius)), wanted)
    for found, wanted in zip(closest(tree, low, high, places), smallest(squares), strict=True):
        np.testing.assert_array_equal(found, wanted)
    directions = np.random.default_rng(3).choice([-2.0, -1.0, 0.0, 1.0, 2.0], places.shape).astype(np.float32)
    directions[0] = 0
    values = jax.vmap(lambda o, d: jax.vmap(lambda a, b: entry(o, d, a, b))(low, high))(places, directions)
    values = np.where((low <= high).all(1) & np.isfinite(places).all(1)[:, None], values, np.inf)
    for found, wanted in zip(hits(tree, low, high, places, directions), smallest(values), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.full
@pytest.mark.parametrize(
    ("axes", "count"),
    [(3, 70), (1, 0), *(pytest.param(a, n, marks=pytest.mark.slow) for a in (1, 2, 3) for n in (1, 2, 5, 300))],
)
def test_random_boxes(axes, count):
    agrees_with_all(*random_boxes(axes, count))


@pytest.mark.full
def test_zeros_of_either_sign_are_equal():
    """A ray enters a box that it starts on at 0 or -0, and a test may give either."""
    x = np.zeros((20, 2), np.float32)
    x[:10, 0] = 1.0

    @qd.jit
    def search(x, places):
        tree, out = qd.boxes(x, x), qd.empty((places.shape[0], 2), jnp.int32)
        for i in qd.range(places.shape[0]):
            p = places[i]
            out[i, 0], _ = tree.ray(p, jnp.array([-1.0, -2.0]), lambda j: jnp.where(x[j, 0] == 0, (j % 2) * -0.0, 1.0))
            out[i, 1], _ = tree.closest(p, lambda j: jnp.where(x[j, 0] == 0, (j % 2) * -0.0, 1.0))
        return out

    np.testing.assert_array_equal(search(x, np.zeros((3, 2), np.float32)), np.full((3, 2), 10))


@pytest.mark.full
def test_corners_of_meshes_are_looked_up():
    """Tests may load what an index in memory says; one that is outside ends the call."""
    corners, low, high, places = (*np.random.default_rng(4).permutation(200).reshape(1, 100, 2), *random_boxes(3, 100))
    x = np.zeros((200, 3), np.float32)
    x[corners[:, 0]], x[corners[:, 1]] = low, high

    @qd.jit
    def search(tree, x, corners, places):
        item, square = qd.empty(places.shape[0], jnp.int32), qd.empty(places.shape[0])
        for i in qd.range(places.shape[0]):
            p = places[i]

            def test(j, p=p):
                return jnp.sum(jnp.maximum(jnp.maximum(x[corners[j, 0]] - p, p - x[corners[j, 1]]), 0) ** 2)

            item[i], square[i] = tree.closest(p, test)
        return item, square

    tree = qd.boxes(low, high)
    for found, wanted in zip(search(tree, x, corners, places), closest(tree, low, high, places), strict=True):
        np.testing.assert_array_equal(found, wanted)
    corners[np.flatnonzero((low <= high).all(1))[0], 1] = 200
    with pytest.raises(qd.BoundsError, match="index 200 is out of bounds for axis 0 of `x`"):
        jax.block_until_ready(search(tree, x, corners, np.concatenate([low, high])))


@pytest.mark.full
@pytest.mark.parametrize("wide", [False, True])
def test_the_walk_of_this_processor(monkeypatch, wide):
    """Vectors with masks walk through pairs of boxes, other processors through blocks."""
    if jax.default_backend() != "cpu":
        pytest.skip("a GPU walks through pairs")
    monkeypatch.setattr(walks, "walks_in_lanes", lambda: wide)
    monkeypatch.setattr(walks, "walk_blocks" if wide else "walk_pairs", lambda *_: jnp.int32(-1))
    low, high, places = random_boxes(3, 61)
    agrees_with_all(low, high, places)


@pytest.mark.full
def test_the_walk_of_other_machines(monkeypatch):
    """On a GPU threads walk through pairs of boxes."""

    def through_pairs(tree, count, is_any, bound, test):
        assert count <= tree.slots
        return walk_pairs(tree, is_any, bound, test, 4)

    monkeypatch.setattr(walks, "walk_blocks", through_pairs)
    low, high, places = random_boxes(3, 61)
    agrees_with_all(low, high, places)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_floats(dtype):
    low, high, places = (a.astype(dtype) for a in random_boxes(2, 90))
    with jax.enable_x64(dtype == np.float64):

        @qd.jit
        def search(low, high, places):
            tree, out = qd.boxes(low, high), qd.empty(places.shape[0], jnp.int32)
            for i in qd.range(places.shape[0]):
                p = places[i]
                out[i], _ = tree.closest(p, squares_from(p, low, high))
            return out

        assert qd.boxes(low, high).levels.blocks.dtype == dtype
        found = search(low, high, places)
    np.testing.assert_array_equal(found, smallest(distances(low, high, places))[0])


@pytest.mark.full
@pytest.mark.parametrize("axes", [1, 3])
def test_trees_of_several_levels(axes):
    """4,200 boxes are 525 leaves: more than two levels of blocks hold."""
    low, high, places = random_boxes(axes, 4200)
    for found, wanted in zip(
        closest(qd.boxes(low, high), low, high, places[:9]), smallest(distances(low, high, places[:9])), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_what_is_empty_infinite_or_equal():
    low, high, places = random_boxes(2, 30)
    low[3], high[4, 1] = np.nan, np.nan
    low[5], high[5] = 1.0, 0.0
    low[6], high[7] = -np.inf, np.inf
    low[10:20], high[10:20] = low[10], high[10]
    places[2, 0], places[3] = np.nan, np.inf
    agrees_with_all(low, high, places)
    low[:], high[:] = np.nan, np.nan
    agrees_with_all(low, high, places)


@pytest.mark.slow
def test_refit():
    low, high, places = random_boxes(3, 50)
    moved = np.random.default_rng(1).integers(-3, 3, low.shape).astype(np.float32)
    tree = jax.jit(lambda tree: tree.refit(low + moved, high + moved))(qd.boxes(low, high))
    agrees_with_all(low + moved, high + moved, places, tree)


@pytest.mark.full
def test_jumps_leave_the_whole_loop():
    @qd.jit
    def some(low, high, places):
        tree, count = qd.boxes(low, high), qd.zeros(places.shape[0], jnp.int32)
        for i in qd.range(places.shape[0]):
            for j in tree.near(places[i], 2.0):
                qd.continue_if(j % 2 == 0)
                count[i] += 1
                qd.break_if(count[i] == 3)
        return count

    low, high, places = random_boxes(2, 30)
    all_odd = (distances(low, high, places) <= 4)[:, 1::2].sum(1)
    assert (all_odd > 3).any()
    np.testing.assert_array_equal(some(low, high, places), np.minimum(all_odd, 3))


@pytest.mark.slow
def test_derivatives_of_what_is_found():
    rng = np.random.default_rng(5)
    x, places = (rng.normal(size=(n, 2)).astype(np.float32) for n in (40, 9))

    @qd.jit
    def energy(x, places):
        tree, total = qd.boxes(x, x), qd.zeros(())
        for i in qd.range(places.shape[0]):
            p = places[i]
            total[()] += tree.closest(p, squares_from(p, x, x))[1]
            for j in tree.near(p, 0.8):
                total[()] += jnp.sum((x[j] - p) ** 2) ** 2
        return total

    def by_hand(x, places):
        squares = ((x[None] - places[:, None]) ** 2).sum(-1)
        return jnp.sum(squares.min(1)) + jnp.sum(jnp.where(squares <= np.float32(0.8) ** 2, squares**2, 0))

    for found, wanted in zip(*(jax.grad(f, (0, 1))(x, places) for f in (energy, by_hand)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_worlds_and_lanes():
    low, high, places = random_boxes(2, 20)

    @qd.jit
    def search(low, high, places):
        return closest(qd.boxes(low, high), low, high, places)

    worlds = [jnp.stack([a, a[::-1] * 2]) for a in (low, high, places)]
    item, square = jax.vmap(search)(*worlds)
    for world in range(2):
        wanted = search(*(a[world] for a in worlds))
        np.testing.assert_array_equal(item[world], wanted[0])
        np.testing.assert_array_equal(square[world], wanted[1])
    tree = qd.boxes(low, high)
    lanes = qd.vmap(lambda p: tree.closest(p, squares_from(p, jnp.asarray(low), jnp.asarray(high))))
    np.testing.assert_array_equal(lanes(places)[0], closest(tree, low, high, places)[0])


@pytest.mark.parametrize(
    ("low", "high", "kind", "text"),
    [
        (np.zeros(3, np.float32), np.zeros(3, np.float32), qd.TraceValueError, r"\(n, 1\), \(n, 2\) or \(n, 3\), got"),
        (np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32), qd.TraceValueError, r"got \(3, 4\)"),
        (np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32), qd.TraceTypeError, "corners of floats, got int32"),
        (np.zeros((3, 2), np.float32), np.zeros((2, 2), np.float32), qd.TraceValueError, r"\(3, 2\) and \(2, 2\)"),
    ],
)
def test_what_a_tree_needs(low, high, kind, text):
    with pytest.raises(kind, match=text):
        qd.boxes(low, high)


def carries(tree, x):
    for i in qd.range(3):
        count = 0
        for _ in tree.near(x[i], 1.0):
            count = count + 1
        x[i, 0] = count


def leaves_early(tree, x):
    for i in qd.range(3):
        for _ in tree.near(x[i], 1.0):
            break


def in_a_loop(search):
    def function(tree, x):
        for i in qd.range(3):
            search(tree, x[i])

    return function


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (carries, "would carry a value"),
        (leaves_early, "must run to its end"),
        (lambda tree, x: list(tree.near(x[0], 1.0)), "boxes.near needs to be in a loop"),
        (lambda tree, x: tree.closest(x[0], lambda _: 0.0), "boxes.closest needs to be in a loop"),
        (lambda tree, x: tree.ray(x[0], x[0], lambda _: 0.0), "boxes.ray needs to be in a loop"),
        (in_a_loop(lambda tree, p: tree.near(p[:1], 1.0)), r"place of shape \(2,\), got \(1,\)"),
        (in_a_loop(lambda tree, p: tree.near(p, p)), "needs a number as radius"),
        (in_a_loop(lambda tree, p: tree.closest(p, 3)), "needs a function of the number of an item"),
        (in_a_loop(lambda tree, p: tree.closest(p, lambda _: p)), r"gives a number, got shape \(2,\)"),
        (in_a_loop(lambda tree, p: tree.closest(p, lambda j: j)), "test that gives a float"),
        (in_a_loop(lambda tree, p: tree.ray(p, p[:1], lambda _: 0.0)), r"direction of shape \(2,\), got \(1,\)"),
        (lambda tree, x: tree.refit(x[:2], x[:2]), r"boxes.refit needs corners of shape \(3, 2\), got \(2, 2\)"),
    ],
)
def test_refusals(function, text):
    @qd.jit
    def wrong(x):
        function(qd.boxes(x, x), x)
        return x

    with pytest.raises((qd.TraceValueError, qd.TraceTypeError), match=text):
        wrong(np.zeros((3, 2), np.float32))


@pytest.mark.full
def test_a_ray_that_hits_nothing_has_no_derivative():
    """Also where that of the test is not finite: the root of a negative number, of a ball that is missed."""
    balls = jnp.array([[0.0, 0.0, 5.0], [9.0, 9.0, 9.0]])

    @qd.jit
    def depths(origins):
        tree, out = qd.boxes(balls - 1.0, balls + 1.0), qd.zeros(origins.shape[0], origins.dtype)
        for i in qd.range(origins.shape[0]):
            start = origins[i]

            def hit(j, start=start):
                to = balls[j] - start
                square = 1.0 - to[0] ** 2 - to[1] ** 2
                return jnp.where(square >= 0, to[2] - jnp.sqrt(square), jnp.inf)

            j, t = tree.ray(start, jnp.array([0.0, 0.0, 1.0]), hit)
            with qd.when(j >= 0):
                out[i] = t
        return out

    slopes = jax.grad(lambda o: depths(o).sum())(jnp.array([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.6, 0.0, 0.0]]))
    np.testing.assert_allclose(slopes, [[0, 0, -1], [0, 0, 0], [0.75, 0, -1]], atol=1e-6)
