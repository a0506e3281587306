"""Complex functions of zeros, infinities and NaN in each part give numbers, infinities and NaN where JAX does."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

PARTS = (0.0, -0.0, 1.0, -1.0, 2.5, 1e-15, 1e15, np.inf, -np.inf, np.nan)
ONE: dict[str, Callable[..., Any]] = {
    name: getattr(lax, name)
    for name in (
        "neg", "sqrt", "rsqrt", "exp", "exp2", "log", "log1p", "expm1", "abs", "sign", "square", "sin", "cos", "tan",
        "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "logistic", "conj",
    )
}  # fmt: skip
ONE |= {"isfinite": jnp.isfinite, "reciprocal": jnp.reciprocal, "log2": jnp.log2}
ONE |= {f"z**{n}": lambda z, n=n: z**n for n in (-2, -1, 3)}
TWO: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "pow": jnp.power, "eq": jnp.equal,
    "ne": jnp.not_equal, "max": jnp.maximum, "min": jnp.minimum,
}  # fmt: skip
CUT = {"sqrt", "asin", "acos", "atan", "asinh", "acosh", "atanh"}
"""Functions with a branch cut: JAX may take the other side of it, which changes signs of infinities."""
INVERSE = CUT - {"sqrt"}


def ends(x: np.ndarray) -> np.ndarray:
    """Returns the kind of each part: a finite number, an infinity of a sign, or NaN; of integers the value."""
    if np.iscomplexobj(x):
        return np.stack([ends(x.real), ends(x.imag)], -1)
    finite = np.isfinite(x)
    return x.astype(float) if x.dtype.kind != "f" else np.where(finite, 0.0, np.where(finite, 0.0, x))


def differ(name: str, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Returns where one has another kind of end than the other."""
    a, b = (np.abs(ends(x)) if name in CUT else ends(x) for x in (got, want))
    apart = (a != b) & ~(np.isnan(a) & np.isnan(b))
    return apart.any(-1) if apart.ndim > 1 else apart


def may_differ(name: str, *z: np.ndarray) -> np.ndarray:
    """Returns where JAX's own answer is that of a release, of its compiler or a rounding (docs/coverage.md)."""
    parts = np.stack([p for x in z for p in (x.real, x.imag)])
    nan, inf, large = np.isnan(parts).any(0), np.isinf(parts).any(0), np.abs(parts) == 1e15
    if name == "exp2":
        return ~np.isfinite(z[0].real)
    if name in ("log", "log2", "abs"):
        return nan & inf
    if name in INVERSE:
        return nan
    if name == "div":
        return ~np.isfinite(z[0]) & np.isfinite(z[1])
    if name == "pow":
        return large.any(0)
    return np.zeros(z[0].shape, bool)


def drawn(dtype: Any, operands: str) -> tuple[np.ndarray, ...]:
    """Returns all combinations of parts, of `c`omplex and `r`eal operands."""
    numbers = np.array([complex(x, y) for x, y in product(PARTS, repeat=2)], dtype)
    row = {"c": numbers, "r": np.array(PARTS, numbers.real.dtype)}
    return tuple(a.ravel() for a in np.meshgrid(*(row[o] for o in operands), indexing="ij"))


def of_lanes(f: Callable[..., Any], *points: np.ndarray) -> Any:
    return qd.vmap(f)(*points)


def of_bodies(f: Callable[..., Any], *points: np.ndarray) -> Any:
    @qd.jit
    def body(*points: Any) -> Any:
        n = points[0].shape[0]
        shapes = jax.eval_shape(f, *(jax.ShapeDtypeStruct((), x.dtype) for x in points))
        outs = [qd.empty((n,), s.dtype) for s in shapes]
        for i in qd.range(n):
            for out, value in zip(outs, f(*(x[i] for x in points)), strict=True):
                out[i] = value
        return tuple(outs)

    return body(*points)


@pytest.mark.sample(full=6)
@pytest.mark.filterwarnings("ignore:.*(divide by zero|invalid value|overflow).*:RuntimeWarning")
@pytest.mark.parametrize("mapped", [of_lanes, of_bodies])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("operands", ["c", "cc", "cr", "rc"])
@pytest.mark.full
def test_ends_are_those_of_jax(operands: str, dtype: Any, mapped: Callable[..., Any]) -> None:
    table = ONE if len(operands) == 1 else TWO
    with jax.enable_x64(dtype is np.complex128):
        points = drawn(dtype, operands)
        f = lambda *z: tuple(f(*z) for f in table.values())  # noqa: E731
        for name, got, want in zip(table, mapped(f, *points), jax.jit(jax.vmap(f))(*points), strict=True):
            a, b = np.asarray(got), np.asarray(want)
            assert a.dtype == b.dtype
            wrong = np.flatnonzero(differ(name, a, b) & ~may_differ(name, *(p.astype(dtype) for p in points)))
            assert not [(name, *(p[k] for p in points), a[k], b[k]) for k in wrong[:6]]


@pytest.mark.parametrize("operands", ["cc", "cr", "rc"])
def test_zeros_of_arithmetic_have_the_signs_of_jax(operands: str) -> None:
    """They choose the side of a branch cut: `log(-4j / 1j)` is half a turn up, not down."""
    points = drawn(np.complex64, operands)
    near = np.all([np.abs(p) < 9 for p in points], 0)
    points = tuple(p[near] for p in points)
    f = lambda *z: tuple(getattr(jnp, name)(*z) for name in ("add", "subtract", "multiply", "divide"))  # noqa: E731
    for got, want in zip(of_lanes(f, *points), jax.jit(jax.vmap(f))(*points), strict=True):
        for a, b in ((np.asarray(part(got)), np.asarray(part(want))) for part in (np.real, np.imag)):
            none = (a == 0) & (b == 0)
            wrong = np.flatnonzero(none & (np.signbit(a) != np.signbit(b)))
            assert not [([p[k] for p in points], a[k], b[k]) for k in wrong[:6]]
