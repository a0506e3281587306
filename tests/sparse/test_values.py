"""Values of sparse derivatives: formats, projection, derivatives of them, other arguments, edges."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

DRAW = np.random.default_rng(0)
X = jnp.asarray(DRAW.normal(size=(5, 2)), jnp.float32)
ENDS = jnp.asarray([[0, 1], [1, 2], [3, 1], [0, 1]], jnp.int32)
STIFF = jnp.asarray([1.0, 2.0, 0.5, 3.0])

pytestmark = pytest.mark.usefixtures("_additions")


@qd.jit
def springs(x: Any, ends: Any, stiff: Any) -> Any:
    out = qd.zeros((), x.dtype)
    for k in qd.range(ends.shape[0]):
        d = x[ends[k, 0]] - x[ends[k, 1]]
        out[()] += stiff[k] * (jnp.sqrt(jnp.dot(d, d)) - 1) ** 2
    return out[()] / 2


def one_spring(pair: Any, stiff: Any) -> Any:
    d = pair[0] - pair[1]
    return stiff * (jnp.sqrt(jnp.dot(d, d)) - 1) ** 2 / 2


@pytest.fixture(scope="module")
def pattern() -> qd.Sparsity:
    return qd.sparsity(springs)(X, ENDS, STIFF)


@pytest.mark.full
def test_every_format_is_the_dense_matrix(pattern: qd.Sparsity) -> None:
    wanted = jax.hessian(springs)(X, ENDS, STIFF).reshape(10, 10)
    values = jax.jit(qd.sparse_hessian(springs, pattern))(X, ENDS, STIFF)
    assert pattern.nse == values.size == 4 * (4 + 2 * 3)  # four points meet themselves, and three pairs each other
    at = jnp.zeros((10, 10)).at[pattern.row, pattern.col].set(values)
    sparse = pattern.to_bcoo(values).todense(), pattern.to_bcsr(values).todense(), pattern.to_scipy(values).toarray()
    for found in (at, *sparse):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.full
def test_a_pattern_is_an_argument_and_values_have_derivatives(pattern: qd.Sparsity) -> None:
    along = jnp.asarray(DRAW.normal(size=10), jnp.float32)

    @jax.jit
    def bent(x: Any, stiff: Any, pattern: Any) -> Any:
        values = qd.sparse_hessian(springs, pattern)(x, ENDS, stiff)
        return jnp.sum(along[pattern.row] * values * along[pattern.col])

    def by_jax(x: Any, stiff: Any) -> Any:
        return along @ jax.hessian(lambda x: sum(map(one_spring, x[ENDS], stiff)))(x).reshape(10, 10) @ along

    found = jax.grad(bent, (0, 1))(X, STIFF, pattern)
    for a, b in zip(found, jax.grad(by_jax, (0, 1))(X, STIFF), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_a_projection_is_that_of_each_term(pattern: qd.Sparsity) -> None:
    near = X * 0.1  # springs that push have negative eigenvalues
    values = qd.sparse_hessian(springs, pattern, psd=True)(near, ENDS, STIFF)
    wanted = np.zeros((10, 10))
    for ends, stiff in zip(np.asarray(ENDS), STIFF, strict=True):
        block = jax.hessian(one_spring)(near[ends], stiff).reshape(4, 4)
        found, vectors = np.linalg.eigh(np.asarray(block, np.float64))
        assert found[0] < -1e-3
        at = (ends[:, None] * 2 + np.arange(2)).ravel()
        wanted[np.ix_(at, at)] += (vectors * np.maximum(found, 0)) @ vectors.T
    np.testing.assert_allclose(pattern.to_scipy(values).toarray(), wanted, rtol=1e-3, atol=1e-4 * abs(wanted).max())


@pytest.mark.full
def test_what_is_linear_meets_nothing() -> None:
    @qd.jit
    def f(x: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0] - 3):
            out[()] += x[i] * x[i + 1] + 3 * x[i + 2] + x[i + 3] ** 2
        for i in qd.range(x.shape[0]):
            out[()] -= 2 * x[i]
        return out

    x = jnp.arange(5.0)
    pattern = qd.sparsity(f)(x)
    at = set(zip(pattern.row.tolist(), pattern.col.tolist(), strict=True))
    assert at == {(k, k) for k in range(5)} | {(0, 1), (1, 0), (1, 2), (2, 1)}  # whole terms
    for psd in (False, True):
        values = qd.sparse_hessian(f, pattern, psd=psd)(x)
        wanted = np.zeros((5, 5))
        for i in range(2):
            wanted[i : i + 2, i : i + 2] += [[0.5, 0.5], [0.5, 0.5]] if psd else [[0, 1], [1, 0]]
            wanted[i + 3, i + 3] += 2
        np.testing.assert_allclose(pattern.to_scipy(values).toarray(), wanted, atol=1e-5)


def test_algorithms_may_stand_around_loops() -> None:
    """Lists are made of other arguments, in the function itself."""

    @qd.jit
    def energy(x: Any, ends: Any, mask: Any) -> Any:
        kept, count = qd.compact(mask, ends)
        first = qd.sort(kept[:, 0])
        total = qd.scan(jnp.add, qd.sort(mask).astype(jnp.int32))
        out = qd.zeros((), x.dtype)
        for k in qd.range(ends.shape[0]):
            with qd.when(k < count):
                out[()] += (x[kept[k, 0]] - x[kept[k, 1]]) ** 4 * (first[k] + total[k])
        return out

    x, ends = jnp.asarray([1.0, 2.0, 0.5, 3.0]), jnp.asarray([[0, 1], [2, 3], [1, 2]])
    given = ends, jnp.asarray([True, False, True])
    pattern = qd.sparsity(energy)(x, *given)
    values = qd.sparse_hessian(energy, pattern)(x, *given)
    wanted = jax.hessian(energy)(x, *given)
    np.testing.assert_allclose(pattern.to_scipy(values).toarray(), wanted, rtol=1e-5)


@pytest.mark.full
def test_functions_that_are_called_are_read() -> None:
    @qd.jit(static_argnames="power")
    def sums(x: Any, k: Any, power: int) -> Any:
        out = qd.zeros(2, x.dtype)
        for i in qd.range(k.shape[0]):
            out[i % 2] += x[k[i]] ** power * x[k[i] + 1]
        return out

    def both(x: Any, k: Any) -> Any:
        return 2 * sums(x, k, power=2).sum() - sums(x, k + 1, power=3) @ jnp.array([1.0, 3.0])

    x, k = jnp.asarray([1.0, 2.0, 0.5, 3.0]), jnp.asarray([0, 1, 0])
    pattern = qd.sparsity(both)(x, k)
    values = qd.sparse_hessian(both, pattern)(x, k)
    assert pattern.nse == 4 + 2 * 3
    np.testing.assert_allclose(pattern.to_scipy(values).toarray(), jax.hessian(both)(x, k), rtol=1e-5)


@pytest.mark.cpu  # a failed check is told with the call, not when its results are waited for
@pytest.mark.full
def test_other_arguments_are_told(pattern: qd.Sparsity) -> None:
    values = qd.sparse_hessian(springs, pattern)
    with pytest.raises(qd.TraceValueError, match=r"pattern's sizes \(float32\[5, 2\], .*got float32\[6, 2\]"):
        values(jnp.zeros((6, 2)), ENDS, STIFF)
    with pytest.raises(qd.CheckError, match="made with other indices"):
        values(X, ENDS.at[2, 1].set(4), STIFF)
    with pytest.raises(qd.TraceTypeError, match=r"use qd\.sparse_hessian"):
        qd.sparse_jacobian(springs, pattern)
    with pytest.raises(qd.TraceTypeError, match="needs a pattern, got ndarray"):
        qd.sparse_hessian(springs, np.zeros(3))  # type: ignore[arg-type]

    def other(x: Any, ends: Any, stiff: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for k in qd.range(ends.shape[0]):
            out[()] += stiff[k] * jnp.sum(x[ends[k, 0]] ** 4)
        return out

    with pytest.raises(qd.TraceValueError, match="of another function than other"):
        qd.sparse_hessian(other, pattern)(X, ENDS, STIFF)


@pytest.mark.parametrize("form", ["to_bcoo", "to_bcsr", "to_scipy"])
def test_values_of_another_pattern_are_told(pattern: qd.Sparsity, form: str) -> None:
    for shape in ((pattern.nse - 1,), (pattern.nse, 1), ()):
        with pytest.raises(qd.TraceValueError, match=rf"{form} needs a value for each of the 40 entries") as caught:
            getattr(pattern, form)(jnp.zeros(shape))
        assert caught.value.loc is not None
        assert caught.value.help


@pytest.mark.full
def test_lanes_have_values_of_their_own(pattern: qd.Sparsity) -> None:
    """Of one pattern, under `jax.vmap` and `jax.jit`, of other dtypes too."""
    points = jnp.stack([X, 2 * X, X[::-1]])
    for psd in (False, True):
        values = qd.sparse_hessian(springs, pattern, psd=psd)
        found = jax.jit(jax.vmap(values, (0, None, None)))(points, ENDS, STIFF)
        np.testing.assert_allclose(found, jnp.stack([values(x, ENDS, STIFF) for x in points]), rtol=1e-5, atol=1e-5)
    with jax.enable_x64(True):
        for dtype in (jnp.float16, jnp.float64):
            x, stiff = X.astype(dtype), STIFF.astype(dtype)
            own = qd.sparsity(springs)(x, ENDS, stiff)
            got, wanted = qd.sparse_hessian(springs, own)(x, ENDS, stiff), jax.hessian(springs)(x, ENDS, stiff)
            assert got.dtype == dtype
            bound = 200 * jnp.finfo(dtype).eps  # of sums of squares of up to 10
            np.testing.assert_allclose(own.to_scipy(got.astype(float)).toarray(), wanted.reshape(10, 10), atol=bound)


@pytest.mark.cpu  # a failed check is told with the call, not when its results are waited for
@pytest.mark.full
def test_an_argument_has_its_name() -> None:
    @qd.jit
    def f(x: Any, pattern: Any, *, scale: Any = 2.0) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(pattern.shape[0]):
            out[()] += scale * x[pattern[i]] ** 2
        return out

    x, places = jnp.ones(3), jnp.asarray([0, 2])
    values = qd.sparse_hessian(f, qd.sparsity(f)(x, places))
    assert values(x, places).tolist() == [4, 4]
    with pytest.raises(qd.BoundsError, match="index 3 is out of bounds for axis 0 of `x`"):
        values(x, places + 1)


@pytest.mark.cpu  # a failed check is told with the call, not when its results are waited for
@pytest.mark.full
def test_checks_of_the_function_are_made() -> None:
    @qd.jit
    def roots(x: Any, at: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(at.shape[0]):
            with qd.when(at[i] >= 0):
                qd.check(x[at[i]] > 0, "needs positive numbers")
                out[()] += jnp.sqrt(x[at[i]])
        return out

    at, x = jnp.asarray([2, -1, 0]), jnp.asarray([4.0, -1.0, 9.0])
    values = qd.sparse_hessian(roots, qd.sparsity(roots)(x, at))
    np.testing.assert_allclose(values(x, at), -0.25 * np.asarray([4.0, 9.0]) ** -1.5, rtol=1e-5)
    with pytest.raises(qd.CheckError, match="needs positive numbers"):
        values(-x, at)


@pytest.mark.full
def test_nan_and_nothing(pattern: qd.Sparsity) -> None:
    values = qd.sparse_hessian(springs, pattern)(X.at[2].set(jnp.nan), ENDS, STIFF)
    touched = np.isnan(pattern.to_scipy(values).toarray()).any(axis=1)
    assert touched.tolist() == [False, False, True, True, True, True] + 4 * [False]  # what meets point 2: itself and 1
    for x, ends in ((X, ENDS[:0]), (X[:0], ENDS[:0])):
        empty = qd.sparsity(springs)(x, ends, STIFF[:0])
        assert (empty.nse, empty.shape) == (0, (x.size, x.size))
        found = qd.sparse_hessian(springs, empty)(x, ends, STIFF[:0])
        assert empty.to_scipy(found).nnz == 0
        assert empty.to_bcoo(found).todense().shape == (x.size, x.size)


@pytest.mark.full
@pytest.mark.parametrize("way", ["twice", "equal indices"])
def test_an_entry_that_is_loaded_twice_is_one_variable(way: str) -> None:
    @qd.jit
    def f(x: Any, k: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            other = x[i] if way == "twice" else x[k[i]]
            out[()] += jnp.cos(x[i]) + x[i] ** 2 * other - other**2 / 2
        return out

    x, k = jnp.asarray([1.0, 2.0, 0.5]), jnp.arange(3)
    pattern = qd.sparsity(f)(x, k)
    assert pattern.nse == 3
    values = qd.sparse_hessian(f, pattern, psd=True)
    slopes = jax.grad(lambda x: values(x, k).sum())(x)
    second = -jnp.cos(x) + 6 * x - 1
    assert (second > 0).all()
    np.testing.assert_allclose(values(x, k), second, rtol=1e-5)
    np.testing.assert_allclose(slopes, jnp.sin(x) + 6, rtol=1e-5)


@pytest.mark.cpu  # a failed check is told with the call, not when its results are waited for
@pytest.mark.full
@pytest.mark.parametrize("bounds", ["raise", "clip"])
@pytest.mark.parametrize("index", [2, -1])
@pytest.mark.parametrize("written", [False, True])
def test_a_place_outside_of_an_array_is_told(bounds: str, index: int, written: bool) -> None:
    @qd.jit(options={"bounds": bounds})
    def f(x: Any, k: Any) -> Any:
        out = qd.zeros((3, 2), x.dtype)
        for i in qd.range(k.shape[0]):
            if written:
                out[0, k[i]] += x[i, 0] ** 2
            else:
                out[i, 0] += x[0, k[i]] ** 2  # column 2 of row 0 would be the first one of row 1
        return out if written else out[...].sum()

    with pytest.raises(
        qd.BoundsError, match=f"index {index} is out of bounds for axis 1 of `{'b' if written else 'x'}`"
    ):
        qd.sparsity(f)(jnp.ones((3, 2)), jnp.asarray([0, index]))


def either_store(x: Any, out: Any, i: Any) -> None:
    with qd.when(x[i] > 0):
        out[i] = x[i] ** 2
    with qd.otherwise():
        with qd.when(x[0] > 1):
            out[i] = x[0] * x[i]
        with qd.otherwise():
            out[i] = x[1] * x[i] ** 2


def store_or_sum(x: Any, out: Any, i: Any) -> None:
    is_high = x[i] > 0
    with qd.when(is_high):
        for k in qd.range(2):
            out[i] += x[k] ** 3 * x[i]
    with qd.when(~is_high):
        out[i] = x[i] ** 3


def in_a_short_loop(x: Any, out: Any, i: Any) -> None:
    for k in qd.range(2):
        with qd.when(x[k] > x[i]):
            out[(i + 5 * k) % 10] = x[i] ** 2 * x[k]
        with qd.otherwise():
            out[(i + 5 * k) % 10] = x[0] * x[i]


@pytest.mark.parametrize("body", [either_store, store_or_sum, in_a_short_loop])
def test_writes_of_which_one_is_made_store_into_one_element(body: Any) -> None:
    def stored(x: Any) -> Any:
        out = qd.ones(10, x.dtype)
        for i in qd.range(x.shape[0]):
            body(x, out, i)
        return out

    x = jnp.array([0.5, -1.2, 1.7, -0.3, 0.8])
    first, second = qd.jit(stored), qd.jit(lambda x: jnp.sum(stored(x)[...]))
    pattern = qd.sparsity(first)(x)
    found = pattern.to_scipy(qd.sparse_jacobian(first, pattern)(x)).toarray()
    np.testing.assert_allclose(found, jax.jacobian(first)(x), rtol=1e-6)
    pattern = qd.sparsity(second)(x)
    found = pattern.to_scipy(qd.sparse_hessian(second, pattern)(x)).toarray()
    np.testing.assert_allclose(found, jax.hessian(second)(x), rtol=1e-5)
