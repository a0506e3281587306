"""Functions of one element, with arguments at their edges: what `test_functions` differentiates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.ode import odeint

INF, NAN = np.inf, np.nan
RNG = np.random.default_rng(0)
V = RNG.normal(size=(3, 3)) * 0.3
TABLE = jnp.asarray(RNG.normal(size=7))

ELEMENTARY: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "sin": (jnp.sin, [0.0, -0.0, 1e3, INF, NAN]),
    "tan": (jnp.tan, [0.0, 1.5, -1.5]),
    "arcsin": (jnp.arcsin, [-1.0, 0.0, 1.0, 1.5]),
    "arccos": (jnp.arccos, [-1.0, 0.0, 1.0, -1.5]),
    "arctan": (jnp.arctan, [0.0, INF, -INF, 1e200]),
    "sinh": (jnp.sinh, [0.0, 800.0, -3.0]),
    "tanh": (jnp.tanh, [0.0, 30.0, -INF]),
    "arcsinh": (jnp.arcsinh, [0.0, -1e3]),
    "arccosh": (jnp.arccosh, [1.0, 2.0, 0.5]),
    "arctanh": (jnp.arctanh, [-1.0, 0.0, 1.0, 2.0]),
    "sinc": (jnp.sinc, [0.0, 0.5, 1e-9]),
    "exp": (jnp.exp, [0.0, -800.0, 800.0, -INF]),
    "expm1": (jnp.expm1, [0.0, -INF, 1e-12]),
    "exp2": (jnp.exp2, [0.0, -3.5]),
    "log": (jnp.log, [0.0, -0.0, 1.0, INF, -1.0]),
    "log1p": (jnp.log1p, [-1.0, 0.0, 1e-12]),
    "log2": (jnp.log2, [0.0, 3.0]),
    "log10": (jnp.log10, [0.0, 3.0]),
    "sqrt": (jnp.sqrt, [0.0, 4.0, INF, -1.0]),
    "cbrt": (jnp.cbrt, [8.0, -8.0]),
    "rsqrt": (lax.rsqrt, [0.0, 4.0]),
    "reciprocal": (lambda x: 1 / x, [0.0, -0.0, 2.0, INF]),
    "abs": (jnp.abs, [0.0, -0.0, -2.0]),
    "sign": (jnp.sign, [0.0, -2.0]),
    "square": (jnp.square, [0.0, INF]),
    "x ** 3": (lambda x: x**3, [0.0, -2.0]),
    "x ** -1": (lambda x: x**-1, [0.0, -2.0]),
    "x ** 0.5": (lambda x: x**0.5, [0.0, 2.0]),
    "x ** 1.5": (lambda x: x**1.5, [0.0, 2.0]),
    "2 ** x": (lambda x: 2.0**x, [0.0, -2.5]),
    "0 ** x": (lambda x: 0.0**x, [1.0, 2.5]),
    "x ** x": (lambda x: x**x, [0.5, 2.5]),
    "maximum": (lambda x: jnp.maximum(x, 1.0), [1.0, 0.0, 2.0, NAN]),
    "minimum": (lambda x: jnp.minimum(x, 1.0), [1.0, 0.0, 2.0, -INF]),
    "clip": (lambda x: jnp.clip(x, -1.0, 1.0), [-1.0, 1.0, 0.0, 2.0, -2.0]),
    "clamp": (lambda x: lax.clamp(-1.0, x, 1.0), [-1.0, 1.0, 0.0, 2.0, -2.0]),
    "clamp's ends": (lambda x: lax.clamp(x, 0.5, x + 1), [0.5, -0.5, 0.0, 2.0, -2.0]),
    "heaviside": (lambda x: jnp.heaviside(x, 0.5), [0.0, 1.0]),
    "floor, ceil, round": (lambda x: jnp.floor(x) * x + jnp.ceil(x) - jnp.round(x), [0.5, 2.0]),
    "modulo": (lambda x: x % 3.0, [0.0, 7.0, -7.0, 3.0]),
    "modulo's divisor": (lambda x: 7.5 % x, [2.0, -2.0, 7.5]),
    "fmod": (lambda x: jnp.fmod(x, 3.0), [0.0, 7.0, -7.0]),
    "modf": (lambda x: jnp.modf(x)[0], [2.5, -2.5]),
    "floor_divide": (lambda x: x // 2.0 + x, [3.0, -3.0]),
    "copysign": (lambda x: jnp.copysign(x, -1.0), [2.0, -2.0, 0.0]),
    "nan_to_num": (lambda x: jnp.nan_to_num(x) * 2, [1.0, INF, NAN]),
    "arctan2": (lambda x: jnp.arctan2(x, 1.0 - x), [0.0, 1.0, -1.0, 2.0]),
    "hypot": (lambda x: jnp.hypot(x, 3.0), [0.0, 4.0]),
    "logaddexp": (lambda x: jnp.logaddexp(x, 1.0), [1.0, -INF, 800.0]),
    "logaddexp2": (lambda x: jnp.logaddexp2(x, 1.0), [1.0, 30.0]),
    "deg2rad": (jnp.deg2rad, [180.0]),
    "erf": (jax.scipy.special.erf, [0.0, 6.0]),
    "erfc": (jax.scipy.special.erfc, [0.0, 6.0]),
    "erfinv": (jax.scipy.special.erfinv, [0.0, 0.9]),
    "gammaln": (jax.scipy.special.gammaln, [0.5, 3.0]),
    "digamma": (jax.scipy.special.digamma, [0.5, 3.0]),
    "betaln": (lambda x: jax.scipy.special.betaln(x, 2.0), [0.5, 3.0]),
    "xlogy": (lambda x: jax.scipy.special.xlogy(x, x), [0.0, 2.0]),
    "xlog1py": (lambda x: jax.scipy.special.xlog1py(x, x), [0.0, 2.0]),
    "entr": (jax.scipy.special.entr, [0.5, 2.0]),
    "expit and logit": (lambda x: jax.scipy.special.logit(jax.scipy.special.expit(x)), [0.0, -30.0]),
    "ndtr": (jax.scipy.special.ndtr, [0.0, -3.0]),
    "log_ndtr": (jax.scipy.special.log_ndtr, [0.0, -30.0, 3.0]),
    "i0e": (jax.scipy.special.i0e, [0.0, -0.0, 0.3, -12.0]),
    "i1e": (jax.scipy.special.i1e, [0.0, -0.0, 0.3, -12.0]),
    "relu": (jax.nn.relu, [0.0, -1.0, 1.0]),
    "relu6": (jax.nn.relu6, [0.0, 6.0, 3.0]),
    "leaky_relu": (jax.nn.leaky_relu, [0.0, -1.0, 1.0]),
    "elu": (jax.nn.elu, [0.0, -800.0, 800.0]),
    "selu and celu": (lambda x: jax.nn.selu(x) + jax.nn.celu(x), [0.0, -1.0, 1.0]),
    "gelu": (jax.nn.gelu, [0.0, -9.0, 9.0]),
    "softplus": (jax.nn.softplus, [0.0, -800.0, 800.0]),
    "silu and mish": (lambda x: jax.nn.silu(x) + jax.nn.mish(x), [0.0, -9.0]),
    "log_sigmoid": (jax.nn.log_sigmoid, [0.0, -800.0]),
    "hard_tanh": (jax.nn.hard_tanh, [0.0, -1.0, 1.0]),
    "soft_sign": (jax.nn.soft_sign, [0.0, -1.0]),
    "stop_gradient": (lambda x: lax.stop_gradient(x) * x, [2.0]),
    "straight through": (lambda x: x + lax.stop_gradient(jnp.round(x) - x), [2.3]),
    "a cast down and up": (lambda x: jnp.sin(x.astype(jnp.float32)).astype(jnp.float64) * x, [2.3]),
    "a cast to integers": (lambda x: x.astype(jnp.int32) * x, [2.3]),
    "a constant": (lambda x: 0 * x + 3.0, [1.0]),
    "where, safe": (lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0), [0.0, -1.0, 4.0]),
    "where, not safe": (lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0), [0.0, -1.0, 4.0]),
    "where, log": (lambda x: jnp.where(x > 0, jnp.log(jnp.maximum(x, 1e-30)), -1.0), [0.0, -1.0, 4.0]),
    "a branch, sqrt": (lambda x: lax.cond(x > 0, jnp.sqrt, lambda x: 0.0 * x, x), [0.0, -1.0, 4.0]),
    "a branch, sin x / x": (lambda x: lax.cond(x == 0, lambda x: 1.0 - x * x, lambda x: jnp.sin(x) / x, x), [0.0, 2.0]),
    "a branch in a branch": (
        lambda x: lax.cond(
            x > 0, lambda x: lax.cond(x > 1, jnp.log, lambda x: jnp.sqrt(1 - x), x), lambda x: 1 / (x - 1), x
        ),
        [0.0, 0.5, 1.0, 4.0],
    ),
    "switch": (
        lambda x: lax.switch(jnp.clip(x, 0, 9).astype(int), [jnp.sqrt, jnp.log, lambda x: 1 / x], x),
        [-0.0, 0.25, 1.0, 2.0, 5.0],
    ),
    "select_n": (lambda x: lax.select_n((x > 1).astype(int) + (x > 2), x, x * x, 1 / x), [0.0, 1.5, 3.0]),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 0, x > 1], [jnp.sin, jnp.log, lambda x: x * x]), [-1.0, 0.0, 2.0]),
    "bitcast": (lambda x: x * lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int64), jnp.float64), [2.0]),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7) * x, [1.23456]),
    "integer_pow": (lambda x: lax.integer_pow(x, 4) + lax.integer_pow(x, -3), [0.5, -2.0]),
    "where as relu": (lambda x: jnp.where(x > 0, x, 0.0), [0.0, -0.0, -1.0, 1.0]),
    "where as minimum": (lambda x: jnp.where(x < 2 * x - 1, x, 2 * x - 1), [1.0, 0.0, 2.0]),
    "where equal": (lambda x: jnp.where(x == 2 * x - 1, x, 2 * x - 1), [1.0, 0.0, 2.0]),
    "where as abs": (lambda x: jnp.where(x < 0, -x, x), [0.0, -1.0, 2.0]),
    "a branch where x is a number": (lambda x: lax.cond(x == 2.0, lambda x: 3 * x, lambda x: x * x, x), [2.0, 0.0]),
    "x of itself": (lambda x: jnp.maximum(x, x) + x / x + (x - x) + x * 0.0, [0.0, 2.0]),
    "clip of clip": (lambda x: jnp.clip(jnp.clip(x, 0.0, 1.0), 0.0, 1.0), [1.0, 0.0, 2.0, 0.5]),
    "max of min": (lambda x: jnp.maximum(jnp.minimum(x, 1.0), x), [1.0, 0.0, 2.0]),
    "abs of abs": (lambda x: jnp.abs(jnp.abs(x)) * jnp.abs(x), [0.0, -1.0]),
    "root of a square": (lambda x: jnp.sqrt(x * x) + (x**2) ** 0.5, [0.0, -1.0]),
    "cos of abs": (lambda x: jnp.cos(jnp.abs(x)), [0.0, -2.0]),
    "exp of log": (lambda x: jnp.exp(jnp.log(x)), [0.0, 4.0]),
    "powers": (lambda x: jnp.power(x, 1 / 3) + jnp.power(x, -0.5) + jnp.power(x, 2.0), [0.0, 4.0]),
    "an index made of it": (lambda x: (jnp.arange(3.0) * x)[x.astype(int)], [0.3, 1.2, 9.0, -1.0]),
    "an index out of range": (
        lambda x: (jnp.arange(3.0) * x).at[x.astype(int)].get(mode="fill", fill_value=7.0),
        [0.3, 1.2, 9.0],
    ),
    "a slice at an index made of it": (
        lambda x: lax.dynamic_slice(jnp.arange(5.0) * x, (x.astype(int),), (2,)).prod(),
        [0.3, 1.2, 9.0, -1.0],
    ),
    "an update at an index made of it": (
        lambda x: lax.dynamic_update_slice(jnp.arange(1, 5.0) * x, jnp.stack([x * x, x]), (x.astype(int),)).prod(),
        [0.3, 1.2, 9.0],
    ),
    "interp": (
        lambda x: jnp.interp(x, jnp.array([0.0, 1, 3]), jnp.array([1.0, 4, 2])),
        [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0],
    ),
    "searchsorted": (lambda x: x * jnp.searchsorted(jnp.array([0.0, 1, 3]), x), [-1.0, 0.0, 1.0]),
    "polyval": (lambda x: jnp.polyval(jnp.array([1.0, 2, 3]), x), [0.0, 1.0]),
    "a random number": (lambda x: x * jax.random.normal(jax.random.key(3)), [0.5]),
    "a random number of gamma": (lambda x: jax.random.gamma(jax.random.key(3), x), [0.5, 1.0]),
}
"""Functions of a float, and floats."""


def stacked(x: Any) -> Any:
    """Three numbers, of which some tie."""
    return jnp.stack([x[0], x[0] ** 2, 2 * x[0] - 1])


def matrix(v: Any) -> Any:
    """Symmetric and positive definite."""
    m = jnp.outer(v, v) * 0.1 + jnp.diag(jnp.arange(1.0, 4.0) + v)
    return (m + m.T) / 2


def safe_norm(v: Any) -> Any:
    """A norm that has a derivative at 0."""
    square = (v * v).sum()
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def root(v: Any) -> Any:
    """Of a cubic, by `custom_root`."""
    solve = lambda f, z: lax.fori_loop(0, 30, lambda _, z: z - f(z) / (3 * z**2), z)  # noqa: E731
    return lax.custom_root(lambda z: z**3 - v[0] - 2, 1.0, solve, lambda g, y: y / g(1.0))


@jax.custom_jvp
def safe_sqrt(x: Any) -> Any:
    """A root whose derivative at 0 is 0."""
    return jnp.sqrt(x)


safe_sqrt.defjvp(lambda p, t: (jnp.sqrt(p[0]), jnp.where(p[0] > 0, t[0] / (2 * jnp.sqrt(p[0])), 0.0)))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    """The identity, with adjoints that are clipped."""
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

ONE = np.array([[1.0, 2.0, 3.0], [0.5, 0.2, 0.1]])
SOME = [*V, [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
SEGMENTS = jnp.array([0, 2, 0])

OF_VECTORS: dict[str, tuple[Callable[..., Any], Any]] = {
    "solve": (lambda v: jnp.linalg.solve(matrix(v), v)[0], V),
    "inv": (lambda v: jnp.linalg.inv(matrix(v))[0, 1], V),
    "det": (lambda v: jnp.linalg.det(matrix(v)), V),
    "slogdet": (lambda v: jnp.linalg.slogdet(matrix(v))[1], V),
    "cholesky": (lambda v: jnp.linalg.cholesky(matrix(v)).sum(), V),
    "eigh": (lambda v: (jnp.linalg.eigh(matrix(v))[0] * v).sum() + jnp.linalg.eigh(matrix(v))[1][0, 0] ** 2, V),
    "svd": (lambda v: (jnp.linalg.svd(matrix(v))[1] * v).sum(), V),
    "qr": (lambda v: jnp.linalg.qr(matrix(v))[1].sum() + jnp.linalg.qr(matrix(v))[0][0, 1], V),
    "lu": (lambda v: jax.scipy.linalg.lu(matrix(v))[2].sum(), V),
    "pinv": (lambda v: jnp.linalg.pinv(matrix(v)[:, :2])[0, 1], V),
    "lstsq": (lambda v: jnp.linalg.lstsq(matrix(v)[:, :2], v)[0][0], V),
    "triangular": (lambda v: jax.scipy.linalg.solve_triangular(matrix(v), v, lower=True)[2], V),
    "cho_solve": (lambda v: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix(v)), v)[2], V),
    "matrix_power": (lambda v: jnp.linalg.matrix_power(matrix(v), 3)[0, 1], V),
    "norms": (lambda v: jnp.linalg.norm(v) + jnp.linalg.norm(v, 1) + jnp.linalg.norm(matrix(v), "nuc"), V),
    "norm at 0": (jnp.linalg.norm, SOME),
    "safe norm": (safe_norm, SOME),
    "logsumexp": (jax.nn.logsumexp, [*SOME, [-np.inf, 0.0, 1.0], [800.0, 0.0, 1.0]]),
    "softmax": (lambda v: (jax.nn.softmax(v) * jnp.arange(3)).sum(), [*SOME, [-np.inf, 0.0, 1.0], [800.0, 0.0, 1.0]]),
    "log_softmax": (lambda v: jax.nn.log_softmax(v)[1], SOME),
    "standardize": (lambda v: jax.nn.standardize(v)[0], [*V, [1.0, 1.0, 1.0]]),
    "max": (lambda v: jnp.max(stacked(v)) + jnp.min(v), [*SOME, [1.0, 1.0, 1.0]]),
    "min": (lambda v: jnp.min(stacked(v)) * jnp.ptp(v), [*SOME, [1.0, 1.0, 1.0]]),
    "max of rows": (lambda v: jnp.max(jnp.outer(v, v), axis=1).prod(), [*SOME, [1.0, 1.0, 1.0]]),
    "max where": (lambda v: jnp.max(v, initial=0.0, where=jnp.array([True, False, True])), SOME),
    "argmax": (lambda v: v[jnp.argmax(v)] * jnp.argmin(v), SOME),
    "prod": (lambda v: jnp.prod(v), [*SOME, [0.0, 1.0, 2.0]]),
    "cumprod": (lambda v: jnp.cumprod(v).sum(), [*SOME, [0.0, 1.0, 2.0]]),
    "cumsum": (lambda v: (jnp.cumsum(v) ** 2).sum(), SOME),
    "cummax": (lambda v: lax.cummax(v).sum() - lax.cummin(v).prod(), V),
    "cumlogsumexp": (lambda v: lax.cumlogsumexp(v)[2], V),
    "var and std": (lambda v: jnp.var(v) * jnp.std(v, ddof=1), V),
    "sort": (lambda v: (jnp.sort(stacked(v)) * jnp.arange(3)).sum(), V),
    "argsort": (lambda v: (v[jnp.argsort(-v)] * jnp.arange(3)).sum(), SOME),
    "median": (lambda v: jnp.median(v) + jnp.quantile(v, 0.3), V),
    "top_k": (lambda v: lax.top_k(v, 2)[0].prod(), SOME),
    "take": (lambda v: jnp.take(v, jnp.array([2, 0, 0]), mode="clip").prod(), SOME),
    "take_along_axis": (
        lambda v: jnp.take_along_axis(jnp.outer(v, v), jnp.array([[2, 0], [1, 1], [0, 0]]), 1).prod(),
        V,
    ),
    "gather from a constant": (lambda v: (TABLE[(v * 3).astype(int)] * v).sum(), V),
    "scatter add": (lambda v: jnp.zeros(3).at[SEGMENTS].add(v).prod() + v[0] * jnp.zeros(3).at[SEGMENTS].add(v)[0], V),
    "scatter set": (lambda v: (v * v).at[1].set(v[2]).prod(), V),
    "scatter max": (lambda v: (v * v).at[jnp.array([0, 1])].max(v[1:]).sum(), V),
    "segment_sum": (lambda v: (jax.ops.segment_sum(v, SEGMENTS, 3) ** 2).sum(), V),
    "segment_max": (lambda v: jax.ops.segment_max(v, SEGMENTS, 3)[0] * v[1], V),
    "roll and pad": (lambda v: (jnp.roll(v, 1) * v).sum() + jnp.pad(v, 1, mode="reflect").prod(), V),
    "convolve": (lambda v: (jnp.convolve(v, v) * jnp.arange(5)).sum(), V),
    "conv": (lambda v: lax.conv_general_dilated(v[None, None], v[None, None, :2], (1,), "SAME").prod() + v[0], V),
    "rfft": (lambda v: (jnp.abs(jnp.fft.rfft(jnp.append(v, 2.0))) ** 2 * jnp.arange(3)).sum(), V),
    "irfft": (lambda v: jnp.fft.irfft(jnp.fft.rfft(jnp.append(v, 2.0)) * jnp.arange(3)).prod(), V),
    "parts of complex numbers": (lambda v: (jnp.exp(1j * v[0]) * (v[1] + 2j * v[2])).real, V),
    "einsum": (lambda v: jnp.einsum("ij,j,i", matrix(v), v, v), V),
    "interp of knots": (lambda v: jnp.interp(0.3, jnp.array([0.0, 0.5, 1]), v) * v[0], V),
    "polyval of coefficients": (lambda v: jnp.polyval(v, v[0]), V),
    "trapezoid and gradient": (lambda v: jnp.trapezoid(v * v) + jnp.gradient(v * v)[1] + jnp.diff(v).prod(), V),
    "a branch on the norm": (
        lambda v: lax.cond((v * v).sum() > 0, lambda v: v / jnp.sqrt((v * v).sum()), lambda v: v, v)[0],
        SOME,
    ),
    "scan": (lambda v: lax.scan(lambda c, x: (jnp.sin(c) * x, c * x), v[0], v)[1].sum(), V),
    "scan backwards, with a break of values": (
        lambda v: lax.scan(lambda c, x: (jnp.where(c > 0.5, c, c + x * x), c), v[0], v, reverse=True)[0],
        V,
    ),
    "scan of a matrix": (
        lambda v: lax.scan(lambda c, x: (jnp.tanh(c @ matrix(v)), c[0]), v, None, length=4)[0].sum(),
        V,
    ),
    "fori_loop": (lambda v: lax.fori_loop(0, 5, lambda k, c: jnp.sin(c) * v[k % 3] + k, v[0]), V),
    "loop in a loop": (
        lambda v: lax.fori_loop(0, 3, lambda i, c: lax.fori_loop(0, 4, lambda j, c: jnp.sin(c + v[i]), c), v[0]),
        V,
    ),
    "a branch in a loop": (
        lambda v: lax.fori_loop(
            0, 5, lambda k, c: lax.cond(c > 0, lambda c: jnp.sqrt(c) - v[1], lambda c: v[0] - c * c, c), v[2]
        ),
        V,
    ),
    "associative_scan": (lambda v: lax.associative_scan(jnp.multiply, v + 1).sum(), V),
    "map": (lambda v: lax.map(lambda t: jnp.sin(t * v[0]), v).sum(), V),
    "vmap inside": (lambda v: jax.vmap(lambda t: jnp.sin(t * v[0]))(v).sum(), V),
    "grad inside": (lambda v: jax.grad(lambda v: jnp.sin(v).prod())(v)[0] * v[1], V),
    "hessian inside": (lambda v: jax.hessian(lambda v: jnp.sin(v).prod())(v)[0, 1], V),
    "checkpoint inside": (lambda v: jax.checkpoint(lambda v: jnp.sin(v).prod())(v), V),
    "custom_jvp": (lambda v: safe_sqrt(v[0] ** 2) * v[1] + safe_sqrt(jnp.abs(v)).sum(), SOME),
    "custom_vjp": (lambda v: (clipped(v * v) * v).sum(), V),
    "custom_root": (root, V),
    "cg": (lambda v: jax.scipy.sparse.linalg.cg(lambda x: matrix(v) @ x, v)[0][0], V),
    "odeint": (lambda v: odeint(lambda y, t: -y * v[0], 1.0 + v[1], jnp.array([0.0, 1.0]))[1], V),
    "special functions of two": (
        lambda v: jax.scipy.special.gammainc(1.5, v[0] ** 2 + 0.1) + jax.scipy.special.betainc(2.0, 3.0, v[1] ** 2),
        V,
    ),
    "what is not taken": (lambda v: jnp.where(v > 9, jnp.exp(v * 1e4) / (v - v), v).sum(), V),
    "what does not matter": (lambda v: (v * 0).astype(int).sum() + 3.0, V),
}
"""Functions of a vector, and vectors."""


def newton(v: Any) -> Any:
    """A root by as many steps as it takes."""
    return lax.while_loop(lambda s: jnp.abs(s * s - v[0]) > 1e-12, lambda s: 0.5 * (s + v[0] / s), 1.0 + 0 * v[0])


def mandelbrot(v: Any) -> Any:
    """The last point of an orbit, and how many there were."""

    def go(s: Any) -> Any:
        return (s[0] ** 2 + s[1] ** 2 < 4) & (s[2] < 20)

    def step(s: Any) -> Any:
        return s[0] ** 2 - s[1] ** 2 + v[0], 2 * s[0] * s[1] + v[1], s[2] + 1

    x, y, n = lax.while_loop(go, step, (0.0 * v[0], 0.0 * v[1], 0))
    return x + y * n


def rejection(v: Any) -> Any:
    """A random number above a threshold, scaled."""

    def step(s: Any) -> Any:
        key, sub = jax.random.split(s[0])
        return key, jax.random.normal(sub) * v[1]

    return lax.while_loop(lambda s: s[1] < 0.1, step, (jax.random.key(0), 0.0 * v[0]))[1] * v[0]


def adaptive(v: Any) -> Any:
    """Steps of a size that depends on the state, with a branch that refuses some."""

    def step(s: Any) -> Any:
        t, y, h = s
        new, error = y + h * jnp.sin(y * v[1]), h * jnp.abs(y)
        return lax.cond(error < 0.3, lambda: (t + h, new, h * 1.2), lambda: (t, y, h * 0.5))

    return lax.while_loop(lambda s: s[0] < 2, step, (0.0, v[0], 0.5))[1]


def of_lanes(v: Any) -> Any:
    """`jax.vmap` of a loop inside of a lane: JAX runs all until the last has ended."""
    one = lambda a: lax.while_loop(lambda s: s < 3, lambda s: s * (1 + a), 1.0 + a)  # noqa: E731
    return jax.vmap(one)(v).sum()


POSITIVE = np.abs(RNG.normal(size=(4, 3))) * 0.5 + 0.2
WITH_WHILE: dict[str, tuple[Callable[..., Any], Any]] = {
    "newton": (newton, POSITIVE),
    "mandelbrot": (mandelbrot, POSITIVE),
    "rejection": (rejection, POSITIVE),
    "adaptive": (adaptive, POSITIVE),
    "vmap of while": (of_lanes, POSITIVE),
    "fori_loop of a length known at run time": (
        lambda v: lax.fori_loop(0, (v[0] * 9).astype(int), lambda k, c: jnp.sin(c) * v[1] + k, v[2]),
        POSITIVE,
    ),
    "poisson": (lambda v: v[0] * jax.random.poisson(jax.random.key(1), 3.0), POSITIVE),
    "while in scan": (lambda v: lax.scan(lambda c, x: (newton(jnp.stack([c + x])), c), v[0], v)[0], POSITIVE),
}
"""Functions of a vector that JAX differentiates forward alone, and vectors."""
