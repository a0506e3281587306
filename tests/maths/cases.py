"""The functions under test: exact values by mpmath and the points to try."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np

from qdtrace.ir.types import DType
from tests.maths.harness import Reference


def _every(rng: np.random.Generator, count: int, dtype: np.dtype) -> np.ndarray:
    """Random bit patterns: log-uniform over all finite numbers, both signs, subnormals too."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    values = rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True).view(dtype)
    return np.where(np.isfinite(values), values, dtype.type(1))


@dataclass(frozen=True)
class Case:
    """One function."""

    exact: Callable[..., mp.mpf]
    ranges: tuple[tuple[float, float], ...] = ((-4.0, 4.0),)
    """Intervals sampled evenly, beside numbers of every size."""
    domain: tuple[float, float] = (-np.inf, np.inf)
    second: tuple[tuple[float, float], ...] = ()
    """The same of the second argument, pairwise."""
    limit: dict[str, float] | None = None
    """Bounds of f32 and f64 other than 4."""


def _near(points: tuple[float, ...], width: float = 0.01) -> tuple[tuple[float, float], ...]:
    return tuple((p - width, p + width) for p in points)


def _erfc(x: mp.mpf) -> mp.mpf:
    """mpmath's own fails where the result is far below any float."""
    return mp.erfc(x) if abs(x) < 40 else mp.mpf(2) if x < 0 else mp.mpf(2) ** -5000


_TURNS = ((-4.0, 4.0), (-1e3, 1e3), (-2e5, 2e5), *_near((np.pi / 2, np.pi, 2 * np.pi, 1e3 * np.pi), 1e-3))
CASES: dict[str, Case] = {
    "exp": Case(mp.exp, ((-1.0, 1.0), (-105.0, 90.0), (-746.0, 710.0))),
    "exp2": Case(lambda x: mp.mpf(2) ** x, ((-1.0, 1.0), (-151.0, 129.0), (-1075.0, 1025.0))),
    "expm1": Case(mp.expm1, ((-1.0, 1.0), (-40.0, 90.0), (-50.0, 710.0))),
    "log": Case(mp.log, ((0.0, 4.0), *_near((1.0,))), (0.0, np.inf)),
    "log2": Case(lambda x: mp.log(x) / mp.log(2), ((0.0, 4.0), *_near((1.0,))), (0.0, np.inf)),
    "log1p": Case(mp.log1p, ((-1.0, 2.0), (-0.01, 0.01)), (-1.0, np.inf)),
    "logistic": Case(lambda x: 1 / (1 + mp.exp(-x)), ((-4.0, 4.0), (-105.0, 40.0), (-746.0, 40.0))),
    "tanh": Case(mp.tanh, ((-1.0, 1.0), (-10.0, 10.0), (-25.0, 25.0))),
    "sinh": Case(mp.sinh, ((-1.0, 1.0), (-25.0, 25.0), (-90.0, 90.0), (-711.0, 711.0))),
    "cosh": Case(mp.cosh, ((-1.0, 1.0), (-25.0, 25.0), (-90.0, 90.0), (-711.0, 711.0))),
    "sin": Case(mp.sin, _TURNS),
    "cos": Case(mp.cos, _TURNS),
    "tan": Case(mp.tan, _TURNS),
    "asin": Case(mp.asin, ((-1.0, 1.0), *_near((0.495,)), (0.99, 1.0)), (-1.0, 1.0)),
    "acos": Case(mp.acos, ((-1.0, 1.0), *_near((0.495,)), (0.99, 1.0)), (-1.0, 1.0)),
    "atan": Case(mp.atan, ((-4.0, 4.0), *_near((0.4142, 1.0, 2.4142)))),
    "asinh": Case(mp.asinh, ((-4.0, 4.0), (-1e9, 1e9))),
    "acosh": Case(mp.acosh, ((1.0, 4.0), (1.0, 1.01), (1.0, 1e9)), (1.0, np.inf)),
    "atanh": Case(mp.atanh, ((-1.0, 1.0), (0.99, 1.0)), (-1.0, 1.0)),
    "cbrt": Case(lambda x: mp.sign(x) * mp.cbrt(abs(x))),
    "rsqrt": Case(lambda x: 1 / mp.sqrt(x), ((0.0, 4.0),), (0.0, np.inf)),
    "erf": Case(mp.erf, ((-4.0, 4.0), (0.9, 1.1), (-6.5, 6.5))),
    "erfc": Case(_erfc, ((-4.0, 4.0), (0.4, 1.1), (0.0, 10.5), (0.0, 28.0))),
    "erf_inv": Case(mp.erfinv, ((-1.0, 1.0), (0.99, 1.0), (0.9999, 1.0)), (-1.0, 1.0)),
    "lgamma": Case(mp.loggamma, ((0.0, 10.0), (0.0, 50.0), *_near((1.0, 2.0))), (0.0, np.inf)),
    "digamma": Case(mp.digamma, ((0.0, 3.0), (0.0, 20.0), *_near((1.4616,))), (0.0, np.inf)),
    "pow": Case(
        lambda x, y: x**y,
        ((0.0, 4.0), (0.9, 1.1), (0.0, 1e3), (-9.5, 9.5), (0.999999, 1.000001)), (0.0, np.inf),
        ((-4.0, 4.0), (-1e3, 1e3), (-30.0, 30.0), (-40.0, 40.0), (-1e7, 1e7)),
    ),
    "atan2": Case(mp.atan2, ((-4.0, 4.0), (-1e3, 1e3), (0.0, 1e-3)), second=((-4.0, 4.0), (-1e3, 1e3), (-2.0, 2.0))),
    "rem": Case(
        lambda x, y: mp.mpf(math.fmod(x, y)),
        ((-4.0, 4.0), (-1e3, 1e3), (-1e9, 1e9)), second=((-4.0, 4.0), (-5.0, 5.0), (-1e-3, 1e-3)),
    ),
}  # fmt: skip


@functools.cache
def points(name: str, dtype: DType, count: int) -> tuple[np.ndarray, ...]:
    """Arguments inside the domain: half of every size, half from the intervals."""
    case, kind = CASES[name], dtype.numpy
    rng = np.random.default_rng(1)
    each = count // (2 * len(case.ranges))
    with np.errstate(over="ignore"):
        first = [_every(rng, count // 2, kind)]
        first += [rng.uniform(low, high, each).astype(kind) for low, high in case.ranges]
        x = np.concatenate(first)
        inside = (x >= case.domain[0]) & (x <= case.domain[1]) & np.isfinite(x)
        if case.domain[0] == 0.0:
            x, inside = np.abs(x), np.isfinite(x)
        if not case.second:
            return (x[inside],)
        second = [_every(rng, count // 2, kind)]
        second += [rng.uniform(low, high, each).astype(kind) for low, high in case.second]
        y = np.concatenate(second)
    if name == "rem":
        y = np.where(y == 0, kind.type(1), y)
    return x, y


@functools.cache
def exact(name: str, dtype: DType, count: int) -> Reference:
    """The exact values at `points`, to about 40 digits beyond any cancellation."""
    function = CASES[name].exact
    values = []
    with mp.workprec(160):
        for arguments in zip(*points(name, dtype, count), strict=True):
            values.append(function(*(mp.mpf(float(a)) for a in arguments)))
        return Reference.of(values)
