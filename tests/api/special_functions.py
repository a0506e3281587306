"""Functions of one or two floats whose results for special values are compared with JAX's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jss
from jax import lax

from qdtrace.trace.importer.registry import RULES, load_rules

Table = dict[str, Callable[..., Any]]


def _pair(x: Any, y: Any) -> Any:
    return jnp.stack([x, y])


def _constants(x: Any) -> Any:
    return jnp.array([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0], [2.0, -0.0]], x.dtype)


DTYPES = ("int32", "int8", "uint8", "uint32", "bool", "float16", "bfloat16")
ACTIVATIONS = ("relu", "relu6", "softplus", "gelu", "silu", "elu", "leaky_relu", "sigmoid", "soft_sign", "log_sigmoid",
               "hard_tanh", "selu", "celu")  # fmt: skip
UNARY: Table = {
    "0 - x": lambda x: 0.0 - x,
    "-0 - x": lambda x: -0.0 - x,
    "x + 0": lambda x: x + 0.0,
    "x - 0": lambda x: x - 0.0,
    "x + -0": lambda x: x + -0.0,
    "x - -0": lambda x: x - -0.0,
    "x * 0": lambda x: x * 0.0,
    "x * -0": lambda x: x * -0.0,
    "x / 0": lambda x: x / 0.0,
    "0 / x": lambda x: 0.0 / x,
    "-0 / x": lambda x: -0.0 / x,
    "1 / x": lambda x: 1 / x,
    "1 / (0 - x)": lambda x: 1 / (0.0 - x),
    "1 / (x + 0)": lambda x: 1 / (x + 0.0),
    "x - x": lambda x: x - x,
    "x / x": lambda x: x / x,
    "x + x": lambda x: x + x,
    "x * 1": lambda x: x * 1.0,
    "x * -1": lambda x: x * -1.0,
    "x / 3": lambda x: x / 3,
    "x / 7e30": lambda x: x / 7e30,
    "x * 3 * 5": lambda x: x * 3.0 * 5.0,
    "x + 3 + 5": lambda x: x + 3.0 + 5.0,
    "x - 3 - 5": lambda x: x - 3.0 - 5.0,
    "x * inf": lambda x: x * jnp.inf,
    "x + inf": lambda x: x + jnp.inf,
    "inf - x": lambda x: jnp.inf - x,
    "-(x - 1)": lambda x: -(x - 1.0),
    "arctan2(-(x - 1), -1)": lambda x: jnp.arctan2(-(x - 1.0), -1.0),
    "arctan2(x, -1)": lambda x: jnp.arctan2(x, -1.0),
    "|x| * |x|": lambda x: jnp.abs(x) * jnp.abs(x),
    **{f"x ** {y}": lambda x, y=y: x**y for y in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -2.0, jnp.inf, -jnp.inf, jnp.nan)},
    **{f"{b} ** x": lambda x, b=b: b**x for b in (1.0, 0.0, -0.0, 2.0, -1.0, jnp.inf, -jnp.inf, jnp.nan)},
    **{f"integer_pow {y}": lambda x, y=y: lax.integer_pow(x, y) for y in (0, 2, 3, 5, 7, -1, -2, -3, -4)},
    **{f"max {c}": lambda x, c=c: jnp.maximum(x, c) for c in (0.0, -0.0, 1.0, jnp.inf, -jnp.inf, jnp.nan)},
    **{f"min {c}": lambda x, c=c: jnp.minimum(x, c) for c in (0.0, -0.0, 1.0, jnp.inf, -jnp.inf, jnp.nan)},
    "clip(x, 0, 1)": lambda x: jnp.clip(x, 0.0, 1.0),
    "clip(x, -1, -0)": lambda x: jnp.clip(x, -1.0, -0.0),
    "round away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round even": jnp.round,
    "trunc": jnp.trunc,
    "signbit": jnp.signbit,
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "log10": jnp.log10,
    "sinc": jnp.sinc,
    "nan_to_num": jnp.nan_to_num,
    "modf": jnp.modf,
    "frexp": jnp.frexp,
    "ldexp": lambda x: jnp.ldexp(x, 3),
    "x // 1": lambda x: x // 1.0,
    "x % 1": lambda x: x % 1.0,
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
    **{f"astype {d}": lambda x, d=d: x.astype(d) for d in DTYPES},
    **{f"nn.{n}": getattr(jax.nn, n) for n in ACTIVATIONS},
    **{f"special.{n}": getattr(jss, n) for n in ("entr", "expit", "ndtr", "log_ndtr")},
}  # fmt: skip

BINARY: Table = {
    "mod": jnp.mod,
    "x // y": lambda x, y: x // y,
    "fmax": jnp.fmax,
    "fmin": jnp.fmin,
    "power": jnp.power,
    "hypot": jnp.hypot,
    "copysign": jnp.copysign,
    "logaddexp": jnp.logaddexp,
    "xlogy": jss.xlogy,
    "xlog1py": jss.xlog1py,
    "where <": lambda x, y: jnp.where(x < y, x, y),
    "where >": lambda x, y: jnp.where(x > y, x, y),
    "-(x + y)": lambda x, y: -(x + y),
    "-(x - y)": lambda x, y: -(x - y),
    "x + -y": lambda x, y: x + (-y),
    "x - -y": lambda x, y: x - (-y),
    "-x * y": lambda x, y: (-x) * y,
    "-x / y": lambda x, y: (-x) / y,
    "x * y + 1": lambda x, y: x * y + 1.0,
    "sum": lambda x, y: jnp.sum(_pair(x, y)),
    "sum of one": lambda x, y: jnp.sum(x[None]) + y,
    "mean": lambda x, y: jnp.mean(_pair(x, y)),
    "sum of many": lambda x, y: jnp.sum(jnp.full((300,), x)) + y,
    "prod": lambda x, y: jnp.prod(_pair(x, y)),
    "max": lambda x, y: jnp.max(_pair(x, y)),
    "min": lambda x, y: jnp.min(_pair(x, y)),
    "argmax": lambda x, y: jnp.argmax(_pair(x, y)),
    "argmin": lambda x, y: jnp.argmin(_pair(x, y)),
    "sort": lambda x, y: jnp.sort(_pair(x, y)),
    "cumsum": lambda x, y: jnp.cumsum(_pair(x, y)),
    "cumsum of one": lambda x, y: jnp.cumsum(x[None]) + y,
    "cumsum of many": lambda x, y: jnp.cumsum(jnp.full((100,), x))[::50],
    "cumprod": lambda x, y: jnp.cumprod(_pair(x, y)),
    "cummax": lambda x, y: lax.cummax(_pair(x, y)),
    "cummin": lambda x, y: lax.cummin(_pair(x, y)),
    "cumlogsumexp": lambda x, y: lax.cumlogsumexp(_pair(x, y)),
    "logsumexp": lambda x, y: jax.nn.logsumexp(_pair(x, y)),
    "softmax": lambda x, y: jax.nn.softmax(_pair(x, y)),
    "clip(x, y, 1)": lambda x, y: jnp.clip(x, y, 1.0),
    "clip(x, 0, y)": lambda x, y: jnp.clip(x, 0.0, y),
    "constants @ v": lambda x, y: _constants(x) @ _pair(x, y),
    "v @ constants": lambda x, y: _pair(x, y) @ _constants(x).T,
    "dot of one": lambda x, y: jnp.dot(x[None], y[None]),
    "dot with ones": lambda x, y: jnp.dot(_pair(x, y), jnp.ones(2, x.dtype)),
    "outer": lambda x, y: jnp.outer(jnp.array([0.0, 1.0], x.dtype), _pair(x, y)),
    "cross": lambda x, y: jnp.cross(jnp.stack([x, y, x]), jnp.array([0.0, 0.0, 1.0], x.dtype)),
    "kron": lambda x, y: jnp.kron(jnp.eye(2, dtype=x.dtype), _pair(x, y)),
    "einsum": lambda x, y: jnp.einsum("ij,j->i", jnp.array([[0.0, 1.0], [1.0, 0.0]], x.dtype), _pair(x, y)),
    "eye * x + y": lambda x, y: jnp.eye(2, dtype=x.dtype) * x + y,
    "at.add": lambda x, y: _pair(x, y).at[0].add(y),
    "at.mul": lambda x, y: _pair(x, y).at[0].mul(y),
    "segment_sum": lambda x, y: jax.ops.segment_sum(_pair(x, y), jnp.array([1, 1]), 2),
    "complex sum": lambda x, y: _parts(lax.complex(x, y) + lax.complex(0.0 * x, -0.0 * y)),
    "complex negative": lambda x, y: _parts(-lax.complex(x, y)),
    "conjugate": lambda x, y: _parts(jnp.conj(lax.complex(x, y))),
}


def _parts(z: Any) -> Any:
    return jnp.stack([jnp.real(z), jnp.imag(z)])


def bound(dtype: Any, arity: int) -> Table:
    """Every primitive with an import rule that can be bound to so many floats and nothing else."""
    load_rules()
    found: Table = {}
    for name in RULES:
        primitive = getattr(lax, f"{name.replace('-', '_')}_p", None)
        for params in ({}, {"accuracy": None}):
            if primitive is None or primitive.multiple_results or name in found:
                continue
            run = lambda *xs, primitive=primitive, params=params: primitive.bind(*xs, **params)  # noqa: E731
            try:
                out = jax.jit(run).lower(*[jax.ShapeDtypeStruct((), dtype)] * arity).out_info
            except Exception:
                continue  # it wants other operands or parameters
            if out.shape == ():
                found[name] = run
    return found
