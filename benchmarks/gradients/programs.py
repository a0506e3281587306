"""Gradients to time: inputs, checks in double precision, and what is to be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import mpm88, programs
from benchmarks.gradients import links
from benchmarks.gradients.arithmetic import NEWTON_TOLERANCE, lorenz_steps, newton_step
from benchmarks.programs import (
    Program,
    close,
    kepler_inputs,
    lorenz_inputs,
    ragged_inputs,
    sample,
    stream_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benchmarks.programs import Arrays, Outputs

    Check = Callable[[Arrays, Outputs], str]

TINY = 1e-30
"""A step along the imaginary axis: the imaginary part of a result is the derivative times it, without cancellation."""


def lorenz_check(steps: int, rtol: float = 1e-4, part: float = 1.0) -> Check:
    """Returns a check of derivatives by `rho` of the sum of the three coordinates after some steps."""

    def check(given: Arrays, out: Outputs) -> str:
        at = sample(len(given["rho"]), 128)
        rho = given["rho"][at] + 1j * TINY
        ends = lorenz_steps(steps)((np.ones_like(rho), np.zeros_like(rho), np.zeros_like(rho)), rho)
        return close(out[0][at], sum(ends).imag / TINY, rtol, rtol, part)  # type: ignore[union-attr]

    return check


def lorenz_ends_check(steps: int, rtol: float = 1e-4, part: float = 1.0) -> Check:
    def check(given: Arrays, out: Outputs) -> str:
        at = sample(len(given["rho"]), 128)
        rho = given["rho"][at].astype(np.float64)
        ends = lorenz_steps(steps)((np.ones_like(rho), np.zeros_like(rho), np.zeros_like(rho)), rho)
        return close(out[0][at], np.stack(ends, 1), rtol, rtol, part)

    return check


def while_inputs(steps: int) -> Callable[[int], Arrays]:
    return lambda n: {**lorenz_inputs(n), "end": np.array(steps, np.float32)}


def newton_inputs(n: int) -> Arrays:
    return {"a": np.linspace(1, 1e6, n, dtype=np.float32)}


def newton_check(given: Arrays, out: Outputs) -> str:
    a = given["a"][sample(len(given["a"]))] + 1j * TINY
    s = 0.5 * (1 + a)
    for _ in range(64):
        s = np.where(np.abs((s * s - a).real) > NEWTON_TOLERANCE * a.real, newton_step(s, a), s)
    # a rounding decides about the last step; without it the slope is off by the root of the tolerance
    return close(out[0][sample(len(given["a"]))], np.imag(s) / TINY, 1e-3, 0)


def roots_check(given: Arrays, out: Outputs) -> str:
    return close(out[0], np.sqrt(given["a"].astype(np.float64)), 1e-6, 0)


def kepler_check(given: Arrays, out: Outputs) -> str:
    at = sample(len(given["e"]))
    e, mean = given["e"][at].astype(np.float64), given["mean"][at].astype(np.float64)
    x = mean
    for _ in range(200):  # bisection would do as well: the solution counts, not the way to it
        x = x - np.clip((x - e * np.sin(x) - mean) / (1 - e * np.cos(x)), -0.5, 0.5)
    slope = 1 / (1 - e * np.cos(x))
    # the last step's error times the slope of Newton's map, which is large where e is near 1
    close(out[0][at], np.sin(x) * slope, 2e-3, 1e-4, part=0.98)
    return close(out[1][at], slope, 2e-3, 1e-4, part=0.98)


def ragged_check(given: Arrays, out: Outputs) -> str:
    """All rows step by step, shorter rows leaving, then back."""
    ptr, col = given["ptr"], given["col"]
    w, x = given["w"].astype(np.float64), given["x"].astype(np.float64)
    acc, rows, states = np.full(len(x), 0.5), np.arange(len(x)), []
    for k in range(int(np.max(np.diff(ptr)))):
        rows = rows[ptr[rows] + k < ptr[rows + 1]]
        states.append((rows, acc[rows]))
        j = ptr[rows] + k
        acc[rows] = np.sin(acc[rows]) + w[j] * x[col[j]]
    bar, w_bar, x_bar = np.ones(len(x)), np.zeros_like(w), np.zeros_like(x)
    for k, (rows, before) in reversed(list(enumerate(states))):
        j = ptr[rows] + k
        w_bar[j] = bar[rows] * x[col[j]]
        np.add.at(x_bar, col[j], bar[rows] * w[j])
        bar[rows] *= np.cos(before)
    # a product of cosines, each off by the error of its state
    close(out[0], w_bar, 1e-4, 1e-5)
    return close(out[1], x_bar, 1e-4, 2e-5)


def csr_inputs(rows: int) -> Arrays:
    """Rows whose lengths follow Zipf's law: mean 15, at most 4096."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.zipf(1.8, rows), 4096)
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    entries = int(ptr[-1])
    return {
        "ptr": ptr,
        "col": rng.integers(0, rows, entries).astype(np.int32),
        "w": rng.standard_normal(entries).astype(np.float32),
        "x": rng.standard_normal(rows).astype(np.float32),
        "bar": rng.standard_normal(rows).astype(np.float32),
    }


def product_check(given: Arrays, out: Outputs) -> str:
    terms = given["w"].astype(np.float64) * given["x"][given["col"]]
    return close(out[0], np.add.reduceat(terms, given["ptr"][:-1]), 1e-4, 1e-4)


def csr_check(given: Arrays, out: Outputs) -> str:
    col, rows = given["col"], np.repeat(np.arange(len(given["x"])), np.diff(given["ptr"]))
    bar = given["bar"].astype(np.float64)[rows]
    close(out[0], bar * given["x"][col], 1e-6, 1e-30)
    # sums of some tens of numbers of the order of 1
    return close(out[1], np.bincount(col, bar * given["w"], len(given["x"])), 1e-5, 2e-5)


MPM = ("x", "v", "affine", "ratio")


def mpm_inputs(count: int) -> Arrays:
    rng = np.random.default_rng(1)
    x = mpm88.particles(count)[0]

    def normal(shape: tuple[int, ...]) -> NDArray[Any]:
        return rng.normal(size=shape).astype(np.float32)

    shapes = (x.shape, x.shape, (count, 2, 2), (count,))
    ratio = rng.uniform(0.9, 1.1, count).astype(np.float32)
    given = dict(zip(MPM, (x, normal(x.shape), normal((count, 2, 2)), ratio), strict=True))
    return {**given, **{f"bar_{name}": normal(shape) for name, shape in zip(MPM, shapes, strict=True)}}


def substep_check(fluid: mpm88.Fluid = mpm88.FLUID) -> Check:
    def check(given: Arrays, out: Outputs) -> str:
        want = fluid.reference(*(given[name].astype(np.float64) for name in MPM))
        # f32 sums of about ten terms; the affine matrix divides differences of them by the cell's size
        allowed = (1e-6, 2e-4, 2e-2 * fluid.grid / mpm88.FLUID.grid, 1e-4)
        said = [close(a, b, 1e-4, t) for a, b, t in zip(out, want, allowed, strict=True)]
        return said[-1]

    return check


def mpm_check(fluid: mpm88.Fluid = mpm88.FLUID, singles: int = 3) -> Check:
    """Finite differences in double precision: along a random direction of each input, and of `singles` particles."""

    def check(given: Arrays, out: Outputs) -> str:
        rng = np.random.default_rng(2)
        at = [given[name].astype(np.float64) for name in MPM]
        bars = [given[f"bar_{name}"].astype(np.float64) for name in MPM]

        def value(k: int, direction: NDArray[Any], h: float) -> float:
            moved = [a + h * direction if j == k else a for j, a in enumerate(at)]
            return sum(float(np.vdot(b, r)) for b, r in zip(bars, fluid.reference(*moved), strict=True))

        got, want, size = [], [], []
        for k, name in enumerate(MPM):
            whole = np.asarray(rng.normal(size=given[name].shape))
            directions = [whole]
            for particle in rng.integers(0, len(whole), singles):
                directions.append(np.zeros_like(whole))
                directions[-1][particle] = whole[particle]
            for direction in directions:
                h = 1e-6
                want.append((value(k, direction, h) - value(k, direction, -h)) / (2 * h))
                got.append(float(np.vdot(out[k].astype(np.float64), direction)))
                size.append(float(np.abs(out[k] * direction).sum()))
        # relative to the terms of each inner product: f32 in sums over nine nodes, divided by masses
        scale = np.array(size)
        return close(np.array(got) / scale, np.array(want) / scale, 0, 1e-3)

    return check


def chain_check(given: Arrays, out: Outputs) -> str:
    x = given["x"][sample(len(given["x"]), 100_000)].astype(np.float64)
    root = np.sqrt(9 * x * x + 1)
    want = (2 * (root + x / 2) * (9 * x / root + 0.5) - 1) / 4
    return close(out[0][sample(len(given["x"]), 100_000)], want, 1e-5, 1e-6)


def links_inputs(robots: int) -> Arrays:
    shape = (robots, links.STEPS, links.LINKS)
    return {"torques": np.random.default_rng(0).normal(scale=0.5, size=shape).astype(np.float32)}


def _walked(torques: NDArray[Any]) -> NDArray[Any]:
    """Returns the final position of the base of one robot."""
    robot = links.start(np)
    for now in torques:
        robot = links.step(np, robot, now)
    return robot.place


def links_check(given: Arrays, out: Outputs) -> str:
    """Along a random direction of the torques of some robots."""
    at = sample(len(given["torques"]), 4)
    torques = given["torques"][at].astype(np.float64)
    directions = np.random.default_rng(3).normal(size=torques.shape)
    moved = torques + 1j * TINY * directions
    want = np.array([np.imag(_walked(one)).sum() / TINY for one in moved])
    terms = out[0][at] * directions
    size = np.abs(terms).sum((1, 2))
    return close(terms.sum((1, 2)) / size, want / size, 0, 1e-3)


def places_check(given: Arrays, out: Outputs) -> str:
    at = sample(len(given["torques"]), 4)
    # 64 steps of f32 and stiff contacts
    return close(out[0][at], np.array([_walked(one) for one in given["torques"][at].astype(np.float64)]), 0, 1e-3)


def _gradient(
    name: str,
    size: int,
    unit: str,
    inputs: Callable[[int], Arrays],
    check: Check,
    primal: Check,
    limits: dict[str, float],
    goals: dict[str, float] | None = None,
    context: tuple[str, ...] = (),
) -> Program:
    """`check` is for gradients, `primal` for results of the primal; `limits` and `goals` as in Program."""
    return Program(
        name=f"gradient_{name}",
        sizes=(size,),
        size=size,
        unit=unit,
        inputs=inputs,
        check=check,
        goals=goals or {},
        context=context,
        limits=limits,
        ours="gradient",
        other_checks={"primal": primal},
    )


GRADIENTS = (
    _gradient(
        "lorenz",
        1 << 16,
        "lanes x 100 steps",
        lorenz_inputs,
        lorenz_check(100),
        lorenz_ends_check(100),
        {"primal": 3.5, "by hand": 1.05, "simd": 0.9},
    ),
    _gradient(
        "lorenz_1000",
        1 << 16,
        "lanes x 1000 steps",
        lorenz_inputs,
        lorenz_check(1000, 1e-2, 0.95),
        lorenz_ends_check(1000, 1e-2, 0.95),
        {"primal": 3.5, "by hand": 1.05, "simd": 0.9},
    ),
    _gradient(
        "lorenz_small",
        1 << 14,
        "lanes x 100 steps",
        lorenz_inputs,
        lorenz_check(100),
        lorenz_ends_check(100),
        {},
        {"quadrants.grad": 8.0, "jax.vjp": 15.0},
    ),
    _gradient(
        "while_1000",
        1 << 16,
        "lanes x 1000 steps, unknown",
        while_inputs(1000),
        lorenz_check(1000, 1e-2, 0.95),
        lorenz_ends_check(1000, 1e-2, 0.95),
        {"primal": 5.0},
    ),
    _gradient(
        "while_10000",
        1 << 13,
        "lanes x 10000 steps, unknown",
        while_inputs(10000),
        lorenz_check(10000, 1e-2, 0.8),
        lorenz_ends_check(10000, 1e-2, 0.8),
        {"primal": 6.0},
    ),
    _gradient("newton", 1 << 20, "lanes, `while`", newton_inputs, newton_check, roots_check, {"primal": 3.5}),
    _gradient("kepler", 1 << 18, "lanes, `while`", kepler_inputs, kepler_check, programs.kepler_check, {"primal": 3.5}),
    _gradient(
        "ragged",
        1 << 18,
        "rows, mean 16",
        ragged_inputs,
        ragged_check,
        programs.ragged_check,
        {"primal": 3.5, "simd": 1.1},
        {"quadrants.grad": 4.0, "jax.vjp": 8.0},
    ),
    _gradient("csr", 1 << 16, "rows, at most 4096", csr_inputs, csr_check, product_check, {"primal": 3.5}),
    _gradient("mpm", 8192, "particles, a step", mpm_inputs, mpm_check(), substep_check(), {"primal": 3.5}),
    _gradient(
        "chain",
        1 << 24,
        "f32, eight loops",
        stream_inputs,
        chain_check,
        programs.chain_check,
        {},
        {"jax.vjp": 1.5},
        context=("primal",),
    ),
    _gradient("links", 256, "robots x 64 steps", links_inputs, links_check, places_check, {"primal": 5.0}),
)
