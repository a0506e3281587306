"""Lanes and bodies give the answers of JAX that surprise: values, adjoints and tangents, from both sides of a lane."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

from .document import PATH, section
from .matrix_rows import ROWS
from .rows import Row
from .slope_rows import POWERS_AT_0

KNOWN = ((0, 11), (0, 12))
"""Releases between these have answers of one or the other."""
known = pytest.mark.skipif(
    KNOWN[0] <= jax.__version_info__ < KNOWN[1], reason="a release between those of the table"
)
SOME = [pytest.param(row, id=row.name) for row in ROWS]


def floats(points: Any) -> tuple[int, ...]:
    return tuple(k for k, x in enumerate(points) if jnp.issubdtype(x.dtype, jnp.inexact))


def asked(row: Row, mapped: Callable[..., Any], *, inside: bool = True) -> dict[str, Any]:
    """Value, adjoints and tangents, as far as the row has them."""
    f = row.f
    at, points = floats(row.points), tuple(map(jnp.asarray, row.points))
    found = {"value": mapped(f)(*points)}
    if row.slopes:
        found["slopes"] = jax.grad(lambda *xs: mapped(f)(*xs).sum(), at)(*points)
        if inside:
            found["slopes inside"] = mapped(jax.grad(f, at))(*points)
    if row.along is not None:
        ones = tuple(map(jnp.ones_like, points))
        found["along"] = jax.jvp(mapped(f), points, ones)[1]
        if inside:
            found["along inside"] = mapped(lambda *xs: jax.jvp(f, xs, tuple(map(jnp.ones_like, xs)))[1])(*points)
    return found


def compare(row: Row, found: dict[str, Any], *, compiled: bool) -> None:
    for way, value in found.items():
        want = row.expected(way.split()[0], compiled=compiled)
        for a, b in zip(value, want, strict=True) if way.startswith("slopes") else [(value, want)]:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=row.rtol, atol=1e-7, err_msg=way)


def of_bodies(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of points as a body that loops over them."""

    @qd.jit
    def body(points: Any) -> Any:
        shape = jax.eval_shape(f, *(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in points))
        out = qd.empty((points[0].shape[0], *shape.shape), shape.dtype)
        for i in qd.range(points[0].shape[0]):
            out[i] = f(*(x[i] for x in points))
        return out

    return lambda *points: body(points)


@known
@pytest.mark.parametrize("row", SOME)
@pytest.mark.sample(3)
def test_lanes(row: Row) -> None:
    compare(row, asked(row, qd.vmap), compiled=False)


@known
@pytest.mark.parametrize("row", SOME)
@pytest.mark.full
def test_jax(row: Row) -> None:
    """The table is true of JAX itself."""
    found = jax.jit(lambda points: asked(replace(row, points=points), jax.vmap))(row.points)
    compare(row, found, compiled=True)


@known
@pytest.mark.parametrize("row", SOME)
@pytest.mark.sample(8)
def test_bodies(row: Row) -> None:
    if row.is_checked:
        with pytest.raises(qd.BoundsError):
            asked(row, of_bodies, inside=False)
    else:
        compare(row, asked(row, of_bodies, inside=False), compiled=False)


@pytest.mark.full
@pytest.mark.parametrize(("exponent", "derivatives"), POWERS_AT_0)
def test_powers_at_zero(exponent: float, derivatives: list[float]) -> None:
    """Higher derivatives of powers of floats and of integers."""
    for mapped in (qd.vmap, jax.vmap):
        f: Any = lambda x: x**exponent  # noqa: E731
        for order, want in enumerate(derivatives):
            np.testing.assert_array_equal(mapped(f)(jnp.zeros(1)), [want], err_msg=f"order {order}")
            f = jax.grad(f)


@pytest.mark.full
def test_gradients_that_jax_has_not() -> None:
    """Reverse mode of a loop with a traced number of iterations, and of a batch by `sequential_vmap`."""
    power = lambda x, n: lax.fori_loop(0, n, lambda _, s: s * x, 1.0)  # noqa: E731
    one_by_one = jax.custom_batching.sequential_vmap(jnp.square)
    x, n = jnp.array([2.0, 3.0]), jnp.array([3, 2])
    np.testing.assert_allclose(jax.grad(lambda x: qd.vmap(power)(x, n).sum())(x), [12, 6])
    np.testing.assert_allclose(jax.grad(lambda x: qd.vmap(one_by_one)(x).sum())(x), [4, 6])
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.jit(jax.grad(lambda x: jax.vmap(power)(x, n).sum()))(x)
    with pytest.raises(ValueError, match="Linearization failed"):
        jax.grad(lambda x: jax.vmap(one_by_one)(x).sum())(x)


@pytest.mark.full
def test_integer_adjoints_of_a_rule() -> None:
    """A backward function may give integers for a float: JAX returns them as the gradient, a lane has floats."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda _, g: ((3 * g).astype(jnp.int32),))
    x = jnp.array([1.0, 2.0])
    found = jax.grad(lambda x: qd.vmap(f)(x).sum())(x)
    assert found.dtype == x.dtype
    assert found.tolist() == [3, 3]
    assert jax.grad(lambda x: jax.vmap(f)(x).sum())(x).dtype == jnp.int32


def test_keys_of_other_kinds_are_refused() -> None:
    """Under `jax.vmap` only the first `rbg` key draws what it draws alone."""
    with pytest.raises(qd.UnsupportedError, match="threefry"):
        qd.vmap(lambda s: jax.random.uniform(jax.random.key(s, impl="rbg")))(jnp.arange(2, dtype=jnp.uint32))


def test_the_gradient_of_complex_maxima() -> None:
    """Equal ones share it in jax 0.10.2; its rule compares complex numbers, which later releases refuse."""
    z = jnp.array([1 + 2j, 1 + 2j]), jnp.array([1 + 2j, 1 + 1j])
    for mapped in (qd.vmap, jax.vmap):
        slopes = jax.grad(lambda *z, mapped=mapped: mapped(lambda a, b: jnp.maximum(a, b).real)(*z).sum(), (0, 1))
        if jax.__version_info__ >= (0, 12):
            with pytest.raises(TypeError, match="gt does not accept dtype complex64"):
                slopes(*z)
        elif jax.__version_info__ < (0, 11):
            np.testing.assert_array_equal(slopes(*z), [[0.5, 1], [0.5, 0]])


@pytest.mark.parametrize("dtype", [jnp.int64, jnp.float64, jnp.complex128])
def test_wide_arrays_outside_of_their_mode(dtype: Any) -> None:
    """JAX cuts them at the first operation; we refuse them by name."""
    with jax.enable_x64(True):
        x = jnp.array([2**40, 2**41 + 1], dtype)
    with pytest.warns(UserWarning, match="truncated"):
        assert jax.jit(jax.vmap(lambda x: x + 0))(x).dtype.itemsize == x.dtype.itemsize // 2
    for f in (qd.vmap(lambda x: x + 0), of_bodies(lambda x: x + 0)):
        with pytest.raises(qd.TraceTypeError, match="at most 32 bits outside of the x64 mode"):
            f(x)


def test_the_page_has_the_answers() -> None:
    assert section() in PATH.read_text(), "run python -m tests.answers"
