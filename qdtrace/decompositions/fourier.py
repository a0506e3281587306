"""Fourier transforms of up to 256 points along an axis: short ones are written out, others are two loops over such.

A transform of n = p m points is p of m points, then m of p points (Cooley and Tukey, 1965); of more than 16 points and
a prime number of them it is a sum for each frequency.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import UnsupportedError
from qdtrace.trace.importer.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 256
"""Most points along an axis."""
WRITTEN_OUT = 16
"""Transforms of at most this many points have no loops."""
_RADICES = 8, 7, 6, 5, 4, 3, 2, 11, 13
"""Numbers of points that a loop transforms at a time: the values of more than eight do not fit into registers."""
BLOCK = 16
"""Terms of a sum that are added up by themselves, which keeps the rounding errors of a long sum apart."""


@decomposition("fft")
def fft(x: Any, *, fft_type: Any, fft_lengths: Sequence[int]) -> Any:
    """Transforms the last axes, each by itself."""
    kind = getattr(fft_type, "name", str(fft_type))
    if max(fft_lengths, default=0) > LONGEST:
        raise UnsupportedError(
            f"`fft` in a loop body needs at most {LONGEST} points along an axis, got {max(fft_lengths)}",
            help="compute it outside of the loop",
        )
    axes = range(x.ndim - len(fft_lengths), x.ndim)
    if kind == "RFFT":
        x = _along(lax.complex(x, jnp.zeros_like(x)), axes[-1], inverse=False)[..., : fft_lengths[-1] // 2 + 1]
    for axis in axes[:-1] if kind in ("RFFT", "IRFFT") else axes:
        x = _along(x, axis, inverse=kind in ("IFFT", "IRFFT"))
    if kind == "IRFFT":
        return _along(_mirrored(x, fft_lengths[-1]), axes[-1], inverse=True).real
    return x


def _mirrored(x: Any, n: int) -> Any:
    """Returns the whole spectrum of a real signal from its first half; drops imaginary parts that cannot be."""
    x = x[..., : n // 2 + 1]
    k = np.arange(n // 2 + 1)
    x = lax.complex(x.real, jnp.where((k > 0) & (2 * k != n), x.imag, 0))
    return jnp.concatenate([x, jnp.conj(x[..., 1 : (n + 1) // 2][..., ::-1])], -1)


def _along(x: Any, axis: int, *, inverse: bool) -> Any:
    n = x.shape[axis]
    if n == 0:
        return x
    out = _transformed(jnp.moveaxis(x, axis, -1), inverse)
    return jnp.moveaxis(_scaled(out, 1 / n) if inverse else out, -1, axis)


def _transformed(x: Any, inverse: bool) -> Any:
    """Transforms the last axis."""
    *outer, n = x.shape
    if n <= WRITTEN_OUT:
        return jnp.stack(_written_out([x[..., j] for j in range(n)], inverse), -1)
    p = next((p for p in _RADICES if n % p == 0 and p * p <= n), 1)
    roots = _roots(n, x.dtype, inverse)

    def in_steps(row: Any) -> Any:
        inner = lax.map(lambda points: _transformed(points, inverse), row.reshape(n // p, p).T)
        factors = jnp.asarray(roots[np.outer(np.arange(n // p), np.arange(p))])
        found = lax.map(lambda both: _transformed(both[0] * both[1], inverse), (inner.T, factors))
        return found.T.reshape(n)

    return lax.map(in_steps if p > 1 else lambda row: _summed(row, roots), x.reshape(-1, n)).reshape(*outer, n)


def _roots(n: int, dtype: Any, inverse: bool) -> np.ndarray:
    """Returns exp(-2 pi i k / n), or their conjugates, exact at the axes."""
    k = np.arange(n)
    roots = np.exp((2j if inverse else -2j) * np.pi * k / n)
    return np.where(4 * k % n == 0, np.round(roots), roots).astype(dtype)


def _scaled(x: Any, factor: float) -> Any:
    return lax.complex(x.real * np.asarray(factor, x.real.dtype), x.imag * np.asarray(factor, x.real.dtype))


def _written_out(points: list[Any], inverse: bool) -> list[Any]:
    """Returns the transform of a few points; decimation in time."""
    n = len(points)
    if n == 1:
        return points
    p = next(p for p in (4, 2, *range(3, n + 1, 2)) if n % p == 0)
    roots = _roots(n, points[0].dtype, inverse)
    inner = [_written_out(points[j::p], inverse) for j in range(p)]
    out: list[Any] = [None] * n
    for k in range(n // p):
        turned = [inner[j][k] * roots[j * k] if j * k else inner[j][k] for j in range(p)]
        out[k :: n // p] = _butterfly(turned, inverse)
    return out


def _butterfly(x: list[Any], inverse: bool) -> list[Any]:
    """Returns the transform of 2, 4 or an odd number of points."""
    p = len(x)
    if p == 2:
        return [x[0] + x[1], x[0] - x[1]]
    if p == 4:
        d = x[1] - x[3]
        turned = lax.complex(-d.imag, d.real) if inverse else lax.complex(d.imag, -d.real)
        even, odd, rest = x[0] + x[2], x[1] + x[3], x[0] - x[2]
        return [even + odd, rest + turned, even - odd, rest - turned]
    roots = _roots(p, x[0].dtype, inverse)
    # points j and p - j share their products
    sums = [(j, x[j] + x[p - j]) for j in range(1, (p + 1) // 2)]
    differences = [(j, x[j] - x[p - j]) for j in range(1, (p + 1) // 2)]
    out = [reduce(add, x)]
    other: list[Any] = []
    for k in range(1, (p + 1) // 2):
        cosines = reduce(add, [_scaled(s, roots[j * k % p].real) for j, s in sums], x[0])
        sines = reduce(add, [_scaled(d, roots[j * k % p].imag) for j, d in differences])
        turned = lax.complex(-sines.imag, sines.real)
        out.append(cosines + turned)
        other.insert(0, cosines - turned)
    return out + other


def _summed(x: Any, roots: np.ndarray) -> Any:
    """Transforms points by a sum for each frequency."""
    n, table = x.shape[0], jnp.asarray(roots)

    def frequency(k: Any) -> Any:
        def block(b: Any, total: Any) -> Any:
            part = lambda j, part: part + x[j] * table[j * k % n]  # noqa: E731
            return total + lax.fori_loop(b * BLOCK, jnp.minimum((b + 1) * BLOCK, n), part, jnp.zeros((), x.dtype))

        return lax.fori_loop(0, -(-n // BLOCK), block, jnp.zeros((), x.dtype))

    return lax.map(frequency, jnp.arange(n, dtype=jnp.int32))
