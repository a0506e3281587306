"""The material point method of `mpm88` for Quadrants: a step, and its gradient by all inputs."""

import os
from typing import Any

import numpy as np
import quadrants as q

from benchmarks.peers import Run

ARCH = getattr(q, os.environ.get("QUADRANTS_ARCH", "cpu"))
q.init(arch=ARCH, offline_cache=False, default_fp=q.f32, log_level=q.WARN)
STIFFNESS, GRAVITY, BORDER = 400.0, 9.8, 3
STATE = ("x", "v", "affine", "ratio")
CALLS = 20
"""Steps between two waits."""


@q.data_oriented
class Fluid:
    """Particles before and after a step, and the grid between."""

    def __init__(self, count: int, grid: int, dt: float, *, differentiated: bool) -> None:
        def state() -> list[Any]:
            return [
                q.Vector.field(2, q.f32, shape=count, needs_grad=differentiated),
                q.Vector.field(2, q.f32, shape=count, needs_grad=differentiated),
                q.Matrix.field(2, 2, q.f32, shape=count, needs_grad=differentiated),
                q.field(q.f32, shape=count, needs_grad=differentiated),
            ]

        self.count, self.grid, self.dt, self.dx = count, grid, dt, 1.0 / grid
        self.volume = (0.5 * self.dx) ** 2
        self.before, self.after = state(), state()
        self.x, self.v, self.affine, self.ratio = self.before
        self.x1, self.v1, self.affine1, self.ratio1 = self.after
        self.mass = q.field(q.f32, shape=(grid, grid), needs_grad=differentiated)
        self.momentum = q.Vector.field(2, q.f32, shape=(grid, grid), needs_grad=differentiated)
        self.speed = q.Vector.field(2, q.f32, shape=(grid, grid), needs_grad=differentiated)

    @q.kernel
    def clear(self):
        for i, j in self.mass:
            self.mass[i, j] = 0.0
            self.momentum[i, j] = q.Vector([0.0, 0.0])

    @q.kernel
    def scatter(self):
        for p in range(self.count):
            scaled = self.x[p] / self.dx
            base = q.cast(scaled - 0.5, q.i32)
            at = scaled - q.cast(base, q.f32)
            w = [0.5 * (1.5 - at) ** 2, 0.75 - (at - 1.0) ** 2, 0.5 * (at - 0.5) ** 2]
            stress = -self.dt * 4.0 * STIFFNESS * self.volume * (self.ratio[p] - 1.0) / self.dx**2
            matrix = q.Matrix([[stress, 0.0], [0.0, stress]]) + self.volume * self.affine[p]
            for i, j in q.static(q.ndrange(3, 3)):
                offset = (q.Vector([float(i), float(j)]) - at) * self.dx
                weight = w[i][0] * w[j][1]
                node = base + q.Vector([i, j])
                self.momentum[node] += weight * (self.volume * self.v[p] + matrix @ offset)
                self.mass[node] += weight * self.volume

    @q.kernel
    def move(self):
        for i, j in self.mass:
            speed = q.Vector([0.0, 0.0])
            if self.mass[i, j] > 0:
                speed = self.momentum[i, j] / self.mass[i, j] - q.Vector([0.0, self.dt * GRAVITY])
                if i < BORDER and speed[0] < 0:
                    speed[0] = 0.0
                if j < BORDER and speed[1] < 0:
                    speed[1] = 0.0
                if i > self.grid - BORDER and speed[0] > 0:
                    speed[0] = 0.0
                if j > self.grid - BORDER and speed[1] > 0:
                    speed[1] = 0.0
            self.speed[i, j] = speed

    @q.kernel
    def gather(self):
        for p in range(self.count):
            scaled = self.x[p] / self.dx
            base = q.cast(scaled - 0.5, q.i32)
            at = scaled - q.cast(base, q.f32)
            w = [0.5 * (1.5 - at) ** 2, 0.75 - (at - 1.0) ** 2, 0.5 * (at - 0.5) ** 2]
            speed = q.Vector([0.0, 0.0])
            gradient = q.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in q.static(q.ndrange(3, 3)):
                offset = (q.Vector([float(i), float(j)]) - at) * self.dx
                weighted = w[i][0] * w[j][1] * self.speed[base + q.Vector([i, j])]
                speed += weighted
                gradient += 4.0 * weighted.outer_product(offset) / self.dx**2
            self.v1[p] = speed
            self.affine1[p] = gradient
            self.x1[p] = self.x[p] + self.dt * speed
            self.ratio1[p] = self.ratio[p] * (1.0 + self.dt * gradient.trace())

    def step(self) -> None:
        self.clear()
        self.scatter()
        self.move()
        self.gather()


def _filled(given: dict[str, Any], *, differentiated: bool) -> Fluid:
    fluid = Fluid(len(given["x"]), int(given["grid"]), float(given["dt"]), differentiated=differentiated)
    for name, field in zip(STATE, fluid.before, strict=True):
        field.from_numpy(given[name])
    return fluid


def mpm(**given: Any) -> Run:
    fluid = _filled(given, differentiated=False)

    def call(_: Any) -> None:
        for _ in range(CALLS):
            fluid.step()
        q.sync()

    return Run(call, lambda _: tuple(field.to_numpy() for field in fluid.after), calls=CALLS)


def gradient(**given: Any) -> Run:
    """The forward step runs in front of the reverse one: it leaves the grid that the latter reads."""
    fluid = _filled(given, differentiated=True)
    inner = [*fluid.before, fluid.mass, fluid.momentum, fluid.speed]

    def prepare() -> None:
        for name, field in zip(STATE, fluid.after, strict=True):
            field.grad.from_numpy(given[f"bar_{name}"])
        for field in inner:
            field.grad.fill(0.0)
        q.sync()

    def call(_: Any) -> None:
        fluid.step()
        fluid.gather.grad()
        fluid.move.grad()
        fluid.scatter.grad()
        q.sync()

    return Run(call, lambda _: tuple(np.asarray(f.grad.to_numpy()) for f in fluid.before), prepare=prepare)


PROGRAMS = {"mpm": mpm, "gradient_mpm": gradient}
