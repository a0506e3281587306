"""Special functions without a graph primitive, as jnp functions: power series near zero, asymptotic series far out."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.trace.importer.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Sequence


def _horner(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluates a polynomial, coefficients from the constant term up."""
    total = jnp.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


@functools.cache
def _bessel_series(order: int, terms: int) -> tuple[float, ...]:
    """Returns coefficients of I_n(x) / (x/2)^n in powers of (x/2)^2 (Abramowitz and Stegun 9.6.10)."""
    return tuple(1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(terms))


@functools.cache
def _bessel_asymptotic(order: int, terms: int) -> tuple[float, ...]:
    """Returns coefficients of I_n(x) exp(-x) sqrt(2 pi x) in powers of 1/x (Abramowitz and Stegun 9.7.1)."""
    out, term = [1.0], 1.0
    for k in range(1, terms):
        term *= -(4.0 * order * order - (2 * k - 1) ** 2) / (8.0 * k)
        out.append(term)
    return tuple(out)


def _scaled_bessel(order: int, x: Any) -> Any:
    """Returns exp(-|x|) I_n(x); the series meet where both are exact to the last bits."""
    double = jnp.finfo(x.dtype).bits == 64
    border, terms, far_terms = (22.0, 72, 24) if double else (10.0, 34, 14)
    size = jnp.abs(x)
    near = jnp.minimum(size, border)
    half = 0.5 * near
    series = _horner(_bessel_series(order, terms), half * half) * jnp.exp(-near)
    if order == 1:
        series = series * half
    far = jnp.maximum(size, border)
    # a product under the root would overflow where the function does not vanish yet
    asymptotic = _horner(_bessel_asymptotic(order, far_terms), 1.0 / far) * (2 * math.pi) ** -0.5 / jnp.sqrt(far)
    value = jnp.where(size <= border, series, asymptotic)
    return jnp.copysign(value, x) if order == 1 else value


@decomposition("bessel_i0e", of_elements=True)
def bessel_i0e(x: Any) -> Any:
    """Returns exp(-|x|) I_0(x)."""
    return _scaled_bessel(0, x)


@decomposition("bessel_i1e", of_elements=True)
def bessel_i1e(x: Any) -> Any:
    """Returns exp(-|x|) I_1(x)."""
    return _scaled_bessel(1, x)


@decomposition("one_minus_square", of_elements=True)
def one_minus_square(x: Any) -> Any:
    """Returns 1 - x^2 without cancellation near 1."""
    return (1 + x) * (1 - x)
