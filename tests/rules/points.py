"""Values for the operands of drawn programs: generic ones, and points where functions or slopes are special."""

import math
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool", *COMPLEX)
TIES = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5)
"""Zeros, poles and ends of domains; few, so that elements of one row are often equal."""


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name, `bfloat16` too."""
    return np.dtype(getattr(ml_dtypes, name, name))


def info(dtype: Any) -> Any:
    """Limits of a float dtype, or of the parts of a complex one."""
    dtype = np.dtype(dtype)
    return ml_dtypes.finfo(f"f{dtype.itemsize // 2}" if dtype.kind == "c" else dtype)


def is_inexact(dtype: Any) -> bool:
    """Whether arrays of this dtype have derivatives."""
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))


def _extremes(dtype: Any) -> list[float]:
    limits = info(dtype)
    # a product of a few large numbers is finite: where one overflows, roundings decide
    small, large = float(limits.smallest_subnormal) * 4, float(limits.max) ** 0.125
    return [np.inf, -np.inf, np.nan, small, -small, large, -large]


def _special_rows(rng: np.random.Generator, x: np.ndarray, chosen: Callable[[int], np.ndarray]) -> None:
    """Puts special points into half of the elements of every third row, and ties into the rows behind them."""
    if not x.size:
        return
    flat = x.reshape(len(x), -1)
    for row in range(len(flat)):
        if row % 3:
            share = 0.5 if row % 3 == 1 else 0.9
            at = rng.random(flat.shape[1]) < share if flat.shape[1] > 1 else np.ones(1, bool)
            flat[row, at] = chosen(int(np.count_nonzero(at)))


def anything(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, *, extreme: bool) -> np.ndarray:
    """Numbers of every kind; infinities, NaN, subnormal and very large ones where `extreme` is set."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        x = rng.integers(-9 if dtype.kind == "i" else 0, 10, shape).astype(dtype)
        if extreme:
            limits = np.iinfo(dtype)
            _special_rows(rng, x, lambda n: rng.choice(np.array([limits.min, limits.max, 0, 1], dtype), n))
        return x
    if dtype.kind == "c":
        return _complex(rng, shape, dtype, extreme=extreme)
    x = rng.uniform(-2, 2, shape).astype(dtype)
    points = [*TIES, *(_extremes(dtype) if extreme else ())]
    _special_rows(rng, x, lambda n: rng.choice(np.array(points), n).astype(dtype))
    return x


def _complex(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, *, extreme: bool) -> np.ndarray:
    """Axes with both signs of zero, the diagonals, the branch points, zero; no infinite parts (docs/coverage.md)."""
    x = (rng.uniform(-2, 2, shape) + 1j * rng.uniform(-2, 2, shape)).astype(dtype)
    finite = [x for x in _extremes(dtype) if np.isfinite(x)]
    parts = [*TIES, -2.0, 0.75, -0.75, *(finite if extreme else ())]

    def chosen(n: int) -> np.ndarray:
        real, imag = rng.choice(parts, n), rng.choice(parts, n)
        way = rng.integers(0, 4, n)
        imag = np.where(way == 0, real, np.where(way == 1, -real, np.where(way == 2, imag * 0.0, imag)))
        out = np.empty(n, dtype)
        out.real, out.imag = real, imag
        return out

    with np.errstate(invalid="ignore"):
        _special_rows(rng, x, chosen)
    return x


Points = Callable[..., np.ndarray]


def between(low: float, high: float) -> Points:
    """Numbers of an interval, integers without the upper end; both parts of complex ones."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, *, extreme: bool) -> np.ndarray:
        if dtype.kind in "iu":
            first = math.floor(low)
            return rng.integers(first, max(math.ceil(high), first + 1), shape).astype(dtype)
        x: Any = rng.uniform(low, high, shape)
        return (x + 1j * rng.uniform(low, high, shape) if dtype.kind == "c" else x).astype(dtype)

    return draw


def well_conditioned(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, *, extreme: bool) -> np.ndarray:
    """Matrices with a dominant diagonal of values that are apart."""
    x = between(-0.2, 0.2)(rng, shape, np.dtype("c16" if dtype.kind == "c" else "f8"), extreme=False)
    k = np.arange(min(shape[-2:]))
    x[..., k, k] += 1.0 + 0.5 * k
    return x.astype(dtype)


def definite(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, *, extreme: bool) -> np.ndarray:
    """Positive definite matrices, equal to their conjugate transposes."""
    x = well_conditioned(rng, shape, np.dtype("c16" if dtype.kind == "c" else "f8"), extreme=False)
    return (x + np.conj(np.swapaxes(x, -1, -2))).astype(dtype)


def upper(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, *, extreme: bool) -> np.ndarray:
    """Upper triangular matrices with a dominant diagonal."""
    return np.triu(well_conditioned(rng, shape, dtype, extreme=False))
