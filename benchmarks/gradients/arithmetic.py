"""Arithmetic that primals, adjoints written by hand and checks share: on tracers and on arrays, complex ones too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LORENZ_STEP = 0.005
NEWTON_TOLERANCE = 1e-6

State = tuple[Any, Any, Any]


def _slope(s: State, rho: Any) -> State:
    return 10.0 * (s[1] - s[0]), s[0] * (rho - s[2]) - s[1], s[0] * s[1] - (8 / 3) * s[2]


def _along(s: State, h: float, k: State) -> State:
    return s[0] + h * k[0], s[1] + h * k[1], s[2] + h * k[2]


def lorenz_step(s: State, rho: Any) -> State:
    """One step of the Lorenz system by classical Runge-Kutta."""
    h = LORENZ_STEP
    k1 = _slope(s, rho)
    k2 = _slope(_along(s, 0.5 * h, k1), rho)
    k3 = _slope(_along(s, 0.5 * h, k2), rho)
    k4 = _slope(_along(s, h, k3), rho)
    x, y, z = (a + h / 6 * (p + 2.0 * q + 2.0 * r + t) for a, p, q, r, t in zip(s, k1, k2, k3, k4, strict=True))
    return x, y, z


def lorenz_steps(count: int) -> Callable[[State, Any], State]:
    """Returns a function that takes `count` steps, one after the other."""

    def run(s: State, rho: Any) -> State:
        for _ in range(count):
            s = lorenz_step(s, rho)
        return s

    return run


def newton_step(s: Any, a: Any) -> Any:
    """One step to the square root of `a`."""
    return 0.5 * (s + a / s)
