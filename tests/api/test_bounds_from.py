"""`qd.jit(bounds_from=...)`: what derivatives keep for arrays that are given, and how often these are looked at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace import counters
from tests.autodiff.row_walk import walk

walked = qd.jit(walk, bounds_from="start")
plain = qd.jit(walk)
X = jnp.linspace(0.2, 1.4, 64)
SHORT = jnp.array([0, 3, 3, 8, 9, 13, 12])
LONG = jnp.array([0, 3, 3, 8, 9, 60, 12])
EVERY = {8: SHORT, 64: LONG}


def reductions() -> int:
    return counters.counts["size_reductions"]


def kept(f: Any, *args: Any) -> int:
    """States of one loop that the gradient by the last argument keeps; 0 if they are thinned."""
    gradient = jax.grad(lambda x: f(*args[:-1], x).sum())
    (choice,) = qd.jit(gradient).lower(args[-1]).storage
    return 0 if choice.thinned_bits is not None else choice.nbytes // args[-1].dtype.itemsize


@pytest.mark.full
@pytest.mark.cpu
def test_each_array_has_its_own_size_and_no_other_one() -> None:
    for _ in range(2):
        for most, start in EVERY.items():
            assert kept(walked, start, X) == most
            want = jax.grad(lambda x, start=start: plain(start, x).sum())(X)
            np.testing.assert_allclose(jax.grad(lambda x, start=start: walked(start, x).sum())(X), want, rtol=1e-6)
            assert walked(start, X).tolist() == plain(start, X).tolist()
    assert kept(plain, SHORT, X) == 0


@pytest.mark.full
def test_an_array_is_looked_at_once_and_traced_once_for_a_size() -> None:
    f = qd.jit(lambda start, x: walk(start, x), bounds_from=("start",))
    first, equal, longer = jnp.array(SHORT), jnp.array(SHORT), jnp.array(LONG)
    before, traces = reductions(), counters.counts["traces"]
    for _ in range(3):
        f(first, X)
        f(x=X, start=first)
    assert (reductions() - before, counters.counts["traces"] - traces) == (1, 2)  # positions and names: two signatures
    f(equal, X)
    assert (reductions() - before, counters.counts["traces"] - traces) == (2, 2)
    f(longer, X)
    assert (reductions() - before, counters.counts["traces"] - traces) == (3, 3)


@pytest.mark.full
@pytest.mark.cpu
def test_an_array_of_numpy_that_changes() -> None:
    start = np.array(SHORT)
    assert kept(walked, start, X) == 8
    start[:] = LONG
    assert kept(walked, start, X) == 64
    want = jax.grad(lambda x: plain(LONG, x).sum())(X)
    np.testing.assert_allclose(jax.grad(lambda x: walked(start, x).sum())(X), want, rtol=1e-6)


@pytest.mark.full
@pytest.mark.cpu
def test_what_is_traced_around_the_call() -> None:
    """Nothing is known of a traced array; one that is captured there is given to the call."""
    before = reductions()
    by_jit = jax.jit(jax.grad(lambda start, x: walked(start, x).sum(), 1))
    want = jax.grad(lambda x: plain(LONG, x).sum())(X)
    np.testing.assert_allclose(by_jit(LONG, X), want, rtol=1e-6)
    two = jax.vmap(lambda start: walked(start, X))(jnp.stack([SHORT, LONG]))
    assert two.tolist() == [plain(SHORT, X).tolist(), plain(LONG, X).tolist()]
    (choice,) = qd.jit(jax.grad(lambda start, x: walked(start, x).sum(), 1)).lower(LONG, X).storage
    assert "known only at run time" in choice.reason
    assert reductions() == before
    captured = jax.jit(jax.grad(lambda x: walked(LONG, x).sum()))
    np.testing.assert_allclose(captured(X), want, rtol=1e-6)
    scanned = jax.lax.scan(lambda s, x: (s, walked(SHORT, x).sum()), 0.0, jnp.stack([X, 2 * X]))[1]
    assert scanned.tolist() == [plain(SHORT, x).sum() for x in (X, 2 * X)]


@pytest.mark.cpu
def test_a_call_in_another_function() -> None:
    @qd.jit
    def outer(x: Any) -> Any:
        return walked(LONG, x)

    @qd.jit
    def given(start: Any, x: Any) -> Any:
        return walked(start, x)

    assert kept(outer, X) == 64
    assert kept(given, LONG, X) == 0
    assert given(LONG, X).tolist() == outer(X).tolist() == plain(LONG, X).tolist()


@pytest.mark.full
@pytest.mark.cpu
def test_trees_numbers_and_methods() -> None:
    count = jnp.array([3, 0, 7, 1])

    def steps(x: Any, mesh: Any, n: Any) -> Any:
        for i in qd.range(x.shape[0]):
            a = qd.local(x[i])
            for _ in qd.range(mesh["count"][i]):
                a.value = jnp.sin(a.value)
            for _ in qd.range(n):
                a.value = jnp.cos(a.value)
            x[i] = a.value
        return x

    class Solver:
        @qd.jit(bounds_from=("mesh", "n"), static_argnums=0)
        def run(self, x: Any, mesh: Any, *, n: int = 2) -> Any:
            return steps(x, mesh, n)

    f = Solver().run
    x, mesh = jnp.linspace(0.1, 1.0, 4), {"count": count, "weight": jnp.ones(3), "none": None}
    low = qd.jit(jax.grad(lambda x: f(x, mesh, n=30).sum())).lower(x)
    assert [choice.slots for choice in low.storage] == [8, 32]
    want = x
    for k in range(7):
        want = jnp.where(k < count, jnp.sin(want), want)
    for _ in range(30):
        want = jnp.cos(want)
    np.testing.assert_allclose(f(x, mesh, n=30), want, rtol=1e-6)
    static = qd.jit(lambda x: steps(x, mesh, 30))
    slopes = jax.grad(lambda x: f(x, mesh, n=30).sum())(x)
    np.testing.assert_allclose(slopes, jax.grad(lambda x: static(x).sum())(x), rtol=1e-6)


def test_lower_has_the_limits_of_what_is_given() -> None:
    assert "start: ref[i32,7] in (0,64,64)" in walked.lower(LONG, X).graph("trace")
    shape = jax.ShapeDtypeStruct(LONG.shape, LONG.dtype)
    assert "start: ref[i32,7])" in walked.lower(shape, X).graph("trace")
    assert "in (" not in walked.lower(LONG, X).graph()  # the code is that of all arrays


@pytest.mark.full
def test_an_argument_that_is_changed_or_donated() -> None:
    def f(start: Any, x: Any) -> Any:
        for i in qd.range(start.shape[0]):
            start[i] *= 2
        return walk(start, x), start

    changed = qd.jit(f, bounds_from="start")
    donated = qd.jit(f, bounds_from="start", donate_argnames="start")
    assert donated(jnp.array(SHORT), X)[0].tolist() == plain(2 * SHORT, X).tolist()
    want = jax.grad(lambda x: plain(2 * SHORT, x).sum())(X)
    np.testing.assert_allclose(jax.grad(lambda x: changed(SHORT, x)[0].sum())(X), want, rtol=1e-6)


@pytest.mark.parametrize("names", ["rows", ("start", "rows"), "args"])
def test_names_that_no_parameter_has(names: Any) -> None:
    with pytest.raises(qd.QdError) as caught:
        qd.jit(lambda start, x, *args: x, bounds_from=names)
    wrong = names if isinstance(names, str) else names[1]
    assert str(caught.value) == (
        f"qd.jit: bounds_from needs names of parameters, got {wrong!r}\nhelp: its parameters: start, x"
    )
