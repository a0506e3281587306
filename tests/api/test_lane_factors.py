"""Factorisations, solves and loops over products of all lanes in panels: values, derivatives of any order, batches."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.lanes import panels
from qdtrace.lanes.panels import CALL_SIDE, LOOP_SIDES, NARROW_CALL_SIDE, PANEL, SIDES, STEPS, with_kernels
from qdtrace.trace import compat
from tests.api.array_programs import STEPS as PARTS
from tests.api.array_programs import loop_of
from tests.selection import drawn

pytestmark = pytest.mark.cpu


def solve(lower: bool, transpose: bool, unit: bool, left: bool) -> Callable[[Any], Any]:
    def run(a: Any) -> Any:
        b = jnp.cos(a[..., :3] if left else a[..., :5, :])  # other numbers than those of the matrix
        return lax.linalg.triangular_solve(
            a, b, left_side=left, lower=lower, transpose_a=transpose, unit_diagonal=unit
        )

    return run


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "lu": lambda a: lax.linalg.lu(a)[0],
    "pivots": lambda a: [x.astype(a.dtype) for x in lax.linalg.lu(jnp.flip(jnp.cos(3 * a), -1))[1:]],
    "solve": lambda a: jnp.linalg.solve(a, jnp.cos(a[..., :2])),
    "determinant": lambda a: jnp.linalg.slogdet(a)[1],
    "lower": solve(True, False, False, True),
    "lower transposed": solve(True, True, True, True),
    "upper": solve(False, False, True, True),
    "upper from the right": solve(False, True, False, False),
    "in a loop": lambda a: lax.fori_loop(0, 2, lambda _, m: jnp.linalg.cholesky(m @ m.swapaxes(-1, -2) + a), a),
}


def definite(count: int, n: int, dtype: Any) -> Any:
    a = np.random.default_rng(n).normal(size=(count, n, n))
    return jnp.asarray((a @ a.transpose(0, 2, 1) / n + 2 * np.eye(n)).astype(dtype))


def same(got: Any, want: Any, digits: float) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=0, atol=digits * max(1.0, float(jnp.abs(other).max())))


def gradient(f: Any) -> Any:
    return jax.grad(lambda a: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(a))))


@pytest.mark.sample(full=5)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("count", "n"), [(PANEL, 7), (PANEL + 1, 17), (50, 8)])
@pytest.mark.full
def test_values_and_derivatives(name: str, count: int, n: int) -> None:
    f = FUNCTIONS[name]
    with jax.enable_x64(True):
        a = definite(count, n, "float64")
        assert "qd_panels" in str(jax.make_jaxpr(with_kernels(f))(a))
        for of in (lambda f: f, gradient):
            same(jax.jit(of(with_kernels(f)))(a), jax.jit(of(f))(a), 1e-11)  # conditions of some 100
        if n == 7:
            second = lambda f: lambda a: jax.jvp(gradient(f), (a,), (jnp.cos(a),))[1]  # noqa: E731
            same(jax.jit(second(with_kernels(f)))(a), jax.jit(second(f))(a), 1e-9)
    same(jax.jit(with_kernels(f))(a.astype("float32")), jax.jit(f)(a.astype("float32")), 1e-4)


@pytest.mark.full
def test_batches_of_batches() -> None:
    a = definite(40, 9, "float32").reshape(2, 20, 9, 9)
    for name in ("cholesky", "pivots", "solve"):
        f = FUNCTIONS[name]
        same(jax.vmap(with_kernels(f), 1, 1)(a), jax.vmap(f, 1, 1)(a), 1e-4)
        same(with_kernels(f)(a), f(a), 1e-4)


def panels_of(f: Any, *args: Any) -> list[set[str]]:
    """Returns the names of the equations in each panel of a function."""
    eqns = compat.all_eqns(tuple(jax.make_jaxpr(f)(*args).eqns))
    lanes = [e.params["jaxpr"].eqns for e in eqns if e.primitive.name == "qd_panels"]
    return [{e.primitive.name for e in compat.all_eqns(tuple(one))} for one in lanes]


@pytest.mark.full
@pytest.mark.parametrize("count", [PANEL, PANEL + 3])
@pytest.mark.parametrize("masks", [False, True])
def test_tasks_and_xla_move_the_same_elements(count: int, masks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "has_masks", lambda: masks)
    with jax.enable_x64(True):
        a = definite(count, 9, "float64")
        f = jax.jit(with_kernels(lambda a: (lax.linalg.cholesky(a), lax.linalg.lu(a)[1])))
        text = f.lower(a).as_text()
        assert ("_side_by_side" in text, "_apart" in text) == (not masks, not masks)
        same(f(a), (jnp.linalg.cholesky(a), lax.linalg.lu(a)[1]), 1e-13)


@pytest.mark.full
@pytest.mark.parametrize("n", [7, 8, 9, 13])
def test_columns_in_pairs(n: int) -> None:
    """An odd matrix has a last column alone; rows of the last tile overlap."""
    with jax.enable_x64(True):
        a = definite(3, n, "float64")
        a = a.at[1, n - 1, n - 1].set(-1.0).at[2, n - 2, n - 2].set(-1.0)
        f = qd.jit(qd.vmap(lax.linalg.cholesky), options={"array_mapping": "lanes"})
        same(f(a), lax.linalg.cholesky(a), 1e-13)


@pytest.mark.full
@pytest.mark.parametrize(
    ("masks", "n", "whole"),
    [(True, 48, False), (True, CALL_SIDE, True), (True, SIDES.stop - 1, True), (False, NARROW_CALL_SIDE, True)],
)
def test_a_call_that_factorises_a_large_matrix_is_one_panel(
    masks: bool, n: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "has_masks", lambda: masks)
    a = definite(PANEL + 1, n, "float32").at[3].multiply(-1)
    f = lambda a: jnp.linalg.cholesky(a)  # noqa: E731 - traces of `jnp.linalg.cholesky` itself are kept
    (made,) = panels_of(qd.vmap(f), a)
    assert ("transpose" in made) is whole
    got, want = qd.vmap(f)(a), jax.vmap(f)(a)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # one run in ten or so waits for ever for a result of XLA, with all of its threads idle
@pytest.mark.parametrize("shared", [False, True])
def test_derivatives_of_calls_that_factorise(shared: bool) -> None:
    """Also of a matrix that all lanes share, which XLA factorises."""

    def lane(a: Any, b: Any) -> Any:
        return jnp.linalg.cholesky(b if shared else a + 0.1 * b) * a[0]

    with jax.enable_x64(True):
        a, b = definite(PANEL + 1, CALL_SIDE, "float64"), definite(1, CALL_SIDE, "float64")[0]
        ours, theirs = qd.vmap(lane, (0, None)), jax.vmap(lane, (0, None))
        assert len(panels_of(ours, a, b)) == 1
        same(ours(a, b), theirs(a, b), 1e-12)
        for of in (lambda f: lambda a, b: gradient(lambda c: f(a, c))(b), lambda f: _second(lambda a, b: [[f(a, b)]])):
            same(jax.jit(of(ours))(a, b), jax.jit(of(theirs))(a, b), 1e-9)
        again = jax.vmap(ours, (1, None), 1), jax.vmap(theirs, (1, None), 1)
        same(*(jax.jit(f)(jnp.stack([a, 2 * a], 1), b) for f in again), 1e-12)


@pytest.mark.full
def test_one_indefinite_matrix_is_nan_and_its_neighbours_are_not() -> None:
    a = definite(20, 8, "float32").at[3].multiply(-1).at[7, 5, 5].set(jnp.nan)
    got, want = with_kernels(lax.linalg.cholesky)(a), lax.linalg.cholesky(a)
    np.testing.assert_array_equal(np.isnan(np.tril(got)), np.isnan(np.tril(want)))
    np.testing.assert_allclose(got[8:], want[8:], rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_singular_matrices_and_nan_have_the_pivots_of_lapack() -> None:
    a = definite(20, 9, "float32").at[0].set(0).at[1, :, 4].set(0).at[2, 3].set(jnp.inf).at[3, 6, 0].set(jnp.nan)
    finite = np.array([0, 1, *range(4, 20)])
    for one, other in zip(with_kernels(lax.linalg.lu)(a), lax.linalg.lu(a), strict=True):
        np.testing.assert_allclose(one[finite], other[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("count", "n", "dtype"), [(PANEL - 1, 8, "f4"), (PANEL, 65, "f4"), (PANEL, 8, "c8")])
def test_few_large_and_complex_matrices_stay_with_xla(count: int, n: int, dtype: str) -> None:
    a = jnp.ones((count, n, n), dtype)
    assert "qd_panels" not in str(jax.make_jaxpr(with_kernels(jnp.linalg.cholesky))(a))


def test_lowered_for_a_gpu_it_is_xlas() -> None:
    a = jnp.ones((PANEL, 8, 8))
    text = jax.jit(with_kernels(FUNCTIONS["lower"])).trace(a).lower(lowering_platforms=("cuda",)).as_text()
    assert "triangular_solve" in text


def products(a: Any, b: Any, steps: int = STEPS) -> Any:
    def step(state: Any, k: Any) -> Any:
        m, count = state
        return (0.5 * m @ a @ b + jnp.eye(a.shape[0], dtype=m.dtype), count + 1), m[0] * k

    return lax.scan(step, (a, 0), jnp.arange(steps, dtype=a.dtype))


def text(f: Any, *args: Any) -> str:
    return str(jax.make_jaxpr(f)(*args))


@pytest.mark.parametrize(("count", "shared"), [(PANEL, False), (PANEL + 1, True)])
@pytest.mark.full
def test_a_loop_over_products_keeps_its_panels(count: int, shared: bool) -> None:
    with jax.enable_x64(True):
        a, b = definite(count, 17, "float64"), 0.1 * definite(1, 17, "float64")[0]
        b = b if shared else b * jnp.arange(1, count + 1)[:, None, None] / count
        axes = (0, None if shared else 0)
        ours, theirs = qd.vmap(products, axes), jax.vmap(products, axes)
        assert text(ours, a, b).count("qd_panels") == 1
        same(ours(a, b), theirs(a, b), 1e-12)
        for of in (lambda f: lambda a, b: gradient(lambda c: f(a, c)[0][0])(b), _second):
            same(jax.jit(of(ours))(a, b), jax.jit(of(theirs))(a, b), 1e-9)
        again = jax.vmap(qd.vmap(products, axes), (1, None), 1), jax.vmap(jax.vmap(products, axes), (1, None), 1)
        same(*(jax.jit(f)(jnp.stack([a, 2 * a], 1), b) for f in again), 1e-12)


def _second(f: Any) -> Any:
    return lambda a, b: jax.jvp(gradient(lambda a: f(a, b)[0][0]), (a,), (jnp.cos(a),))[1]


@pytest.mark.parametrize(
    ("count", "n", "steps"), [(PANEL - 1, 17, STEPS), (PANEL, LOOP_SIDES.stop, STEPS), (PANEL, 17, STEPS - 1)]
)
def test_loops_of_few_lanes_large_matrices_and_few_steps_stay_with_xla(count: int, n: int, steps: int) -> None:
    a = definite(count, n, "float32")
    assert "qd_panels" not in text(qd.vmap(lambda a: products(a, a, steps)), a)


def test_loops_that_panels_do_not_hold_stay_with_xla() -> None:
    a = definite(PANEL, 17, "float32")
    every = lambda a: lax.scan(lambda m, _: (m @ a, m), a, None, length=100)  # noqa: E731
    spectral = lambda a: lax.scan(lambda m, _: (m @ a + jnp.linalg.eigh(m)[1], None), a, None, length=STEPS)  # noqa: E731
    weights = lambda a: lax.scan(lambda v, _: (jnp.tanh(a @ v), None), a[0], None, length=STEPS)  # noqa: E731
    for f in (every, spectral, weights):
        assert "qd_panels" not in text(qd.vmap(f), a)


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("seed", range(drawn(4)))
@pytest.mark.full
def test_random_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = [name for name in PARTS if name != "loop that lanes leave"]
    names = ("product", *map(str, rng.choice(known, size=2)))
    n, count, shared = int(rng.choice((3, 16, 17, 20, 33))), int(rng.choice((16, 17, 33))), bool(rng.integers(2))
    args = [rng.normal(size=size) / np.sqrt(n) for size in ((n, n) if shared else (count, n, n), (count, n, n))]
    args += [rng.normal(size=(count, n)), rng.normal(size=count)]
    dtype = str(rng.choice(("float32", "float64")))
    digits = 1e-3 if dtype == "float32" else 1e-8  # of eight times three steps, whose conditions are some ten
    with jax.enable_x64(True), qd.options(array_mapping="batch"):
        args = [x.astype(dtype) for x in args]
        lane, axes = loop_of(names, STEPS), (None if shared else 0, 0, 0, 0)
        ours, theirs = qd.vmap(lane, axes), jax.vmap(lane, axes)
        assert "qd_panels" in text(ours, *args)
        same(jax.jit(ours)(*args), jax.jit(theirs)(*args), digits)
        slopes = [jax.jit(gradient(lambda m, f=f: f(args[0], m, *args[2:])))(args[1]) for f in (ours, theirs)]
        same(*slopes, digits)
