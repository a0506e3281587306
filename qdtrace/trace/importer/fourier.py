"""Fourier transforms of up to 256 points along an axis: short ones are written out, others are loops of butterflies.

Both work on real and imaginary parts. The length is taken apart into factors 4, 2, 3, 5, ...; a large prime factor is a
sum over its points.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import UnsupportedError
from qdtrace.trace.importer.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Sequence

    Parts = tuple[Any, Any]

LONGEST = 256
"""Most points along an axis."""
WRITTEN_OUT = 16
"""Transforms of at most this many points have no loops; nor have factors of at most this many."""


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
    parts: Parts = (x, jnp.zeros_like(x)) if kind == "RFFT" else (x.real, x.imag)
    inverse = kind in ("IFFT", "IRFFT")
    if kind == "RFFT":
        parts = _along(parts, axes[-1], False)
        parts = _each(parts, lambda p: lax.slice_in_dim(p, 0, fft_lengths[-1] // 2 + 1, axis=axes[-1]))
        axes = axes[:-1]
    for axis in axes[:-1] if kind == "IRFFT" else axes:
        parts = _along(parts, axis, inverse)
    if kind == "IRFFT":
        return _along(_mirrored(parts, fft_lengths[-1]), axes[-1], True)[0]
    return lax.complex(*parts)


def _each(parts: Parts, fn: Any) -> Parts:
    return fn(parts[0]), fn(parts[1])


def _mirrored(parts: Parts, n: int) -> Parts:
    """Returns the whole spectrum of a real signal from its first half; drops imaginary parts that cannot be."""
    re, im = _each(parts, lambda p: p[..., : n // 2 + 1])
    middle = np.ones(n // 2 + 1, bool)
    middle[0] = False
    if n % 2 == 0:
        middle[-1] = False
    im = jnp.where(middle, im, 0)
    rest = slice(1, (n + 1) // 2)
    return (
        jnp.concatenate([re, re[..., rest][..., ::-1]], -1),
        jnp.concatenate([im, -im[..., rest][..., ::-1]], -1),
    )


def _along(parts: Parts, axis: int, inverse: bool) -> Parts:
    """Transforms one axis; an inverse transform exchanges real and imaginary parts, twice, and divides."""
    n = parts[0].shape[axis]
    if n == 0:
        return parts
    re, im = _each(parts, lambda p: jnp.moveaxis(p, axis, -1))
    if inverse:
        re, im = im, re
    if n <= WRITTEN_OUT:
        re, im = _written_out(re, im)
    else:
        rows = (re.reshape(-1, n), im.reshape(-1, n))
        if rows[0].shape[0] == 1:
            out = _each(_loops(rows[0][0], rows[1][0]), lambda p: p[None])
        else:
            out = lax.map(lambda row: _loops(*row), rows)
        re, im = _each(out, lambda p: p.reshape(re.shape))
    if inverse:
        scale = np.asarray(1 / n, re.dtype)
        re, im = im * scale, re * scale
    return _each((re, im), lambda p: jnp.moveaxis(p, -1, axis))


@functools.cache
def _factors(n: int) -> tuple[int, ...]:
    out: list[int] = []
    for p in (4, 2, 3, *range(5, n + 1, 2)):
        while n % p == 0:
            out.append(p)
            n //= p
    return tuple(out)


def _roots(n: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the parts of exp(-2 pi i k / n), exact at the axes."""
    k = np.arange(n)
    real, imag = np.cos(2 * np.pi * k / n), -np.sin(2 * np.pi * k / n)
    for at in range(4):
        if (at * n) % 4 == 0:
            real[at * n // 4], imag[at * n // 4] = ((1, 0), (0, -1), (-1, 0), (0, 1))[at]
    return real.astype(dtype), imag.astype(dtype)


def _times(a: Parts, real: Any, imag: Any) -> Parts:
    return a[0] * real - a[1] * imag, a[0] * imag + a[1] * real


def _plus(a: Parts, b: Parts) -> Parts:
    return a[0] + b[0], a[1] + b[1]


def _minus(a: Parts, b: Parts) -> Parts:
    return a[0] - b[0], a[1] - b[1]


def _butterfly(x: Sequence[Parts], dtype: Any) -> list[Parts]:
    """Returns the transform of a few points, written out."""
    p = len(x)
    if p == 2:
        return [_plus(*x), _minus(*x)]
    if p == 4:
        even, odd = (_plus(x[0], x[2]), _minus(x[0], x[2])), (_plus(x[1], x[3]), _minus(x[1], x[3]))
        turned = (odd[1][1], -odd[1][0])
        return [_plus(even[0], odd[0]), _plus(even[1], turned), _minus(even[0], odd[0]), _minus(even[1], turned)]
    real, imag = _roots(p, dtype)
    out = [functools.reduce(_plus, x)]
    # points j and p - j share their products
    sums = [_plus(x[j], x[p - j]) for j in range(1, (p + 1) // 2)]
    differences = [_minus(x[j], x[p - j]) for j in range(1, (p + 1) // 2)]
    half: list[tuple[Parts, Parts]] = []
    for k in range(1, (p + 1) // 2):
        cosines, sines = x[0], None
        for j, (s, d) in enumerate(zip(sums, differences, strict=True), 1):
            c, w = real[j * k % p], imag[j * k % p]
            cosines = (cosines[0] + c * s[0], cosines[1] + c * s[1])
            sines = (w * d[0], w * d[1]) if sines is None else (sines[0] + w * d[0], sines[1] + w * d[1])
        assert sines is not None
        half.append((cosines, (-sines[1], sines[0])))
    return [*out, *(_plus(a, b) for a, b in half), *(_minus(a, b) for a, b in reversed(half))]


def _written_out(re: Any, im: Any) -> Parts:
    """Transforms the last axis, written out; decimation in time."""
    n = re.shape[-1]
    if n == 1:
        return re, im
    points = [(re[..., j], im[..., j]) for j in range(n)]
    out = _recurse(points, re.dtype)
    return jnp.stack([v[0] for v in out], -1), jnp.stack([v[1] for v in out], -1)


def _recurse(points: list[Parts], dtype: Any) -> list[Parts]:
    n = len(points)
    if n == 1:
        return points
    p = _factors(n)[0]
    m = n // p
    real, imag = _roots(n, dtype)
    inner = [_recurse(points[j::p], dtype) for j in range(p)]
    out: list[Any] = [None] * n
    for k in range(m):
        turned = [_times(inner[j][k], real[j * k], imag[j * k]) if j * k else inner[j][k] for j in range(p)]
        for r, v in enumerate(_butterfly(turned, dtype)):
            out[k + r * m] = v
    return out


def _loops(re: Any, im: Any) -> Parts:
    """Passes over memory once a factor; then entry (k, s) has frequency k of the points s, s + rest, ..."""
    n, done = re.shape[0], 1
    real, imag = (jnp.asarray(t) for t in _roots(n, re.dtype))
    for p in _factors(n):
        re, im = _pass(re, im, p, done, real, imag)
        done *= p
    return re, im


def _pass(re: Any, im: Any, p: int, done: int, real: Any, imag: Any) -> Parts:
    n = re.shape[0]
    before, rest = n // done, n // (done * p)

    def group(k: Any, out: Parts) -> Parts:
        def one(s: Any, out: Parts) -> Parts:
            def point(j: Any) -> Parts:
                at = k * before + s + j * rest
                value = (re[at], im[at])
                return value if done == 1 else _times(value, real[j * k * rest], imag[j * k * rest])

            def put(r: Any, value: Parts, out: Parts) -> Parts:
                to = (k + done * r) * rest + s
                return out[0].at[to].set(value[0]), out[1].at[to].set(value[1])

            if p > WRITTEN_OUT:
                return lax.fori_loop(0, p, lambda r, o: put(r, _sum(point, r, p, n // p, real, imag), o), out)
            for r, value in enumerate(_butterfly([point(j) for j in range(p)], re.dtype)):
                out = put(r, value, out)
            return out

        return lax.fori_loop(0, rest, one, out)

    return lax.fori_loop(0, done, group, (jnp.zeros_like(re), jnp.zeros_like(im)))


def _sum(point: Any, r: Any, p: int, stride: int, real: Any, imag: Any) -> Parts:
    """Returns frequency r of p points; sums of blocks keep the rounding errors of a long sum apart."""
    block = 16

    def of_block(b: Any, total: Parts) -> Parts:
        def add(j: Any, total: Parts) -> Parts:
            at = (r * j) % p * stride
            return _plus(total, _times(point(j), real[at], imag[at]))

        part = lax.fori_loop(b * block, jnp.minimum((b + 1) * block, p), add, zero)
        return _plus(total, part)

    zero: Parts = (jnp.zeros((), real.dtype), jnp.zeros((), real.dtype))
    return lax.fori_loop(0, -(-p // block), of_block, zero)
