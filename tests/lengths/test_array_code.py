"""Array code of JAX between loops: one program for all lengths, of values and gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests.lengths.array_programs import EXACT, ROUNDED, halved
from tests.lengths.test_any_length import EXACT as WITHOUT_FAST_MATH
from tests.lengths.test_any_length import added, met, same_bits

pytestmark = pytest.mark.cpu
FIRST = (6, 7, 11, 13, 8, 16, 32, 9, 17)  # three are powers of two, by which divisions are products: another program
COMPILED_FOR_EACH = {"bools", "placed", "running extremes", "sum behind", "taken", "updated rows"}
"""Functions without a gradient, or whose gradient is compiled for each length."""
LENGTHS = (10, 15, 20, 64, 66, 97, 1000)


def whole(n: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(n).integers(1, 10, n).astype(np.float32))


def drawn(name: str, count: int) -> Any:
    return np.random.default_rng(len(name)).choice(LENGTHS, count, replace=False).tolist()


@pytest.mark.full
@pytest.mark.sample(6, full=2)
@pytest.mark.parametrize("name", EXACT)
def test_bits_of_values(name: str) -> None:
    f = EXACT[name]
    one, each = (qd.jit(f, options=WITHOUT_FAST_MATH, **own) for own in ({"sizes": "any"}, {}))
    met(one, *((whole(n),) for n in FIRST))
    for n in drawn(name, 3):
        got, work = added(one, whole(n))
        assert (work.programs, work.compiled) == (0, 0)
        same_bits(got, each(whole(n)))


@pytest.mark.full
@pytest.mark.sample(4, full=2)
@pytest.mark.parametrize("name", ROUNDED)
def test_values_with_rounded_sums(name: str) -> None:
    f = ROUNDED[name]
    one, each = qd.jit(f, sizes="any"), qd.jit(f)
    met(one, *((whole(n),) for n in FIRST))
    for n in drawn(name, 2):
        got, work = added(one, whole(n))
        assert (work.programs, work.compiled) == (0, 0)
        np.testing.assert_allclose(got, each(whole(n)), rtol=3e-6, atol=1e-6)  # sums in another order than XLA's


@pytest.mark.full
@pytest.mark.sample(6, full=3)
@pytest.mark.parametrize("name", sorted({*EXACT, *ROUNDED} - COMPILED_FOR_EACH))
def test_gradients(name: str) -> None:
    f = {**EXACT, **ROUNDED}[name]

    def total(x: Any) -> Any:
        parts = [jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x)) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum(parts[1:], parts[0])

    one, each = (jax.grad(qd.jit(total, options=WITHOUT_FAST_MATH, **own)) for own in ({"sizes": "any"}, {}))
    met(one, *((whole(n),) for n in FIRST))
    for n in drawn(name, 2):
        got, work = added(one, whole(n))
        assert (work.programs, work.compiled) == (0, 0)
        np.testing.assert_allclose(got, each(whole(n)), rtol=1e-5, atol=2e-5)  # sums in another order than XLA's


@pytest.mark.parametrize("make", [qd.copy, lambda x: qd.full(x.shape, jnp.sum(x))], ids=["copy", "full"])
def test_gradients_of_memory_beside_other_results(make: Any) -> None:
    def f(x: Any) -> Any:
        b = make(x * 2)
        for i in qd.range(x.shape[0]):
            b[i] *= x[i]
        a = b * 3
        for i in qd.range(x.shape[0]):
            b[i] = 5 * a[x.shape[0] - 1 - i]
        return a, b, qd.copy(a)

    def total(function: Any) -> Any:
        return lambda x: sum((k + 1) * jnp.sum(jnp.sin(y)) for k, y in enumerate(map(jnp.asarray, function(x))))

    one, each = (jax.grad(total(qd.jit(f, options=WITHOUT_FAST_MATH, **own))) for own in ({"sizes": "any"}, {}))
    for n in (*FIRST, 3, 20):
        x = whole(n) / 16
        np.testing.assert_allclose(one(x), each(x), rtol=1e-5, atol=5e-4)  # sums of up to 20 terms near 1000


@pytest.mark.full
def test_mapped_calls() -> None:
    f = EXACT["sum in front"]
    one, each = jax.vmap(qd.jit(f, sizes="any")), jax.vmap(qd.jit(f))
    rows = {n: whole(5 * n).reshape(n, 5) for n in (*FIRST, 3, 20)}
    met(one, *((rows[n],) for n in FIRST))
    for n in (3, 20):
        got, work = added(one, rows[n])
        assert (work.programs, work.compiled) == (0, 0)
        same_bits(got, each(rows[n]))


@pytest.mark.full
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
def test_special_numbers(special: float) -> None:
    def f(x: Any) -> Any:
        y = halved(x)
        return jnp.max(y), jnp.min(y), jnp.argmax(y), jnp.argmin(x), jnp.sum(y), jnp.cumsum(x), jnp.clip(y, -1, 1)

    one, each = (qd.jit(f, options=WITHOUT_FAST_MATH, **own) for own in ({"sizes": "any"}, {}))
    met(one, *((whole(n),) for n in FIRST))
    for n, places in ((20, [4, 17]), (65, list(range(65)))):
        x = jnp.abs(whole(n) % 2).at[jnp.asarray(places)].set(special)
        x = jnp.where(jnp.isinf(x) & (x > 0), -x, x) if special == np.inf else x  # +inf never gets below 1
        got, work = added(one, x)
        assert (work.programs, work.compiled) == (0, 0)
        same_bits(got, each(x))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.int32, jnp.uint8])
def test_dtypes(dtype: Any) -> None:
    def f(x: Any) -> Any:
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = x[i] + x[0]
        return jnp.sum(out), jnp.max(out) + out, out[::-1], out.astype(jnp.float32) / 4

    one, each = (qd.jit(f, options=WITHOUT_FAST_MATH, **own) for own in ({"sizes": "any"}, {}))
    met(one, *((whole(n).astype(dtype),) for n in FIRST))
    for n in (2, 33):
        got, work = added(one, whole(n).astype(dtype))
        assert (work.programs, work.compiled) == (0, 0)
        same_bits(got, each(whole(n).astype(dtype)))


def test_weak_types() -> None:
    def f(x: Any, a: Any) -> Any:
        y = halved(x) * 1
        chosen = jnp.where(y > 0.75, 1, 2.5), jnp.where(y > 0.75, 3, 4), lax.select(y[0] > 0.75, a, a * 2)
        return *chosen, a * 3, jnp.full(x.shape, 7), jnp.cumsum(chosen[1]), chosen[0] + x

    one, each = qd.jit(f, sizes="any"), qd.jit(f)
    kinds = [True, True, True, True, True, False, False]
    for n in (*FIRST, 3, 20):
        got = one(whole(n), 2.0)
        assert [y.weak_type for y in jax.tree.leaves(got)] == kinds
        same_bits(got, each(whole(n), 2.0))


def test_what_has_no_rule_is_said() -> None:
    one = met(qd.jit(lambda x: halved(jnp.sort(x)), sizes="any"), *((whole(n),) for n in FIRST[:3]))
    with pytest.warns(qd.QdWarning, match="`sort` runs outside of its loops"):
        np.testing.assert_array_equal(one(whole(30)), each_halved(np.sort(whole(30))))


def each_halved(x: Any) -> np.ndarray:
    x = np.array(x)
    while (x > 1).any():
        x = np.where(x > 1, x / np.float32(2), x)
    return x


@pytest.mark.full
def test_no_elements_and_one() -> None:
    def f(x: Any) -> Any:
        return jnp.cumsum(x[1:]), jnp.sum(x[1:]), halved(x)

    one = met(qd.jit(f, sizes="any"), *((whole(n),) for n in FIRST))
    for n in (1, 2, 1):  # of one element, no others
        x = np.asarray(whole(n))
        for got, want in zip(one(whole(n)), (np.cumsum(x[1:]), np.sum(x[1:]), each_halved(x)), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.full
def test_one_argument_in_loops_and_array_code() -> None:
    def f(x: Any, y: Any) -> Any:
        scale = jnp.mean(y, 0) + x.sum()
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * scale[0] + y[i, 1]
        return x, y * scale[1]

    one, each = (qd.jit(f, options=WITHOUT_FAST_MATH, **own) for own in ({"sizes": "any"}, {}))
    met(one, *((whole(n), whole(2 * m).reshape(m, 2)) for n, m in zip(FIRST, FIRST, strict=True)))
    got, want = (g(whole(32), whole(64).reshape(32, 2)) for g in (one, each))
    same_bits(got, want)


@pytest.mark.full
def test_the_gradient_of_running_extremes_is_compiled_for_each_length() -> None:
    """JAX's derivative of them has slices with steps, whose code depends on the length."""
    total = lambda x: jnp.sum(jnp.sin(halved(x) + jax.lax.cummax(x)))  # noqa: E731
    one, each = (jax.grad(qd.jit(total, options=WITHOUT_FAST_MATH, **own)) for own in ({"sizes": "any"}, {}))
    met(one, *((whole(n),) for n in FIRST))
    got, work = added(one, whole(10))
    assert work.programs > 0
    np.testing.assert_allclose(got, each(whole(10)), rtol=1e-5, atol=2e-5)  # sums in another order than XLA's


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_places_in_a_dtype_that_holds_no_last_one(dtype: str) -> None:
    def f(x: Any, k: Any) -> Any:
        y, at = x * 2, k.astype(dtype)
        return halved(lax.dynamic_slice(y, (at,), (3,))), halved(x) + y[at]

    one, each = qd.jit(f, sizes="any"), qd.jit(f)
    for n in (6, 7, 11, 13, 130, 257, 40000):
        for k in (0, n // 2, n - 1)[:: 1 if n > 13 else 3]:
            got, want = [g(whole(n), jnp.int32(k)) for g in (one, each)]
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)
