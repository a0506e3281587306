"""Gradients by Quadrants' reverse mode, whose stacks for loops have to be switched on."""

import os
from typing import Any

import numpy as np
import quadrants as q

from benchmarks.gradients.arithmetic import LORENZ_STEP
from benchmarks.peers import Run

ARCH = getattr(q, os.environ.get("QUADRANTS_ARCH", "cpu"))
q.init(arch=ARCH, offline_cache=False, default_fp=q.f32, log_level=q.WARN, ad_stack_experimental_enabled=True)
LORENZ_STEPS = 100


def _field(values: Any, dtype: Any = q.f32, *, differentiated: bool = True) -> Any:
    made = q.field(dtype, shape=values.shape, needs_grad=differentiated)
    made.from_numpy(values)
    return made


def _gradient(kernel: Any, out: Any, *given: Any) -> Run:
    out.grad.fill(1.0)

    def prepare() -> None:
        for one in given:
            one.grad.fill(0.0)
        q.sync()

    def call(_: Any) -> None:
        kernel.grad()
        q.sync()

    kernel()
    return Run(call, lambda _: tuple(one.grad.to_numpy() for one in given), prepare=prepare)


def lorenz(rho: Any) -> Run:
    given, out, steps = _field(rho), _field(np.zeros_like(rho)), q.field(q.i32, shape=())
    steps[None] = LORENZ_STEPS
    h = LORENZ_STEP

    @q.kernel
    def ends():
        for i in given:
            x = 1.0
            y = 0.0
            z = 0.0
            r = given[i]
            for _ in range(steps[None]):
                a0 = 10.0 * (y - x)
                a1 = x * (r - z) - y
                a2 = x * y - 2.6666667 * z
                u = x + 0.5 * h * a0
                v = y + 0.5 * h * a1
                w = z + 0.5 * h * a2
                b0 = 10.0 * (v - u)
                b1 = u * (r - w) - v
                b2 = u * v - 2.6666667 * w
                u = x + 0.5 * h * b0
                v = y + 0.5 * h * b1
                w = z + 0.5 * h * b2
                c0 = 10.0 * (v - u)
                c1 = u * (r - w) - v
                c2 = u * v - 2.6666667 * w
                u = x + h * c0
                v = y + h * c1
                w = z + h * c2
                d0 = 10.0 * (v - u)
                d1 = u * (r - w) - v
                d2 = u * v - 2.6666667 * w
                x = x + h / 6.0 * (a0 + 2.0 * b0 + 2.0 * c0 + d0)
                y = y + h / 6.0 * (a1 + 2.0 * b1 + 2.0 * c1 + d1)
                z = z + h / 6.0 * (a2 + 2.0 * b2 + 2.0 * c2 + d2)
            out[i] = x + y + z

    return _gradient(ends, out, given)


def ragged(ptr: Any, col: Any, w: Any, x: Any) -> Run:
    first = _field(ptr, q.i32, differentiated=False)
    column = _field(col, q.i32, differentiated=False)
    weight, value, out = _field(w), _field(x), _field(np.zeros_like(x))

    @q.kernel
    def rows():
        for i in out:
            acc = 0.5
            for j in range(first[i], first[i + 1]):
                acc = q.sin(acc) + weight[j] * value[column[j]]
            out[i] = acc

    return _gradient(rows, out, weight, value)


PROGRAMS = {"gradient_lorenz_small": lorenz, "gradient_ragged": ragged}
