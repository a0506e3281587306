"""Incomplete gamma and beta functions, samples of the gamma distribution, polygamma and Hurwitz zeta.

The first kinds have while loops that JAX writes down itself: a lane runs the same steps as XLA does, for as long as it
needs them. Zeta is a sum up to an argument from which the Euler-Maclaurin expansion holds.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from qdtrace.trace.importer.registry import decomposition, formula

BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138,
    -236364091 / 2730,
)  # fmt: skip
"""Bernoulli numbers B2, B4, ..."""
_STEPS = 2048
"""Most terms that are summed before; a zeta function at arguments below minus this is NaN."""


def _wide(*operands: Any) -> tuple[Any, list[Any]]:
    """Returns the dtype of the result, and operands of one shape; half precision is computed in f32."""
    dtype = jnp.result_type(*operands)
    wide = dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)
    return dtype, jnp.broadcast_arrays(*(x.astype(wide) for x in operands))


def _elementwise(name: str) -> None:
    """Registers a formula of float arrays."""

    @decomposition(name, of_elements=True)
    def run(*operands: Any) -> Any:
        dtype, arrays = _wide(*operands)
        return formula(name)(*arrays, dtype=arrays[0].dtype).astype(dtype)


for _name in ("igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta"):
    _elementwise(_name)


@decomposition("random_gamma")
def random_gamma(key: Any, a: Any, *, log_space: bool) -> Any:
    """Draws samples; one loop of rejections an element."""
    return formula("random_gamma")(key, a, log_space=log_space)


@decomposition("zeta", of_elements=True)
def zeta(x: Any, q: Any) -> Any:
    """Returns the sum of (q + k)^-x over k >= 0, for x > 1."""
    dtype, arrays = _wide(x, q)
    return _zeta(*arrays).astype(dtype)


def _zeta(x: Any, q: Any) -> Any:
    """Adds terms until the expansion behind them has errors below a rounding, or they change nothing."""
    eps = jnp.finfo(x.dtype).eps
    whole_x, whole_q = x == jnp.floor(x), q == jnp.floor(q)
    negative = q <= 0
    pole = negative & whole_q & (q > -jnp.inf)
    undefined = (x < 1) | jnp.isnan(x) | jnp.isnan(q)
    undefined |= negative & (~whole_x | (x == jnp.inf) | (~whole_q & (q < -_STEPS)) | (q == -jnp.inf))
    runs = ~(undefined | pole | (x == 1))
    safe_x, start = jnp.where(runs, x, 2), jnp.where(runs, q, jnp.inf)
    # the ratio of terms of the expansion is ((x + 12) / (2 pi a))^2 at most, and there are twelve
    far = 0.8 * safe_x + 10

    def step(state: Any) -> Any:
        at, total, active = state
        term = jnp.where(active, at**-safe_x, 0)
        total = total + term
        rest = (1 + at / (safe_x - 1)) * term
        at = jnp.where(active, at + 1, at)
        return at, total, active & (at < far) & ((at <= 1) | (rest > 0.25 * eps * total))

    start_state = (start, jnp.zeros_like(start), start < far)
    at, total, _ = lax.while_loop(lambda state: jnp.any(state[2]), step, start_state)
    last = at**-safe_x
    tail = last * at / (safe_x - 1) + 0.5 * last
    factor, power = safe_x, last / at
    for k, number in enumerate(BERNOULLI, 1):
        tail = tail + number / math.factorial(2 * k) * factor * power
        factor = factor * (safe_x + (2 * k - 1)) * (safe_x + 2 * k)
        power = power / (at * at)
    value = jnp.where((at < far) | (last == 0), total, total + tail)
    even = jnp.floor(x / 2) * 2 == x
    value = jnp.where(pole, jnp.where(even, jnp.inf, jnp.nan), value)
    value = jnp.where(undefined, jnp.nan, value)
    return jnp.where(x == 1, jnp.inf, value)


@decomposition("polygamma", of_elements=True)
def polygamma(m: Any, x: Any) -> Any:
    """Returns the m-th derivative of digamma: (-1)^(m+1) m! zeta(m+1, x)."""
    dtype, (m, x) = _wide(m, x)
    odd = jnp.floor(m / 2) * 2 != m
    sign = jnp.where(odd, 1.0, -1.0).astype(x.dtype)
    value = sign * jnp.exp(lax.lgamma(m + 1)) * _zeta(m + 1, x)
    value = jnp.where(m == 0, lax.digamma(x), value)
    return jnp.where((m < 0) | (m != jnp.floor(m)), jnp.nan, value).astype(dtype)
