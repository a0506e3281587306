"""`qd.scan` and `qd.reduce_by_key` against NumPy and JAX's scan: trees, derivatives, rows, lanes, refusals."""

from functools import reduce
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.algorithms.scanned import LEAST

DRAW = np.random.default_rng(0)
LONG = LEAST + 77
COUNTS = DRAW.integers(-9, 9, LONG).astype(np.int32)
FACTORS = DRAW.uniform(0.5, 1, LONG).astype(np.float32)
TERMS = DRAW.normal(size=LONG).astype(np.float32)


def recurrence(a: Any, b: Any) -> Any:
    """Combines two steps of `y = factor * y + term`."""
    return {"factor": a["factor"] * b["factor"], "term": a["term"] * b["factor"] + b["term"]}


STEPS = {"factor": FACTORS, "term": TERMS}


def one_by_one(f: Any, steps: Any) -> Any:
    def step(total: Any, own: Any) -> Any:
        made = f(total, own)
        return made, made

    first, rest = ({name: x[k] for name, x in steps.items()} for k in (0, slice(1, None)))
    _, outs = jax.lax.scan(step, first, rest)
    return {name: jnp.concatenate([steps[name][:1], x]) for name, x in outs.items()}


@pytest.mark.full
@pytest.mark.parametrize("count", [0, 1, 9, LONG, 3 * 8192 + 5])
def test_scans_of_integers_are_numpys(count: int) -> None:
    x = np.resize(COUNTS, count)
    np.testing.assert_array_equal(qd.scan(jnp.add, x), np.cumsum(x))
    np.testing.assert_array_equal(qd.scan(jnp.maximum, x), np.maximum.accumulate(x))


@pytest.mark.full
def test_functions_that_do_not_commute() -> None:
    first = qd.scan(lambda a, b: jnp.where(b >= 0, b, a), COUNTS)  # the last one that is not negative
    np.testing.assert_array_equal(first, list(accumulate(COUNTS.tolist(), lambda a, b: b if b >= 0 else a)))
    turns = np.array([[[0, 1], [1, 0]], [[1, 1], [0, 1]]], np.int32)[DRAW.integers(0, 2, LONG)]
    found = qd.scan(jnp.matmul, turns)  # modulo 2**32, so it is exact
    wanted = reduce(lambda a, b: a @ b, turns)
    np.testing.assert_array_equal(found[-1], wanted)
    np.testing.assert_array_equal(found[100], reduce(lambda a, b: a @ b, turns[:101]))


def test_scans_of_trees() -> None:
    found = qd.scan(recurrence, STEPS)["term"]
    wanted = list(accumulate(zip(FACTORS, TERMS, strict=True), lambda y, s: (0, y[1] * s[0] + s[1])))
    np.testing.assert_allclose(found, [y for _, y in wanted], rtol=1e-5, atol=1e-5)  # some ten terms count in each


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 7, LONG])
def test_derivatives_of_scans(count: int) -> None:
    steps = {name: x[:count] for name, x in STEPS.items()}

    def loss(scan: Any) -> Any:
        def of(steps: Any, share: Any) -> Any:
            out = scan(lambda a, b: recurrence(a, {**b, "factor": share * b["factor"]}), steps)
            return (out["term"] * TERMS[:count]).sum()

        return jax.jit(jax.grad(of, (0, 1)))

    found = loss(qd.scan)(steps, 1.0)
    wanted = loss(one_by_one)(steps, 1.0)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), found, wanted)  # the same sums
    _, tangent = jax.jvp(lambda x: qd.scan(jnp.add, x), (TERMS,), (FACTORS,))
    np.testing.assert_allclose(tangent, np.cumsum(FACTORS, dtype=np.float64), rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("count", [5, LONG])
def test_vmap_scans_rows(count: int) -> None:
    rows = np.stack([COUNTS[:count], COUNTS[:count][::-1]])
    np.testing.assert_array_equal(jax.vmap(lambda x: qd.scan(jnp.add, x))(rows), np.cumsum(rows, 1))
    np.testing.assert_array_equal(jax.vmap(lambda x: qd.scan(jnp.add, x), 1, 1)(rows.T), np.cumsum(rows, 1).T)
    captured = jax.vmap(lambda k: qd.scan(lambda a, b: jnp.maximum(a, b) | k, rows[0]))(jnp.array([0, 1]))
    np.testing.assert_array_equal(captured[0], list(accumulate(rows[0].tolist(), max)))


@pytest.mark.parametrize("transform", [qd.vmap, jax.vmap])
@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0)])
def test_rows_without_elements(shape: tuple[int, int], transform: Any) -> None:
    x = jnp.ones(shape)
    for f in (lambda x: qd.scan(jnp.add, x), lambda x: qd.reduce_by_key(x, x, size=shape[1])[1]):
        assert transform(f)(x).shape == shape
        assert jax.grad(lambda x, f=f: transform(f)(x).sum())(x).shape == shape


@pytest.mark.full
def test_lanes_loops_and_programs_scan() -> None:
    rows = COUNTS[:60].reshape(10, 6)

    @qd.jit
    def program(x: Any, row: Any) -> Any:
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = qd.scan(jnp.add, x[i])
        for k in qd.range(row.shape[0]):
            row[k] = 2 * row[k]
        return out, qd.scan(jnp.add, row)

    in_loops, between = program(rows, COUNTS)
    np.testing.assert_array_equal(in_loops, np.cumsum(rows, 1))
    np.testing.assert_array_equal(between, np.cumsum(2 * COUNTS))
    np.testing.assert_array_equal(qd.vmap(lambda x: qd.scan(jnp.add, x))(rows), np.cumsum(rows, 1))


@pytest.mark.full
@pytest.mark.parametrize("count", [0, 1, 50, LONG])
def test_sums_by_key(count: int) -> None:
    keys = np.sort(DRAW.integers(0, 20, count)).astype(np.int16)
    wanted, first = np.unique(keys, return_index=True)
    found, sums, runs = qd.reduce_by_key(keys, {"x": COUNTS[:count]}, size=30)
    assert int(runs) == len(wanted)
    assert found.shape == sums["x"].shape == (30,)
    np.testing.assert_array_equal(found[: len(wanted)], wanted)
    if count:
        np.testing.assert_array_equal(sums["x"][: len(wanted)], np.add.reduceat(COUNTS[:count], first))
    assert not sums["x"][len(wanted) :].any()


@pytest.mark.full
def test_runs_are_neighbours_and_nans_are_equal() -> None:
    keys = jnp.array([1.0, 1.0, jnp.nan, jnp.nan, 1.0, -0.0, 0.0])
    found, largest, runs = qd.reduce_by_key(keys, jnp.arange(7), jnp.maximum, size=5)
    assert int(runs) == 4
    np.testing.assert_array_equal(found, np.array([1, np.nan, 1, 0, 0], np.float32))
    assert largest.tolist() == [1, 3, 4, 6, 0]
    few, *_, runs = qd.reduce_by_key(keys, jnp.arange(7), size=2)
    assert int(runs) == 4
    np.testing.assert_array_equal(few, np.array([1, np.nan], np.float32))


@pytest.mark.parametrize("count", [7, LONG])
@pytest.mark.parametrize("transform", [jax.jit, qd.jit, lambda f: lambda x: qd.vmap(f)(x[None])])
def test_floats_below_the_smallest_normal_one_are_keys(transform: Any, count: int) -> None:
    """XLA's comparisons take them for zeros on a CPU."""
    keys = np.repeat(np.arange(-3, 4, dtype=np.float32) * np.float32(1e-45), -(-count // 7))[:count]
    reduce = transform(lambda x: qd.reduce_by_key(x[...], jnp.ones(count), size=9))
    found, sums, runs = jax.tree.map(np.ravel, reduce(keys))
    kept, counts = np.unique(keys, return_counts=True)
    assert runs.tolist() == [7]
    np.testing.assert_array_equal(found[:7], kept)
    np.testing.assert_array_equal(sums[:7], counts)


@pytest.mark.full
def test_derivatives_of_sums_by_key() -> None:
    keys, weights = jnp.array([0, 0, 3, 3, 3, 5]), jnp.arange(1.0, 7.0)
    slopes = jax.grad(lambda x: (qd.reduce_by_key(keys, x)[1] * weights).sum())(jnp.ones(6))
    assert slopes.tolist() == [1.0, 1.0, 2.0, 2.0, 2.0, 3.0]
    sums = jax.vmap(lambda keys: qd.reduce_by_key(keys, jnp.ones(3))[1])(jnp.array([[0, 0, 1], [0, 1, 2]]))
    assert sums.tolist() == [[2.0, 1.0, 0.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: qd.scan(jnp.add, 1.0), "needs arrays with a first axis, got a number"),
        (lambda: qd.scan(jnp.add, []), "needs arrays with a first axis, got none"),
        (lambda: qd.scan(3, COUNTS), "needs a function of two elements, got int"),  # type: ignore[arg-type]
        (lambda: qd.scan(lambda a, b: a / b, COUNTS), "an element as it takes, int32, got float32"),
        (lambda: qd.scan(lambda a, b: [a, b], COUNTS), r"an element as it takes, int32, got \[int32, int32\]"),
        (lambda: qd.scan(recurrence, {"factor": FACTORS, "term": TERMS[:3]}), r"as that of the first one \(4173\)"),
        (lambda: qd.reduce_by_key(FACTORS * 1j, TERMS), "needs bools, integers or floats, got complex64"),
        (lambda: qd.reduce_by_key(COUNTS, TERMS[:3]), r"as long as the keys \(4173\), got shape \(3,\)"),
        (lambda: qd.reduce_by_key(COUNTS, TERMS, jnp.less), "an element as it takes, float32, got bool"),
        (lambda: qd.reduce_by_key(COUNTS, TERMS, size=-1), "size= of qd.reduce_by_key needs 0 to 2147483647, got -1"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, told: str) -> None:
    with pytest.raises(qd.QdError, match=told) as error:
        call()
    assert error.value.loc is not None
    assert error.value.loc.file == __file__
