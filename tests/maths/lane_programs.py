"""Ten programs of one lane with two parameters each, in which roundings of many steps widen."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

NORMAL = np.random.default_rng(9).normal(size=64)


def iterated(step: Callable[[Any], Any], state: Any, count: int) -> Any:
    """The state after so many steps."""
    return lax.scan(lambda s, _: (step(s), None), state, length=count)[0]


def _rate(x: Any, scale: float) -> Any:
    """x / (1 - exp(-x / scale)), by its series around 0, where the quotient loses all digits in any order."""
    y = x / scale
    near = jnp.abs(y) < 1e-2
    return jnp.where(near, scale * (1 + y / 2 + y * y / 12), x / (1 - jnp.exp(-jnp.where(near, 1.0, y))))


def hodgkin_huxley(current: Any, sodium: Any) -> Any:
    """The potential of a neuron."""

    def step(state: Any) -> Any:
        v, m, h, n = state
        flow = current - sodium * m**3 * h * (v - 50) - 36 * n**4 * (v + 77) - 0.3 * (v + 54.387)
        opened = 0.1 * _rate(v + 40, 10.0), 0.07 * jnp.exp(-(v + 65) / 20), 0.01 * _rate(v + 55, 10.0)
        closed = 4 * jnp.exp(-(v + 65) / 18), 1 / (1 + jnp.exp(-(v + 35) / 10)), 0.125 * jnp.exp(-(v + 65) / 80)
        gates = [g + 0.02 * (a * (1 - g) - b * g) for g, a, b in zip((m, h, n), opened, closed, strict=True)]
        return (v + 0.02 * flow, *gates)

    zero = 0 * current
    return iterated(step, (zero - 65, zero + 0.05, zero + 0.6, zero + 0.32), 300)[0] / 50


def fitzhugh_nagumo(current: Any, a: Any) -> Any:
    """The same, by two variables."""

    def step(state: Any) -> Any:
        v, w = state
        return v + 0.05 * (v - v**3 / 3 - w + current), w + 0.05 * 0.08 * (v + a - 0.8 * w)

    return iterated(step, (0 * a - 1, 0 * a + 1), 400)[0]


def lotka_volterra(a: Any, b: Any) -> Any:
    """Prey after five units of time."""

    def step(state: Any) -> Any:
        x, y = state
        return x + 0.01 * (a * x - b * x * y), y + 0.01 * (0.1 * x * y - 0.4 * y)

    return iterated(step, (0 * a + 10, 0 * a + 5), 500)[0]


def epidemic(beta: Any, gamma: Any) -> Any:
    """Infected of the SIR model."""

    def step(state: Any) -> Any:
        s, i, r = state
        new, gone = beta * s * i / (s + i + r), gamma * i
        return s - 0.1 * new, i + 0.1 * (new - gone), r + 0.1 * gone

    return iterated(step, (0 * beta + 0.99, 0 * beta + 0.01, 0 * beta), 400)[1]


def michaelis_menten(most: Any, half: Any) -> Any:
    """What is left of a substrate, and its product."""

    def step(state: Any) -> Any:
        s, p = state
        rate = most * s / (half + s)
        return s - 0.02 * rate, p + 0.02 * rate - 0.01 * p / (1 + p)

    return sum(iterated(step, (0 * most + 1, 0 * most), 300))


def kepler(e: Any, mean: Any) -> Any:
    """Kepler's equation by Newton's method, and the place on the orbit."""
    u = iterated(lambda u: u - (u - e * jnp.sin(u) - mean) / (1 - e * jnp.cos(u)), mean + e, 10)
    return jnp.sqrt((1 - e) * (1 + e)) * jnp.sin(u) / (1 - e * jnp.cos(u))


def double_pendulum(first: Any, second: Any) -> Any:
    """Angles of a double pendulum."""

    def step(state: Any) -> Any:
        a, b, u, w = state
        cos, sin = jnp.cos(a - b), jnp.sin(a - b)
        scale = 2 - cos * cos
        u_dot = (-9.81 * (2 * jnp.sin(a) - jnp.sin(b) * cos) - sin * (w * w + u * u * cos)) / scale
        w_dot = (2 * 9.81 * (jnp.sin(a) * cos - jnp.sin(b)) + sin * (2 * u * u + w * w * cos)) / scale
        u, w = u + 0.005 * u_dot, w + 0.005 * w_dot
        return a + 0.005 * u, b + 0.005 * w, u, w

    a, b, *_ = iterated(step, (first, second, 0 * first, 0 * first), 200)
    return a + 0.5 * b


def logistic_growth(rate: Any, capacity: Any) -> Any:
    """Ricker's model."""
    return iterated(lambda x: x * jnp.exp(0.1 * rate * (1 - x / capacity)), 0 * rate + 0.05, 60)


def softmax_chain(t: Any, b: Any) -> Any:
    """Sums of exponentials, with their logarithms, again and again."""

    def step(state: Any) -> Any:
        x, y, z = state
        most = jnp.maximum(jnp.maximum(x, y), z)
        total = most + jnp.log(jnp.exp(x - most) + jnp.exp(y - most) + jnp.exp(z - most))
        return t * (total - y) + b, jnp.exp(x - total) * 2 - z * 0.5, jnp.log1p(jnp.exp(y)) - total * 0.3

    return sum(iterated(step, (t, b, t - b), 60))


def black_scholes(volatility: Any, rate: Any) -> Any:
    """Mean of a smooth payoff along a path."""

    def step(state: Any, z: Any) -> Any:
        price, total = state
        price = price * jnp.exp((rate - 0.5 * volatility * volatility) * 0.02 + volatility * jnp.sqrt(0.02) * z)
        return (price, total + jnp.log1p(jnp.exp(4 * (price - 1)))), None

    path = jnp.asarray(NORMAL, volatility.dtype)
    (_, total), _ = lax.scan(step, (0 * rate + 1, 0 * rate), path)
    return total / len(NORMAL) * jnp.exp(-rate)


PROGRAMS = {
    hodgkin_huxley: ((4, 12), (100, 130)),
    fitzhugh_nagumo: ((0.2, 0.6), (0.5, 0.9)),
    lotka_volterra: ((0.8, 1.2), (0.3, 0.5)),
    epidemic: ((0.3, 0.6), (0.05, 0.2)),
    michaelis_menten: ((0.5, 1.5), (0.3, 1.0)),
    kepler: ((0.1, 0.7), (0.3, 2.8)),
    double_pendulum: ((0.2, 1.2), (0.2, 1.2)),
    logistic_growth: ((0.5, 1.5), (0.8, 1.6)),
    softmax_chain: ((0.2, 0.9), (-0.5, 0.5)),
    black_scholes: ((0.1, 0.4), (0.0, 0.1)),
}
"""Each with the ranges of its parameters."""
