"""Arguments for random programs: a function of the program, a kind and a seed, so that a failure is kept by name.

Kinds: `plain` are small multiples of 1/8 (sums and products of a few are exact), `extreme` the ends of each type,
`special` puts NaN, infinities, both zeros and denormals between plain values, `bits` are random bit patterns.
"""

import zlib

import ml_dtypes
import numpy as np

from qdtrace.ir.program import Program, ref_type
from qdtrace.ir.types import DType

KINDS = ("plain", "extreme", "special", "bits")
SIZES = (0, 1, 4, 15, 16, 17, 31, 33)
"""Lengths around the widths of vectors, none, one and a few."""


def arguments(program: Program, kind: str, seed: int) -> list[np.ndarray]:
    """One array a parameter."""
    out = []
    for position, param in enumerate(program.params):
        rng = np.random.default_rng([zlib.crc32(kind.encode()), seed, position])
        kind_of_ref = ref_type(param)
        flat = elements(rng, kind_of_ref.dtype, kind, kind_of_ref.size)
        out.append(flat.reshape(kind_of_ref.shape))
    return out


def elements(rng: np.random.Generator, dtype: DType, kind: str, size: int) -> np.ndarray:
    """Random values of a dtype."""
    if dtype.value == "bool":
        return rng.integers(0, 2, size).astype(np.bool_)
    match kind:
        case "plain":
            return plain(rng, dtype, size)
        case "extreme":
            return rng.choice(extremes(dtype), size)
        case "special":
            return np.where(rng.random(size) < 0.4, rng.choice(specials(dtype), size), plain(rng, dtype, size))
        case "bits":
            return rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype.numpy)
    raise ValueError(f"unknown kind of inputs {kind!r}")


def plain(rng: np.random.Generator, dtype: DType, size: int) -> np.ndarray:
    """Small values; floats are multiples of 1/8 between -8 and 8."""
    if dtype.is_float:
        return (rng.integers(-64, 65, size) / 8).astype(dtype.numpy)
    return rng.integers(-9 if dtype.is_signed else 0, 10, size).astype(dtype.numpy)


def extremes(dtype: DType) -> np.ndarray:
    """The ends of a type and what is next to them."""
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        return np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype.numpy)

    info = ml_dtypes.finfo(dtype.numpy)
    ends = [float(v) for v in (info.max, info.tiny, info.smallest_subnormal, info.eps)]
    values = [*ends, *(-v for v in ends), 1.0, 2.0**31, -(2.0**31), 2.0**63, 0.0, -0.0]
    with np.errstate(over="ignore"):
        return np.array(values).astype(dtype.numpy)


def specials(dtype: DType) -> np.ndarray:
    """Values with rules of their own."""
    if not dtype.is_float:
        return extremes(dtype)

    small = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)
    return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, small, -small, 0.5, -2.5]).astype(dtype.numpy)
