"""Every function of the table with every dtype that JAX takes there: JAX's values, or one of the refusals listed."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from qdtrace.errors import UnsupportedError

from .harness import check

RNG = np.random.default_rng(3)
UNARY = (
    "neg", "abs", "sign", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "logistic", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv",
    "lgamma", "digamma", "floor", "ceil", "round", "is_finite", "bitwise_not", "population_count", "clz", "square",
    "real", "imag", "conj", "bessel_i0e", "bessel_i1e", "one_minus_square", "log2",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2", "nextafter", "lt", "le", "gt", "ge", "eq", "ne",
    "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right_logical", "shift_right_arithmetic",
    "mulhi", "complex",
)  # fmt: skip
REFUSED_COMPLEX = ("atan2", "clamp", "cumlogsumexp")
"""Functions of complex numbers without a rule; the message names them."""
_two = jnp.array([0, 7])
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    **{name: (getattr(lax, name), (4,)) for name in UNARY if hasattr(lax, name)},
    **{name: (getattr(lax, name), (4,), (4,)) for name in BINARY},
    "integer_pow": (lambda x: (lax.integer_pow(x, 3), lax.integer_pow(x, 1)), (4,)),
    "reciprocal_pow": (lambda x: lax.integer_pow(x, -2), (4,)),
    "clamp": (lax.clamp, (4,), (4,), (4,)),
    "select": (lambda a, b: lax.select(jnp.array([True, False, True, False]), a, b), (4,), (4,)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), (4,)),
    "polyval": (lambda p, x: jnp.polyval(p, x[0]), (3,), (4,)),
    "reshape": (lambda x: x.reshape(-1, order="F"), (2, 3)),
    "flip": (jnp.flip, (2, 3)),
    "pad": (lambda x: jnp.pad(x, 1), (3,)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y]), (3,), (2,)),
    "stack": (lambda x, y: jnp.stack([x, y], 1), (3,), (3,)),
    "tile": (lambda x: jnp.tile(x, 2), (3,)),
    "roll": (lambda x: jnp.roll(x, 1), (3,)),
    "take_fill": (lambda x: x.at[_two].get(mode="fill"), (3,)),
    "take_clip": (lambda x: x.at[_two].get(mode="clip"), (3,)),
    "set": (lambda x, y: x.at[_two].set(y), (3,), (2,)),
    "scatter_add": (lambda x, y: x.at[jnp.array([0, 0])].add(y), (3,), (2,)),
    "scatter_mul": (lambda x, y: x.at[jnp.array([0, 0])].mul(y), (3,), (2,)),
    "scatter_min": (lambda x, y: x.at[jnp.array([0, 0])].min(y), (3,), (2,)),
    "scatter_apply": (lambda x: x.at[1].apply(lambda v: v * v), (3,)),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (jnp.int32(1),), (2,)), (4,)),
    "dynamic_update_slice": (lambda x, y: lax.dynamic_update_slice(x, y, (jnp.int32(1),)), (4,), (2,)),
    "sum": (jnp.sum, (4,)),
    "prod": (jnp.prod, (4,)),
    "max_of": (jnp.max, (4,)),
    "min_of": (jnp.min, (4,)),
    "reduce_max": (lambda x: lax.reduce_max(x, (0,)), (20,)),
    "cumsum": (lax.cumsum, (4,)),
    "cumprod": (lax.cumprod, (4,)),
    "cummax": (lambda x: lax.cummax(x, reverse=True), (4,)),
    "cumlogsumexp": (lax.cumlogsumexp, (4,)),
    "argmax": (lambda x: lax.argmax(x, 0, np.int32), (4,)),
    "sort": (jnp.sort, (5,)),
    "sort_by_two": (lambda x, y: lax.sort((x, y), num_keys=2), (5,), (5,)),
    "sort_in_memory": (jnp.sort, (40,)),
    "argsort": (jnp.argsort, (5,)),
    "top_k": (lambda x: lax.top_k(x, 2), (5,)),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2), (5,)),
    "approx_min_k": (lambda x: lax.approx_min_k(x, 2), (5,)),
    "searchsorted": (lambda x, y: jnp.searchsorted(jnp.sort(x), y), (5,), (3,)),
    "unique": (lambda x: jnp.unique(x, size=3), (5,)),
    "matmul": (jnp.matmul, (2, 3), (3, 2)),
    "iota": (lambda x: lax.iota(x.dtype, 4) + x, (4,)),
    "iota_in_memory": (lambda x: lax.iota(x.dtype, 99)[jnp.int32(70) :], (4,)),
    "empty": (lambda x: lax.empty((2,), x.dtype) * x, (2,)),
    "fori_loop": (lambda x: lax.fori_loop(0, 3, lambda _, c: c * x, x), (2,)),
    "cond": (lambda x: lax.cond(x[0] != 0, lambda v: v, lambda v: v * v, x), (2,)),
    "scan": (lambda x: lax.scan(lambda c, v: (v, c), x[0], x), (6,)),
    "literals": (lambda x: x * 2 + 1, (4,)),
    "complex_literals": (lambda x: jnp.where(x == 0, 1j, x * (2 + 1j) + 1j), (4,)),
    "complex_constant": (lambda x: x * jnp.array([1j, 2.0, 1 - 1j, 0]), (4,)),
    "norm": (jnp.linalg.norm, (4,)),
    "reduce": (lambda x: lax.reduce(x, np.zeros((), x.dtype), lambda a, b: a + b * b, (0,)), (4,)),
}
for _name in ("bool", "int8", "uint16", "float16", "float32", "complex64"):
    FUNCTIONS[f"to_{_name}"] = (lambda x, d=_name: lax.convert_element_type(x, d), (4,))
for _name in ("uint8", "int16", "float32"):
    FUNCTIONS[f"bits_{_name}"] = (lambda x, d=_name: lax.bitcast_convert_type(x, d), (4,))


def _drawn(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b":
        return RNG.integers(0, 2, (3, *shape)).astype(dtype)
    if dtype.kind in "iu":
        return RNG.integers(0 if dtype.kind == "u" else -9, 10, (3, *shape)).astype(dtype)
    values = RNG.uniform(0.2, 0.8, (3, *shape))
    return (values + 1j * RNG.uniform(0.2, 0.8, (3, *shape)) if dtype.kind == "c" else values).astype(dtype)


def _is_defined(fn: Any, args: list[np.ndarray]) -> bool:
    """True when JAX has the function for these dtypes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            jax.eval_shape(jax.vmap(fn), *args)
            jax.jit(jax.vmap(fn)).lower(*args).compile()
        except Exception:  # JAX has many kinds of refusals here
            return False
    return True


def _check(name: str, dtype: Any) -> None:
    fn, *shapes = FUNCTIONS[name]
    args = [_drawn(np.dtype(dtype), shape) for shape in shapes]
    if not _is_defined(fn, args):
        return
    if np.dtype(dtype).kind == "c" and name in REFUSED_COMPLEX:
        with pytest.raises(UnsupportedError, match=f"`{name}` of complex numbers has no import rule"):
            check(fn, *args)
    else:
        check(fn, *args)


@pytest.mark.sample(full=2)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.complex64], ids=lambda d: d.__name__)
def test_dtype(name: str, dtype: Any) -> None:
    _check(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_dtypes(name: str) -> None:
    for dtype in (np.int8, np.int16, np.uint16, np.int32, np.uint32, np.float16, ml_dtypes.bfloat16, np.float32):
        _check(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_wide_dtypes(name: str) -> None:
    with jax.enable_x64(True):
        for dtype in (np.int64, np.uint64, np.float64, np.complex128):
            _check(name, dtype)
