"""`qd.append`: places in the order of iterations, counts, overflow, derivatives, lanes, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

X = np.random.default_rng(0).normal(size=40).astype(np.float32)


@qd.jit
def positive(x):
    out = qd.append(64, like=(0.0, 0))
    for i in qd.range(x.shape[0]):
        with qd.when(x[i] > 0):
            out.push((x[i] * x[i], i))
    return out


@qd.jit
def close_pairs(x):
    out = qd.append(200, like={"pair": np.zeros(2, np.int32), "distance": 0.0})
    for i in qd.range(x.shape[0]):
        qd.continue_if(x[i] < -1)
        for j in qd.range(i + 1, x.shape[0]):
            qd.break_if(x[j] > 2)
            with qd.when(jnp.abs(x[i] - x[j]) < 0.2):
                out.push({"pair": jnp.stack([i, j]), "distance": (x[i] - x[j]) ** 2})
    return out


def pairs_by_hand(x):
    found = []
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            if x[i] < -1 or x[j] > 2:
                break
            if abs(x[i] - x[j]) < np.float32(0.2):
                found.append([i, j])
    return found


@pytest.mark.full
def test_elements_are_in_the_order_of_iterations():
    out = positive(X)
    count = int(out.count)
    assert count == (X > 0).sum()
    assert out.values[1][:count].tolist() == np.flatnonzero(X > 0).tolist()
    np.testing.assert_allclose(out.values[0][:count], X[X > 0] ** 2, rtol=1e-6)
    assert not out.values[0][count:].any()
    assert not out.values[1][count:].any()
    assert (out.capacity, out.count.dtype) == (64, jnp.int32)


@pytest.mark.full
def test_inner_loops_push_several_times():
    out = close_pairs(X)
    wanted = pairs_by_hand(X)
    assert out.values["pair"][: int(out.count)].tolist() == wanted
    assert len(wanted) > 20


@pytest.mark.full
def test_the_place_is_a_value_and_several_outputs_count_apart():
    @qd.jit
    def split(x):
        low, high = qd.append(40, like=0), qd.append(40, like=0)
        place = qd.zeros(x.shape, jnp.int32)
        for i in qd.range(x.shape[0]):
            with qd.when(x[i] > 0):
                place[i] = high.push(i)
            with qd.otherwise():
                place[i] = -1 - low.push(i)
        return low, high, place

    low, high, place = split(X)
    assert low.values[: int(low.count)].tolist() == np.flatnonzero(X <= 0).tolist()
    assert high.values[: int(high.count)].tolist() == np.flatnonzero(X > 0).tolist()
    wanted = np.where(X > 0, np.cumsum(X > 0) - 1, -np.cumsum(X <= 0))
    np.testing.assert_array_equal(place, wanted)


@pytest.mark.full
def test_loops_behind_each_other_and_over_a_count():
    @qd.jit
    def chain(x):
        found, large = qd.append(40, like=0), qd.append(60, like=0.0)
        for i in qd.range(x.shape[0]):
            with qd.when(x[i] > 0):
                found.push(i)
        for k in qd.range(found.count):
            with qd.when(x[found.values[k]] > 1):
                large.push(x[found.values[k]])
        for i in qd.range(9, 0, -4):
            large.push(-1.0 * i)
        for i, j in qd.ndrange(2, (3, 5)):
            large.push(10.0 * i + j)
        large.push(7.0)
        return large

    out = chain(X)
    wanted = [*X[X > 1], -9, -5, -1, 3, 4, 13, 14, 7]
    np.testing.assert_array_equal(out.values[: int(out.count)], np.float32(wanted))
    assert "contract" not in chain.lower(X).as_text("llvm")  # floats decide, so both tasks round alike


@pytest.mark.full
def test_a_serial_loop_pushes_what_it_reads_later():
    @qd.jit
    def tree(most):
        found, head = qd.append(20, like=0), qd.zeros((), jnp.int32)
        found.push(0)
        for _ in qd.while_(lambda: head[()] < found.count):
            for _ in qd.range(1, serial=True):
                node = found.values[head[()]]
                head[()] += 1
                with qd.when(2 * node + 2 <= most):
                    found.push(2 * node + 1)
                    found.push(2 * node + 2)
        return found

    out = tree(14)
    assert out.values[: int(out.count)].tolist() == list(range(15))


@pytest.mark.full
def test_loops_under_conditions_and_in_a_while():
    @qd.jit
    def steps(x, wanted):
        out, step = qd.append(200, like=0.0), qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: step[()] < 3):
            for i in qd.range(x.shape[0]):
                with qd.when(x[i] > 1):
                    out.push(x[i] + step[()])
            step[()] += 1
        with qd.when(wanted):
            for i in qd.range(2):
                out.push(-1.0 * i)
        return out

    large = X[X > 1]
    for wanted, rest in ((False, []), (True, [0, -1])):
        out = steps(X, wanted)
        np.testing.assert_allclose(out.values[: int(out.count)], [*large, *(large + 1), *(large + 2), *rest], rtol=1e-6)


@pytest.mark.full
def test_ties_are_decided_alike_when_counted_and_stored():
    x = np.round(np.random.default_rng(1).uniform(0, 1, (2, 20_000)), 1).astype(np.float32)

    @qd.jit
    def inside(x, y):
        out = qd.append(x.shape[0], like=(0, 0.0))
        for i in qd.range(x.shape[0]):
            square = x[i] * x[i]
            with qd.when(square + y[i] * y[i] > 0.5):
                out.push((i, square))
        return out

    out = inside(*x)
    wanted = np.flatnonzero(x[0] * x[0] + x[1] * x[1] > np.float32(0.5))
    assert out.values[0][: int(out.count)].tolist() == wanted.tolist()


@pytest.mark.parametrize("like", [True, 1j, np.int8(1), jnp.bfloat16(1), np.ones((2, 3)), {"a": 1, "b": [1.0, True]}])
def test_elements_are_what_like_is(like):
    @qd.jit
    def odd():
        out = qd.append(6, like=like)
        for i in qd.range(6):
            with qd.when(i % 2 == 1):
                out.push(like)
        return out

    out = odd()
    assert int(out.count) == 3
    for values, one in zip(jax.tree.leaves(out.values), jax.tree.leaves(like), strict=True):
        want = np.zeros((6, *np.shape(one)), jnp.asarray(one).dtype)
        want[:3] = one
        np.testing.assert_array_equal(values, want)
        assert values.dtype == want.dtype


def test_loops_without_iterations_push_nothing():
    @qd.jit
    def nothing(x):
        out = qd.append(1, like=0.0)
        for i in qd.range(x.shape[0]):
            out.push(x[i])
        return out

    assert int(nothing(np.zeros(0, np.float32)).count) == 0
    assert int(nothing(np.ones(1, np.float32)).count) == 1


@pytest.mark.parametrize("options", [{}, {"debug": True}, {"bounds": "unchecked"}, {"bounds": "clip"}])
def test_overflow_tells_how_many_there_are(options):
    @qd.jit(options=options)
    def small(x):
        out = qd.append(5, like=0.0)
        for i in qd.range(x.shape[0]):
            with qd.when(x[i] > 0):
                out.push(x[i])
        return out

    count = (X > 0).sum()
    with pytest.raises(qd.CheckError, match=rf"than `out` = qd.append\(5, ...\) has room for(.|\n)*{count} <= 5"):
        qd.block_until_ready(small(X))
    assert int(small(X[:6]).count) == (X[:6] > 0).sum() <= 5


def test_overflow_of_a_serial_loop():
    @qd.jit
    def small(n):
        out = qd.append(5, like=0)
        for i in qd.range(n, serial=True):
            out.push(i)
        return out

    assert small(5).values.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(qd.CheckError, match="more elements are pushed than `out`"):
        qd.block_until_ready(small(6))


@pytest.mark.full
def test_derivatives_go_with_the_elements():
    def loss(x):
        return (close_pairs(x).values["distance"] ** 2).sum()

    def by_hand(x):
        i, j = np.array(pairs_by_hand(X)).T
        return ((x[i] - x[j]) ** 4).sum()

    x, v = jnp.asarray(X), jnp.ones(40)
    np.testing.assert_allclose(jax.grad(loss)(x), jax.grad(by_hand)(x), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(jax.jvp(loss, (x,), (x * v,))[1], jax.jvp(by_hand, (x,), (x * v,))[1], rtol=1e-4)


@pytest.mark.full
def test_lanes_have_counts_of_their_own():
    rows = jnp.stack([X, -X, 2 * X])
    out = jax.vmap(close_pairs)(rows)
    slopes = jax.vmap(jax.grad(lambda x: positive(x).values[0].sum()))(rows)
    for k in range(3):
        one = close_pairs(rows[k])
        assert int(out.count[k]) == int(one.count)
        np.testing.assert_array_equal(out.values["pair"][k], one.values["pair"])
        np.testing.assert_allclose(slopes[k], np.where(rows[k] > 0, 2 * rows[k], 0), rtol=1e-6)
    with pytest.raises(Exception, match="more elements are pushed than `out`"):
        qd.block_until_ready(jax.vmap(close_pairs)(0.01 * rows))


def push_in_cond(x, out):
    for i in qd.range(4):
        lax.cond(x[i] > 0, lambda v: out.push(v), lambda v: 0, x[i])


def count_in_loop(x, out):
    for i in qd.range(4):
        with qd.when(out.count < 2):
            out.push(x[i])


def place_decides(x, out):
    for i in qd.range(4):
        with qd.when(out.push(x[i]) < 2):
            out.push(x[i])


def own_store_decides(x, out):
    for i in qd.range(4):
        x[i] = x[i] + 1
        with qd.when(x[i] < 2):
            out.push(x[i])


def atomic_decides(x, out):
    seen = qd.zeros((), jnp.int32)
    for i in qd.range(4):
        with qd.when(qd.atomic_add(seen, (), 1) < 2):
            out.push(x[i])


def traced_bound(x, out):
    for i in qd.range(jnp.int32(x[0])):
        out.push(x[i])


def lane_pushes(x, out):
    return qd.vmap(lambda v: out.push(v))(x[...])


def other_tree(x, out):
    out.push((x[0], 1))


def other_shape(x, out):
    out.push(x[0:3])


def other_dtype(x, out):
    out.push(1j)


REFUSED = {
    push_in_cond: (qd.UnsupportedError, "a push cannot stand in `cond`"),
    count_in_loop: (qd.UnsupportedError, "cannot read the count"),
    place_decides: (qd.UnsupportedError, "depends on the place that a push gives"),
    own_store_decides: (qd.UnsupportedError, "depends on a buffer that the loop changes"),
    atomic_decides: (qd.UnsupportedError, "depends on the old value of an atomic"),
    traced_bound: (qd.UnsupportedError, "needs constant bounds, or the count"),
    lane_pushes: (qd.TraceValueError, "got one of a function around it"),
    other_tree: (qd.TraceTypeError, "needs a value of the tree that `like` has"),
    other_shape: (qd.TraceTypeError, r"a push needs a value of shape \(\), got \(3,\)"),
    other_dtype: (qd.TraceTypeError, "a push of complex64 into float32 would lose information"),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_refusals(function):
    kind, text = REFUSED[function]

    @qd.jit
    def wrong(x):
        out = qd.append(8, like=0.0)
        function(x, out)
        return out

    with pytest.raises(kind, match=text) as caught:
        wrong(X)
    assert caught.value.loc is not None
    assert caught.value.loc.function.startswith(function.__name__)


@pytest.mark.parametrize(
    ("capacity", "like", "kind", "text"),
    [
        (0, 0.0, qd.TraceValueError, "a capacity from 1 to 2147483647, got 0"),
        (-1, 0.0, qd.TraceValueError, "got -1"),
        (2**31, 0.0, qd.TraceValueError, "got 2147483648"),
        (2.5, 0.0, qd.TraceTypeError, "a static capacity, got float"),
        (4, None, qd.TraceTypeError, "got an empty tree"),
        (4, "text", qd.TraceTypeError, "needs a number or an array, got str"),
    ],
)
def test_what_append_needs(capacity, like, kind, text):
    with pytest.raises(kind, match=text):
        qd.jit(lambda: qd.append(capacity, like=like))()


def test_where_append_may_stand():
    @qd.jit
    def in_loop(x):
        for _ in qd.range(3):
            qd.append(3, like=0)
        return x

    with pytest.raises(qd.TraceValueError, match="outside of loops"):
        in_loop(X)
    with pytest.raises(qd.TraceValueError, match="used outside of a function"):
        qd.append(3, like=0)
    out = positive(X)
    with pytest.raises(qd.TraceTypeError, match="made in this function"):
        qd.jit(lambda out: out.push((1.0, 1)))(out)
    assert int(qd.jit(lambda out: out.count + 1)(out)) == int(out.count) + 1
