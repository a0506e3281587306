"""Zeros and their signs, infinities and NaN come out as in JAX, with `fast_math` too: it may change roundings only.

JAX is run on the CPU, operation by operation: compiled as a whole, XLA itself simplifies x + 0.0 to x, and on a GPU it
rounds the operands of products of matrices. Numbers below the smallest
normal one count as zeros: both flush them, but not in the same operations. NaN is NaN, whatever its bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.special_functions import BINARY, UNARY, bound

NEAR_ZERO = {"lgamma", "logaddexp"}
"""JAX's results are not exact where these are zero."""
CHUNK = 40
"""Functions compiled together."""


def values(dtype: Any, ordinary: tuple[float, ...] = (0.5, 2.0, 3.0, 1.7, 1e-3, 100.5, 1e10)) -> np.ndarray:
    info = np.finfo(dtype)
    positive = [0.0, 1.0, np.inf, float(info.max), float(info.tiny), *ordinary]
    return np.array([*positive, *(-v for v in positive), np.nan], dtype)


def operands(dtype: Any, arity: int) -> list[np.ndarray]:
    """Every combination of special values."""
    row = values(dtype) if arity < 3 else values(dtype, (2.0,))
    return [a.ravel() for a in np.meshgrid(*[row] * arity)]


def same(got: Any, want: Any, near_zero: bool) -> np.ndarray:
    """Which elements are of one class (sign, zero, infinity, NaN) and near each other."""
    a, b = np.asarray(got), np.asarray(want)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if jnp.iscomplexobj(a):
        return same(a.real, b.real, near_zero) & same(a.imag, b.imag, near_zero)
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return a == b
    wide = a.dtype.itemsize == 8
    smallest = float(jnp.finfo(a.dtype).tiny) if a.dtype.itemsize > 2 else 0.0
    a, b = (np.where(np.abs(v) < 2 * smallest, np.copysign(0.0, v), v) for v in (a.astype(float), b.astype(float)))
    both = np.isnan(a) & np.isnan(b)
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
        near = np.isfinite(a) & np.isfinite(b) & (np.signbit(a) == np.signbit(b))
        near &= apart <= (1e-11 if wide else 1e-2 if np.asarray(got).dtype.itemsize == 2 else 1e-4) * np.abs(b)
        noise = (apart <= (1e-13 if wide else 1e-6)) & ((a != 0) & (b != 0) | near_zero)
    return both | equal | near | noise


def check(table: dict[str, Any], dtype: Any, arity: int) -> None:
    """Compares every function of a table, lanes against JAX."""
    args = operands(dtype, arity)
    wrong: list[str] = []
    names = list(table)
    for first in range(0, len(names), CHUNK):
        part = {name: table[name] for name in names[first : first + CHUNK]}
        run = lambda *xs, part=part: {name: f(*xs) for name, f in part.items()}  # noqa: E731
        got = qd.vmap(run)(*args)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            want = jax.vmap(run)(*args)
        for name in part:
            leaves = zip(jax.tree.leaves(got[name]), jax.tree.leaves(want[name]), strict=True)
            for one, other in leaves:
                bad = ~same(one, other, name in NEAR_ZERO).reshape(len(args[0]), -1).all(1)
                if name == "digamma":  # at its pole at 0 NaN in some releases of JAX, as here, -inf in others
                    bad &= args[0] != 0
                wrong += [
                    f"{name} at {[float(a[k]) for a in args]}: {np.asarray(one)[k]}, in JAX {np.asarray(other)[k]}"
                    for k in np.flatnonzero(bad)[:3]
                ]
    assert not wrong, "\n".join(wrong)


def run_all(dtype: Any, fast_math: bool) -> None:
    with qd.options(fast_math=fast_math, array_mapping="lanes"):  # a GPU's XLA gives -0.0 for the sum of two of them
        check({**UNARY, **bound(dtype, 1)}, dtype, 1)
        check({**BINARY, **bound(dtype, 2)}, dtype, 2)
        check(bound(dtype, 3), dtype, 3)


@pytest.mark.full
def test_single_precision() -> None:
    run_all(jnp.float32, fast_math=True)


@pytest.mark.slow
@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["f32", "f64"])
def test_both_precisions(dtype: Any, fast_math: bool) -> None:
    with jax.enable_x64(dtype == jnp.float64):
        run_all(dtype, fast_math)


@pytest.mark.full
def test_primitives_are_found_by_themselves() -> None:
    assert {"neg", "sin", "erf_inv", "floor", "is_finite"} <= set(bound(jnp.float32, 1))
    assert {"add", "pow", "rem", "nextafter", "lt", "atan2"} <= set(bound(jnp.float32, 2))
    assert "clamp" in bound(jnp.float32, 3)


def test_a_lost_sign_is_noticed() -> None:
    zero = np.zeros(1, np.float32)
    assert not same(zero, -zero, False).any()
    assert not same(np.float32([np.inf]), np.float32([np.nan]), False).any()
    assert same(np.float32([1.0]), np.float32([1.00001]), False).all()


@pytest.mark.full
def test_small_numbers_of_f16() -> None:
    """Below 6e-5 they are subnormal in f16, and normal in f32, which computes them: nothing takes them for zeros."""
    tiny = np.float16([6e-8, 1e-6, 3e-5, 5.9e-5, -2e-5])
    x, y = (a.ravel() for a in np.meshgrid(tiny, np.append(tiny, np.float16([1e-4, 3e-3, 0.25, -2.0]))))
    operations = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "product of larger ones": lambda a, b: (a * 1000) * b,
        "max": jnp.maximum,
        "abs": lambda a, b: abs(a),
        "neg": lambda a, b: -a,
        "select": lambda a, b: jnp.where(a < b, a, b),
        "f32": lambda a, b: a.astype(jnp.float32).astype(jnp.float16),
    }

    @qd.jit
    def all_of(x, y):
        out = qd.empty((len(operations), x.shape[0]), x.dtype)
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            for k, f in enumerate(operations.values()):
                out[k, i] = f(x[i], y[i])
        for i in qd.range(4):
            total[()] += x[i]
        return out, total

    got, total = all_of(x, y)
    for name, f, row in zip(operations, operations.values(), got, strict=True):
        np.testing.assert_array_equal(row, np.asarray(f(jnp.asarray(x), jnp.asarray(y))), err_msg=name)
    assert float(total) == pytest.approx(float(x[:4].astype(np.float32).sum()), rel=1e-2)
