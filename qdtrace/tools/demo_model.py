"""Lotka-Volterra with an adaptive solver, as one scalar JAX function that the demo evaluates and differentiates.

    hare' = (alpha - beta lynx) hare          lynx' = (delta hare - gamma) lynx

Parameters are six numbers: alpha, beta, gamma, delta and the populations of the first year, in thousands of pelts.
The solver is Runge-Kutta 5(4) of Dormand and Prince (1980) with local extrapolation. Steps end at whole years, where
the counts are. Models differ in their number of steps, so a loop over all of them in lock step pays for the slowest.
"""

from __future__ import annotations

import csv
from importlib import resources
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr, ndtri

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES = ("alpha", "beta", "gamma", "delta", "hare", "lynx")
PRIORS = ((1.0, 0.5), (0.05, 0.05), (1.0, 0.5), (0.05, 0.05))
"""Mean and deviation of the priors of alpha, beta, gamma, delta: normal, truncated at zero (Carpenter 2018)."""
PRIOR_POPULATION = (10.0, 1.0)
"""Median of the populations of the first year, and the deviation of their logarithms."""
CARPENTER = (0.55, 0.028, 0.80, 0.024, 34.0, 5.9)
"""Posterior means. B. Carpenter, "Predator-Prey Population Dynamics: the Lotka-Volterra model in Stan", 2018,
mc-stan.org/users/documentation/case-studies/lotka-volterra-predator-prey.html"""
CARPENTER_80 = ((0.47, 0.63), (0.023, 0.033), (0.69, 0.91), (0.020, 0.029))
"""Central posterior intervals of probability 0.8 of the first four, from the same page."""
HOWARD = (0.55, 0.028, 0.84, 0.026)
"""Estimates of P. Howard, "Modeling Basics", 2009, with another measure of misfit, as quoted by Carpenter."""
RTOL, ATOL = 1e-5, 1e-4
MAX_STEPS = 2000
SMALLEST = 1e-3
"""Populations below a single animal count as one, so that their logarithm is finite."""

# rows of the Butcher tableau; the last row is also the solution of order 5
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
# order 5 less order 4
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def load_counts() -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the years, and the counts of hare and lynx in thousands as rows of two."""
    text = resources.files("qdtrace.data").joinpath("hudson_bay.csv").read_text()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    years = np.array([int(row["Year"]) for row in rows])
    return years, np.array([(float(row["Hare"]), float(row["Lynx"])) for row in rows], np.float32)


def draw_starts(count: int, seed: int) -> NDArray[Any]:
    """Returns logarithms of `count` rows of six parameters, drawn from the priors."""
    rng = np.random.default_rng(seed)
    columns = [m + d * ndtri(rng.uniform(ndtr(-m / d), 1, count)) for m, d in PRIORS]  # truncated at zero
    median, deviation = PRIOR_POPULATION
    populations = np.log(median) + deviation * rng.standard_normal((2, count))
    return np.stack([*np.log(columns), *populations], 1).astype(np.float32)


def rates(hare: Any, lynx: Any, p: Any) -> tuple[Any, Any]:
    """Returns the time derivatives of both populations."""
    return (p[0] - p[1] * lynx) * hare, (p[3] * hare - p[2]) * lynx


def try_step(hare: Any, lynx: Any, h: Any, p: Any) -> tuple[Any, Any, Any]:
    """Returns both populations after a step of length h, and its error in units of the tolerance."""
    slopes = [rates(hare, lynx, p)]
    new_hare, new_lynx = hare, lynx
    for row in _STAGES:
        new_hare = hare + h * sum(a * k[0] for a, k in zip(row, slopes, strict=True) if a)
        new_lynx = lynx + h * sum(a * k[1] for a, k in zip(row, slopes, strict=True) if a)
        slopes.append(rates(new_hare, new_lynx, p))
    errors = []
    for i, (old, new) in enumerate(((hare, new_hare), (lynx, new_lynx))):
        difference = h * sum(e * k[i] for e, k in zip(_ERROR, slopes, strict=True) if e)
        errors.append(jnp.abs(difference) / (ATOL + RTOL * jnp.maximum(jnp.abs(old), jnp.abs(new))))
    return new_hare, new_lynx, jnp.maximum(errors[0], errors[1])


def next_length(h: Any, error: Any) -> Any:
    """Returns the next step length for order 5: h error^(-1/5) with a margin, changed by a factor from 0.2 to 5.

    If a step overflowed, its error is infinite or NaN, and the factor is 0.2.
    """
    factor = 0.9 * jnp.exp(-0.2 * jnp.log(jnp.maximum(error, 1e-6)))
    return h * jnp.where(error < jnp.inf, jnp.clip(factor, 0.2, 5.0), 0.2)


def misfit(p: Any, log_counts: Any) -> tuple[Any, Any]:
    """Returns the sum of squared differences of logarithms over all years and both species, and the steps tried.

    `p` holds six parameters, `log_counts` the logarithms of the counts, one row per year.
    """
    last = log_counts.shape[0] - 1

    def squared(hare: Any, lynx: Any, year: Any) -> Any:
        a = jnp.log(jnp.maximum(hare, SMALLEST)) - log_counts[year, 0]
        b = jnp.log(jnp.maximum(lynx, SMALLEST)) - log_counts[year, 1]
        return a * a + b * b

    def unfinished(state: tuple[Any, ...]) -> Any:
        year, steps = state[4], state[6]
        return (year < last) & (steps < MAX_STEPS)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        hare, lynx, left, h, year, total, steps = state
        reaches = h >= left
        tried = jnp.where(reaches, left, h)
        new_hare, new_lynx, error = try_step(hare, lynx, tried, p)
        accepted = error <= 1.0
        arrived = accepted & reaches
        year = jnp.where(arrived, year + 1, year)
        total = jnp.where(arrived, total + squared(new_hare, new_lynx, year), total)
        hare, lynx = jnp.where(accepted, new_hare, hare), jnp.where(accepted, new_lynx, lynx)
        left = jnp.where(arrived, 1.0, jnp.where(accepted, left - tried, left))
        # a step cut short by a year's end says little about how long the next may be
        h = jnp.where(arrived, jnp.maximum(h, next_length(tried, error)), next_length(tried, error))
        return hare, lynx, left, h, year, total, steps + 1

    one = jnp.ones((), p.dtype)
    first = (p[4], p[5], one, 0.1 * one, jnp.int32(0), squared(p[4], p[5], 0), jnp.int32(0))
    end = jax.lax.while_loop(unfinished, step, first)
    return jnp.where(end[4] == last, end[5], jnp.inf), end[6]


def trajectory(p: NDArray[Any], years: int, per_year: int = 50) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns times and both populations for the figure, by classical Runge-Kutta; `p` is one row, or columns."""
    state = np.array([p[4], p[5]], np.float64)
    h, states = 1.0 / per_year, [state]

    def slope(state: NDArray[Any]) -> NDArray[Any]:
        return np.array(rates(state[0], state[1], p))

    for _ in range(years * per_year):
        k1 = slope(state)
        k2 = slope(state + 0.5 * h * k1)
        k3 = slope(state + 0.5 * h * k2)
        k4 = slope(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(state)
    stacked = np.array(states)
    return np.arange(len(states)) / per_year, stacked[:, 0], stacked[:, 1]
