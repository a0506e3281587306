"""The programs written for Dr.Jit's LLVM backend, which needs a libLLVM shared library on the machine."""

from typing import Any

import drjit as dr
import numpy as np
from drjit.llvm import Float, UInt32

from benchmarks.constants import LORENZ_DT, LORENZ_STEPS
from benchmarks.peers import Run


@dr.syntax
def _lorenz(rho, steps):
    x, y, z = Float(1) + 0 * rho, 0 * rho, 0 * rho
    i = UInt32(0)
    h = LORENZ_DT
    while i < steps:
        a0, a1, a2 = 10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z
        p, q, r = x + 0.5 * h * a0, y + 0.5 * h * a1, z + 0.5 * h * a2
        b0, b1, b2 = 10 * (q - p), p * (rho - r) - q, p * q - 8 / 3 * r
        p, q, r = x + 0.5 * h * b0, y + 0.5 * h * b1, z + 0.5 * h * b2
        c0, c1, c2 = 10 * (q - p), p * (rho - r) - q, p * q - 8 / 3 * r
        p, q, r = x + h * c0, y + h * c1, z + h * c2
        d0, d1, d2 = 10 * (q - p), p * (rho - r) - q, p * q - 8 / 3 * r
        x += h / 6 * (a0 + 2 * b0 + 2 * c0 + d0)
        y += h / 6 * (a1 + 2 * b1 + 2 * c1 + d1)
        z += h / 6 * (a2 + 2 * b2 + 2 * c2 + d2)
        i += 1
    return x


def lorenz(rho: Any) -> Run:
    given = Float(rho)

    def call(_: Any) -> Any:
        out = _lorenz(given, LORENZ_STEPS)
        dr.eval(out)
        dr.sync_thread()
        return out

    return Run(call, lambda out: (np.array(out),))


PROGRAMS = {"lorenz": lorenz}
