"""Fourier transforms of one lane against NumPy in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.importer.harness import check, imported

RNG = np.random.default_rng(11)
WRITTEN_OUT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16]
LOOPS = [17, 20, 30, 32, 121]


def points(n: int, dtype=np.complex64) -> np.ndarray:
    return (RNG.normal(size=(2, n)) + 1j * RNG.normal(size=(2, n))).astype(dtype)


def close(got, want, dtype):
    """The error of a fast transform grows with log n: two roundings of the norm cover 256 points."""
    assert np.linalg.norm(got - want) <= 2 * np.finfo(dtype).eps * max(np.linalg.norm(want), 1e-30)


@pytest.mark.parametrize("n", WRITTEN_OUT + LOOPS)
def test_complex(n):
    z = points(n)
    forward, back = imported(lambda z: (jnp.fft.fft(z), jnp.fft.ifft(z)), z)(z)
    close(forward, np.fft.fft(z.astype(complex)), z.dtype)
    close(back, np.fft.ifft(z.astype(complex)), z.dtype)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 18])
def test_real(n):
    x, half = points(n).real, points(n // 2 + 1)
    forward, back = imported(lambda x, h: (jnp.fft.rfft(x), jnp.fft.irfft(h, n)), x, half)(x, half)
    close(forward, np.fft.rfft(x.astype(float)), x.dtype)
    close(back, np.fft.irfft(half.astype(complex), n), x.dtype)


def test_a_power_of_two_and_a_prime_in_double_precision():
    with jax.enable_x64(True):
        for n in (64, 37):
            z = points(n, np.complex128)
            (got,) = imported(jnp.fft.fft, z)(z)
            close(got, np.fft.fft(z.astype(np.clongdouble)), z.dtype)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2"])
def test_two_axes(name):
    z = np.stack([points(6), points(6), points(6)], 1)
    check(getattr(jnp.fft, name), z.real if name == "rfft2" else z)


def test_rows_of_a_long_axis():
    z = np.stack([points(18), points(18)], 1)
    check(jnp.fft.fft, z)


def test_length_and_axis():
    z = np.stack([points(3), points(3), points(3), points(3)], 1)
    check(lambda z: (jnp.fft.fft(z, 5, axis=0), jnp.fft.fftshift(z), jnp.fft.hfft(z[0], 4)), z)


def test_long_transforms_are_loops():
    z = points(64)
    assert imported(jnp.fft.fft, z).count() < 800  # 6 * 64 butterflies of ten operations written out


def test_derivatives():
    check(jax.grad(lambda x: jnp.sum(jnp.abs(jnp.fft.fft(x)) ** 4)), points(5).real, rtol=1e-4)
