"""Ten programs with roots, logarithms and divisions near their limits, in f32 beside `jax.jit(jax.vmap)`, against f64.

`python -m tests.maths.limits` prints a table of errors at the 99.9th percentile and of NaN, on the device that JAX runs
on, for values, forward and reverse derivatives, and exits with 1 where a row is not `is_right`.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import qdtrace as qd

LANES = 16384
EPS = float(np.finfo(np.float32).eps)
SPHERES = np.random.default_rng(3).uniform(-1, 1, (8, 3))
PARTS = ("value", "jvp", "vjp")


# ------------------------------------------------------------------ the programs


def _cdf(x: Any) -> Any:
    return 0.5 * lax.erfc(-x * np.sqrt(0.5))


def _price(volatility: Any, strike: Any) -> Any:
    """Price of a call on 100 in 0.7 years at a rate of 0.03."""
    width = volatility * np.sqrt(0.7)
    d = (jnp.log(100 / strike) + 0.021) / width + 0.5 * width
    return 100 * _cdf(d) - strike * np.exp(-0.021) * _cdf(d - width)


def implied_volatility(price: Any, strike: Any) -> Any:
    """The volatility of a price, by Newton's method inside of a bracket."""

    def goes_on(state: Any) -> Any:
        low, high, _, count, miss = state
        return (count < 60) & (high - low > 1e-6) & (jnp.abs(miss) > 1e-4)

    def step(state: Any) -> Any:
        low, high, v, count, _ = state
        miss, slope = jax.value_and_grad(_price)(v, strike)
        miss = miss - price
        low, high = jnp.where(miss < 0, v, low), jnp.where(miss < 0, high, v)
        newton = v - miss / slope
        inside = (newton >= low) & (newton <= high)
        return low, high, jnp.where(inside, newton, 0.5 * (low + high)), count + 1, miss

    zero = 0 * price
    return lax.while_loop(goes_on, step, (zero + 1e-3, zero + 4, zero + 0.3, 0, zero + 1e3))[2]


def first_guess(price: Any, strike: Any) -> Any:
    """The approximation of the implied volatility by Stefanica and Radoicic, whose roots of differences come near 0."""
    k, forward = 2 / np.pi, 100 * np.exp(0.021) / strike
    price, y = price / (strike * np.exp(-0.021)), jnp.log(forward)
    r = 2 * price - (forward - 1)
    f = jnp.power(forward, -k)
    g = f * forward
    b = 4 * (f + 1 / f) - 2 * (g + 1 / g) * (1 + forward**2 - r**2) / forward
    logs = jnp.log(4 * price) + jnp.log(price - (forward - 1)) + jnp.log(forward + 1 - r) + jnp.log(forward + 1 + r)
    c = jnp.exp(logs - 2 * y)
    gamma = -(jnp.log(2.0) + jnp.log(c) - jnp.log(b + jnp.sqrt(b * b + 4 * (g - 1 / g) ** 2 * c))) / k
    sides = jnp.sqrt(jnp.maximum(gamma + y, 1e-3)), jnp.sqrt(jnp.maximum(gamma - y, 1e-3))
    edge = jnp.sign(y) * (jnp.maximum(forward, 1) * _edge(y, k) - jnp.minimum(forward, 1) / 2)
    return jnp.where(price <= edge, jnp.sign(y) * (sides[0] - sides[1]), sides[0] + sides[1]) / np.sqrt(0.7)


def _edge(y: Any, k: float) -> Any:
    return 0.5 + 0.5 * jnp.sign(y) * jnp.sqrt(-jnp.expm1(-2 * k * jnp.abs(y)))


def _length(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(x * x))


def renderer(u: Any, v: Any) -> Any:
    """Shade of a pixel: a ray marches through a smooth union of spheres, whose exponentials are subnormal far away."""

    def each(p: Any) -> Any:
        return jnp.exp(-26 * (jnp.sqrt(jnp.sum((p - jnp.asarray(SPHERES, p.dtype)) ** 2, -1)) - 0.3))

    def distance(p: Any) -> Any:
        return -jnp.log(jnp.sum(each(p))) / 26

    origin = jnp.stack([0 * u, 0 * u, 0 * u - 3])
    ray = jnp.stack([u, v, 0 * u + 2])
    ray = ray / _length(ray)
    t = lax.fori_loop(0, 24, lambda _, t: t + jnp.clip(distance(origin + t * ray), -1, 0.22), 0 * u)
    p = origin + t * ray
    weights = each(p) / jnp.sum(each(p))
    normal = p - weights @ jnp.asarray(SPHERES, p.dtype)
    return jnp.dot(normal / _length(normal), -ray) * jnp.exp(-0.2 * t)


def tiny_vectors(size: Any, angle: Any) -> Any:
    """A direction of vectors whose squares are at the smallest normal number, by their length."""
    x, y = size * 1e-19 * jnp.cos(angle), size * 1e-19 * jnp.sin(angle)
    length = jnp.sqrt(x * x + y * y)
    return x / length + 2 * y / length


def double_roots(b: Any, gap: Any) -> Any:
    """The smaller root of a quadratic whose roots are close."""
    c = 0.25 * b * b * (1 - gap * gap)
    q = -0.5 * (b + jnp.copysign(jnp.sqrt(jnp.maximum(b * b - 4 * c, 0)), b))
    return c / q


def kepler(e: Any, mean: Any) -> Any:
    """Kepler's equation near a parabola, by Halley's method."""

    def step(_: Any, u: Any) -> Any:
        f, d, dd = u - e * jnp.sin(u) - mean, 1 - e * jnp.cos(u), e * jnp.sin(u)
        return u - 2 * f * d / (2 * d * d - f * dd)

    u = lax.fori_loop(0, 12, step, mean + e)
    return jnp.arctan2(jnp.sqrt((1 - e) * (1 + e)) * jnp.sin(u), jnp.cos(u) - e)


def lambert_w(x: Any, scale: Any) -> Any:
    """Lambert's function near its branch point."""
    z = -np.exp(-1) + x * x * scale

    def step(_: Any, w: Any) -> Any:
        power = jnp.exp(w)
        f = w * power - z
        return w - f / (power * (w + 1) - 0.5 * (w + 2) * f / (w + 1))

    return lax.fori_loop(0, 8, step, jnp.sqrt(2 * np.e * x * x * scale) - 1)


def refraction(sine: Any, ratio: Any) -> Any:
    """What is reflected of light near the angle of total reflection (Fresnel)."""
    cosine = jnp.sqrt((1 - sine) * (1 + sine))
    inside = 1 - (ratio * sine) ** 2
    through = jnp.where(inside > 0, jnp.sqrt(jnp.where(inside > 0, inside, 1)), 0)
    s = (ratio * cosine - through) / (ratio * cosine + through)
    p = (ratio * through - cosine) / (ratio * through + cosine)
    return 0.5 * (s * s + p * p)


def great_circle(latitude: Any, step: Any) -> Any:
    """Length of a short arc on a sphere, by haversines."""
    other, east = latitude + step, 0.5 * step
    h = jnp.sin(0.5 * (other - latitude)) ** 2 + jnp.cos(latitude) * jnp.cos(other) * jnp.sin(0.5 * east) ** 2
    return 2 * jnp.arctan2(jnp.sqrt(h), jnp.sqrt(1 - h))


def entropy(p: Any, q: Any) -> Any:
    """Relative entropy of distributions that are almost certain, in bits, and its root."""
    term = jax.scipy.special.xlogy(p, p / q) + (1 - p) * (jnp.log1p(-p) - jnp.log1p(-q))
    return jnp.sqrt(jnp.maximum(term, 0) + 1e-12) / np.log(2) + jnp.log(-jnp.log(p))


def _prices(rng: Any) -> tuple[Any, Any]:
    volatility, strike = rng.uniform(0.15, 0.5, LANES), rng.uniform(90, 112, LANES)
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(_price))(volatility, strike)), strike


def _uniform(*ranges: tuple[float, float]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: tuple(rng.uniform(*r, LANES) for r in ranges)


def _powers(*ranges: tuple[float, float]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: tuple(10 ** rng.uniform(*r, LANES) for r in ranges)


PROGRAMS: dict[Callable[..., Any], Callable[[Any], tuple[Any, ...]]] = {
    implied_volatility: _prices,
    first_guess: _prices,
    renderer: _uniform((-1, 1), (-1, 1)),
    tiny_vectors: _uniform((1.5, 40), (0.1, 3.0)),
    double_roots: lambda rng: (rng.uniform(-2, 2, LANES), 10 ** rng.uniform(-3, -0.5, LANES)),
    kepler: lambda rng: (1 - 10 ** rng.uniform(-4, -1, LANES), 10 ** rng.uniform(-2, 0.4, LANES)),
    lambert_w: _powers((-2, 0), (-1, 0)),
    refraction: lambda rng: (1 / 1.5 + rng.choice([-1, -1, -1, 1], LANES) * 10 ** rng.uniform(-4, -1, LANES),
                             np.full(LANES, 1.5)),
    great_circle: lambda rng: (rng.uniform(-1.5, 1.5, LANES), 10 ** rng.uniform(-6, -1, LANES)),
    entropy: _powers((-30, -1), (-6, -1)),
}  # fmt: skip
"""Each with what draws its two arguments."""


# ------------------------------------------------------------------ errors


def parts_of(mapped: Callable[..., Any], *, reverses: bool) -> Callable[..., Any]:
    """Returns the function of value, jvp and vjp by both arguments; JAX reverses no loop of unknown length."""

    def run(*args: Any) -> tuple[Any, Any, Any]:
        value, along = jax.jvp(mapped, args, tuple(map(jnp.ones_like, args)))
        if reverses:
            _, pull = jax.vjp(mapped, *args)
            return value, along, pull(jnp.ones_like(value))
        columns = [
            jax.jvp(mapped, args, tuple(jnp.ones_like(x) if j == k else jnp.zeros_like(x) for j, x in enumerate(args)))
            for k in range(len(args))
        ]
        return value, along, tuple(tangent for _, tangent in columns)

    return jax.jit(run)


@dataclass(frozen=True)
class Row:
    """Errors of one part of a program."""

    program: str
    part: str
    ours: float
    theirs: float
    nans: tuple[int, int, int]
    """Lanes with a NaN where f64 has none: ours, JAX's, and ours where JAX has none."""

    def is_right(self) -> bool:
        """Returns whether errors are at most twice JAX's, or few roundings, and no NaN is ours alone."""
        return self.ours <= 2 * max(self.theirs, 2 * EPS) and self.nans[2] == 0


def error(got: Any, want: Any, among: Any) -> float:
    """Returns the error at the 99.9th percentile of some lanes, relative to the value, or a tenth of the usual one if
    that is more."""
    known = np.isfinite(want) & among
    size = np.maximum(np.abs(want), 0.1 * np.median(np.abs(want[known])))
    with np.errstate(invalid="ignore"):
        apart = (np.abs(got - want) / size)[known]
    return float(np.quantile(apart, 0.999, method="lower"))


def rows(program: Callable[..., Any], seed: int = 0) -> list[Row]:
    """Returns errors of value, jvp and vjp."""
    single = [x.astype(np.float32) for x in PROGRAMS[program](np.random.default_rng(seed))]
    with jax.enable_x64(True):
        exact = parts_of(jax.vmap(program), reverses=False)(*(x.astype(np.float64) for x in single))
    with jax.enable_x64(False):
        ours = parts_of(qd.vmap(program), reverses=True)(*single)
        theirs = parts_of(jax.vmap(program), reverses=program is not implied_volatility)(*single)
    made: list[Row] = []
    for part, *found in zip(PARTS, ours, theirs, exact, strict=True):
        a, b, c = (np.concatenate([np.asarray(x, np.float64) for x in jax.tree.leaves(f)]) for f in found)
        nans = [np.isnan(x) & ~np.isnan(c) for x in (a, b)]
        counts = tuple(int(x.sum()) for x in (*nans, nans[0] & ~nans[1]))
        among = ~(np.isnan(a) | np.isnan(b))
        made.append(Row(program.__name__, part, error(a, c, among), error(b, c, among), counts))
    return made


def main() -> int:
    """Prints the table; returns 1 if a row of it is not right."""
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    print(f"{'program':20} {'part':6} {'ours':>9} {'JAX':>9} {'NaN':>6} {'of JAX':>6} {'alone':>6}")
    missed = 0
    for program in PROGRAMS:
        for row in rows(program):
            missed += not row.is_right()
            told = f"{row.program:20} {row.part:6} {row.ours:9.1e} {row.theirs:9.1e}"
            print(told, *(f"{n:6}" for n in row.nans), "" if row.is_right() else "<-", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
