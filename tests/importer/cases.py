"""Functions of one element that draw the parameters of JAX primitives: each parameter that an import rule reads, with
different values, on operands that tell the values apart.

`test_parameters` compares them with JAX, and asks that dropping any parameter would be seen. A new rule with parameters
needs cases here.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import lax
from jax._src.lax.linalg import ormqr
from jax.ad_checkpoint import checkpoint_name

RNG = np.random.default_rng(5)
ROWS = 3
RELEASE = tuple(map(int, jax.__version__.split(".")[:2]))
NEWER = RELEASE >= (0, 12)
"""Some primitives and parameters came with jax 0.12."""


@dataclass(frozen=True, eq=False)
class Case:
    """A function and its operands, with a leading axis of rows."""

    name: str
    fn: Any
    args: tuple[Any, ...]


CASES: list[Case] = []


def case(name: str, fn: Any, *args: Any) -> None:
    """Adds a case."""
    CASES.append(Case(f"{name}-{sum(c.name.startswith(name + '-') for c in CASES)}", fn, args))


def _floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(0.2, 0.8, (ROWS, *shape)).astype(dtype)


def _integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return RNG.integers(low, high, (ROWS, *shape)).astype(dtype)


S, V, A, M = _floats(), _floats(5), _floats(2, 3), _floats(3, 3)
H = _floats(dtype=np.float16)
Z = (_floats(3) + 1j * _floats(3)).astype(np.complex64)
I = np.array([-2, 7, 3], np.int32)  # noqa: E741 - indices, some of them out of bounds
OUTSIDE = np.array([[-7, 2], [-2, 7], [9, 4]], np.int32)
SQUARE = _floats(3, 3) + 2 * np.eye(3, dtype=np.float32)
SYMMETRIC = SQUARE + SQUARE.transpose(0, 2, 1)
TRIANGLE = np.triu(SQUARE) + np.diag([0, 1, 2]).astype(np.float32)
KEYS = RNG.integers(0, 2**32, (ROWS, 2), dtype=np.uint32)


def _eig(a: Any, left: bool, right: bool) -> Any:
    return lax.linalg.eig(a, compute_left_eigenvectors=left, compute_right_eigenvectors=right)


# Elementwise.
_HAVE_ACCURACY = [
    "cbrt", "cos", "exp", "exp2", "expm1", "log", "log1p", "logistic", "rsqrt", "sin", "sqrt", "tan", "tanh",
    *(("log2", "erfc") if NEWER else ()),
]  # fmt: skip
for _name in _HAVE_ACCURACY:
    for _accuracy in (None, lax.AccuracyMode.HIGHEST):
        case(_name, lambda x, n=_name, a=_accuracy: getattr(lax, n)(x, accuracy=a), S)
case("mul", lambda x: lax.mul(x, x), H)
case("mul", lambda x: lax.mul(x, x, out_dtype=jnp.float32), H)
for _y in (1, 2, 3, 4, 7, -2, 0):
    case("integer_pow", lambda x, y=_y: lax.integer_pow(x, y), 1 + S)
    case("integer_pow", lambda x, y=_y: lax.integer_pow(x, y), Z)
_HALVES = np.array([[0.5, -0.5, 1.5, 2.5, -2.5]] * ROWS, np.float32)
for _method in lax.RoundingMethod:
    case("round", lambda x, m=_method: lax.round(x, m), _HALVES)
for _dtype in (np.float16, np.int32, np.complex64, np.bool_):
    case("convert_element_type", lambda x, d=_dtype: lax.convert_element_type(x, d), 3 * S)
case("convert_element_type", lambda x: x + 1, _integers(0, 9))
case("convert_element_type", lambda x: jax.lax.convert_element_type(x, float), _integers(0, 9))
for _dtype in (np.int32, np.uint16, np.uint8):
    case("bitcast_convert_type", lambda x, d=_dtype: lax.bitcast_convert_type(x, d), V)
_SHORT = _integers(0, 2**14, 3, 2, dtype=np.uint16)
case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, np.float32), _SHORT)
for _bits in ((5, 10), (8, 7), (8, 23), (4, 3), (8, 10)):
    case("reduce_precision", lambda x, b=_bits: lax.reduce_precision(x, *b), 1e5 * V)
case("conj", lax.conj, Z)
case("conj", lax.conj, S)
case("name", lambda x: checkpoint_name(x, "here") + checkpoint_name(x, "there"), S)

# Structure.
case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (5, 5), (0,)), V)
case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (5, 5), (1,)), V)
case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, 5), (1,)), V)
case("reshape", lambda x: lax.reshape(x, (3, 2)), A)
case("reshape", lambda x: lax.reshape(x, (3, 2), dimensions=(1, 0)), A)
case("reshape", lambda x: lax.reshape(x, (6,), dimensions=(0, 1)), A)
case("reshape", lambda x: x.reshape(-1, order="F"), _floats(2, 3, 2))
case("reshape", lambda x: x.ravel("F"), _floats(20, 30))
case("squeeze", lambda x: lax.squeeze(x, (0,)), _floats(1, 3, 1))
case("squeeze", lambda x: lax.squeeze(x, (0, 2)), _floats(1, 3, 1))
case("transpose", lambda x: lax.transpose(x, (1, 0, 2)), _floats(2, 2, 2))
case("transpose", lambda x: lax.transpose(x, (2, 1, 0)), _floats(2, 2, 2))
case("slice", lambda x: lax.slice(x, (1,), (4,)), V)
case("slice", lambda x: lax.slice(x, (0,), (3,)), V)
case("slice", lambda x: lax.slice(x, (0,), (5,), (2,)), V)
case("tile", lambda x: lax.tile(x, (2, 1)), A)
case("tile", lambda x: lax.tile(x, (1, 3)), A)
case("rev", lambda x: lax.rev(x, (0,)), A)
case("rev", lambda x: lax.rev(x, (1,)), A)
case("rev", lambda x: lax.rev(x, (0, 1)), A)
case("rev", jnp.flip, S)
case("concatenate", lambda x: lax.concatenate([x, 2 * x], 0), M)
case("concatenate", lambda x: lax.concatenate([x, 2 * x], 1), M)
case("stack", lambda x: jnp.stack([x, 2 * x], 0), V[:, :2])
case("stack", lambda x: jnp.stack([x, 2 * x], 1), V[:, :2])
case("unstack", lambda x: list(jnp.unstack(x, axis=0)), M)
case("unstack", lambda x: list(jnp.unstack(x, axis=1)), M)
case("split", lambda x: lax.split(x, (1, 2), 0), M)
case("split", lambda x: lax.split(x, (1, 2), 1), M)
case("split", lambda x: lax.split(x, (2, 1), 1), M)
case("pad", lambda x: lax.pad(x, 9.0, ((1, 0, 1),)), V)
case("pad", lambda x: lax.pad(x, 9.0, ((-1, 2, 0),)), V)
for _dimension in (0, 1):
    case("iota", lambda x, d=_dimension: x * lax.broadcasted_iota(jnp.float32, (2, 2), d), S)
case("iota", lambda x: x + lax.iota(jnp.int8, 3), _integers(0, 9, dtype=np.int8))
for _dtype, _shape in ((np.float32, (2,)), (np.complex64, (3,))):
    case("empty", lambda x, d=_dtype, s=_shape: x * lax.empty(s, d), S)
case("empty", lambda x: lax.empty((20, 30), jnp.float32).at[2, 3].set(x)[2, 2:4], S)
for _values in (S, H):
    case("empty2", jax.grad(lambda x: lax.cond(x > 0.5, jnp.sin, lambda v: 2 * v, x)), _values)

# Indices.
case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), V, I)
case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i,), (3,)), V, I)
for _mode in ("clip", "fill", "promise_in_bounds"):
    case("gather", lambda x, i, m=_mode: x.at[i].get(mode=m), V, I)
    case("gather", lambda x, i, m=_mode: x.at[i].get(mode=m), _floats(300), I * 50)
case("gather", lambda x, i: x.at[i].get(mode="fill", fill_value=7.0), V, I)
case("gather", lambda x, i: x.at[i].get(mode="fill", fill_value=-1.0), V, I)
_SORTED = np.array([[0, 3]] * ROWS, np.int32)
case("gather", lambda x, i: x.at[i].get(unique_indices=True, indices_are_sorted=True), V, _SORTED)
case("gather", lambda x, i: x[i], V, _SORTED)
case("gather", lambda x, i: x[:, i], M, _integers(0, 3, 2))
case("gather", lambda x, i: x[i], M, _integers(0, 3, 2))
_WINDOWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))
for _size in (2, 3):
    case("gather", lambda x, i, n=_size: lax.gather(x, i[:, None], _WINDOWS, (n,), mode="clip"), V, _integers(-1, 5, 2))
for _method in ("set", "add", "multiply", "min", "max"):
    for _mode in ("clip", "drop", "promise_in_bounds"):
        case(
            f"scatter-{_method}",
            lambda x, i, u, a=_method, m=_mode: getattr(x.at[i], a)(u, mode=m), V, OUTSIDE, _floats(2),
        )  # fmt: skip
        case(
            f"scatter-{_method}",
            lambda x, i, u, a=_method, m=_mode: getattr(x.at[i], a)(u, mode=m),
            _floats(300), 100 * OUTSIDE, _floats(2),
        )  # fmt: skip
    case(
        f"scatter-{_method}",
        lambda x, i, u, a=_method: getattr(x.at[i], a)(u, unique_indices=True, indices_are_sorted=True),
        V, _SORTED, 2 * _floats(2),
    )  # fmt: skip
    case(
        f"scatter-{_method}",
        lambda x, i, u, a=_method: getattr(x.at[:, i], a)(u), M, _integers(0, 3, 2), 2 * _floats(3, 2),
    )  # fmt: skip
case("scatter-sub", lambda x, i, u: x.at[i].subtract(u), V, OUTSIDE, _floats(2))
case("scatter-sub", lambda x, i, u: x.at[i].subtract(u, mode="clip"), V, OUTSIDE, _floats(2))
case(
    "scatter-sub", lambda x, i, u: x.at[:, i].subtract(u, unique_indices=True, indices_are_sorted=True),
    M, np.array([[0, 2]] * ROWS, np.int32), _floats(3, 2),
)  # fmt: skip
for _fn in (jnp.sin, lambda v: 2 * v + 1):
    case("scatter-apply", lambda x, i, f=_fn: x.at[i].apply(f), V, I)
    case("scatter-apply", lambda x, i, f=_fn: x.at[i].apply(f), V, np.array([[1, 1]] * ROWS, np.int32))
    case("scatter-apply", lambda x, i, f=_fn: x.at[i].apply(f), _floats(300), I * 50)

# Reductions.
for _axes in ((0,), (1,), (0, 1)):
    for _fn in (jnp.sum, jnp.prod, jnp.max, jnp.min):
        case(f"reduce_{_fn.__name__}", lambda x, f=_fn, a=_axes: f(x, axis=a), M)
    for _fn in (lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor):
        _start = -1 if _fn is lax.bitwise_and else 0
        case(
            f"reduce_{_fn.__name__}", lambda x, f=_fn, a=_axes, s=_start: lax.reduce(x, np.int32(s), f, a),
            _integers(0, 2**20, 3, 3),
        )  # fmt: skip
    for _fn in (lambda a, b: a + 2 * b, lambda a, b: a - b):
        case("reduce", lambda x, f=_fn, a=_axes: lax.reduce(x, np.float32(0), f, a), M)
for _fn in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp):
    for _axis, _reverse in ((0, False), (1, False), (1, True)):
        case(_fn.__name__, lambda x, f=_fn, a=_axis, r=_reverse: f(x, axis=a, reverse=r), M - 0.4)
for _fn in (lax.argmax, lax.argmin):
    for _axis, _dtype in ((0, np.int32), (1, np.int32), (1, np.int8)):
        case(_fn.__name__, lambda x, f=_fn, a=_axis, d=_dtype: f(x, a, d), M)
for _axis, _stable in ((0, True), (1, True), (1, False)):
    case("sort", lambda x, a=_axis, s=_stable: lax.sort(x, dimension=a, is_stable=s), M)
for _keys in (1, 2):
    case("sort", lambda x, y, k=_keys: lax.sort((x, y), num_keys=k), _integers(0, 2, 6), _integers(0, 9, 6))
for _k, _axis in ((1, 0), (2, 0), (2, 1)):
    case("top_k", lambda x, k=_k, a=_axis: lax.top_k(x, k, axis=a), M)
if NEWER:
    case("top_k", lambda x: lax.top_k(x, 2, is_stable=True), V)
    case("top_k", lambda x: lax.top_k(x, 2, is_stable=False), V)
for _k, _dimension in ((1, 0), (2, 0), (2, 1), (2, -1)):
    for _find in (lax.approx_max_k, lax.approx_min_k):
        case("approx_top_k", lambda x, k=_k, d=_dimension, f=_find: f(x, k, reduction_dimension=d), M)
        case("approx_top_k", lambda x, k=_k, f=_find: f(x, k, recall_target=0.5), V)
for _contract in (0, 1):
    case("dot_general", lambda x, y, c=_contract: lax.dot_general(x, y, (((c,), (0,)), ((), ()))), M, M + 1)
_BATCHED = (((1,), (2,)), ((0,), (0,)))
case("dot_general", lambda x, y: lax.dot_general(x, y, _BATCHED), _floats(2, 2, 2), _floats(2, 2, 2))
for _precision in (lax.Precision.DEFAULT, lax.Precision.HIGHEST, (lax.Precision.HIGH, lax.Precision.HIGH)):
    case("dot_general", lambda x, y, p=_precision: jnp.dot(x, y, precision=p), M, M + 1)
for _dtype in (np.float32, np.float16):
    case("dot_general", lambda x, d=_dtype: jnp.dot(x, x, preferred_element_type=d), _floats(3, dtype=np.float16))

# Random numbers.
_RAW = lambda raw: jax.random.wrap_key_data(raw, impl="threefry2x32")  # noqa: E731 - used in cases
for _dtype, _shape in ((np.uint32, (3,)), (np.uint16, (3,)), (np.uint8, (3,)), (np.uint32, (2, 2))):
    case("random_bits", lambda raw, d=_dtype, s=_shape: jax.random.bits(_RAW(raw), s, d), KEYS)
for _count in (2, 3):
    case("random_split", lambda raw, n=_count: jax.random.key_data(jax.random.split(_RAW(raw), n)), KEYS)
case("random_seed", lambda i: jax.random.key_data(jax.random.key(i)), _integers(0, 99))

# Control flow and calls.
for _factor in (2.0, 3.0):
    case("while", lambda x, y, c=_factor: lax.while_loop(lambda s: s < c * y, lambda s: s + x + 0.1 * c, x), S, S)
    case("while", lambda x, c=_factor: lax.while_loop(lambda s: s < 20, lambda s: c * s, x), 1 + S)
    case("cond", lambda x, c=_factor: lax.cond(x > 0.5, lambda v: c * v, lambda v: v - c, x), S)
    case("jit", lambda x, c=_factor: jax.jit(lambda v: jnp.sin(v) * c + v)(x), S)
    case("checkpoint", lambda x, c=_factor: jax.checkpoint(lambda v: jnp.sin(v) * c + v)(x), S)
    case("checkpointed_loop", lambda x, c=_factor: _checkpointed_loop(lambda v: jnp.sin(v) * c * v, x), S)
    case("custom_jvp_call", lambda x, c=_factor: _with_jvp(lambda v: jnp.sin(v) * c + v)(x), S)
    case("custom_vjp_call", lambda x, c=_factor: _with_vjp(lambda v: jnp.sin(v) * c + v)(x), S)
    case("custom_linear_solve", lambda x, c=_factor: lax.custom_linear_solve(lambda v: c * v, x, lambda _, b: b / c), S)
case(
    "custom_linear_solve",
    lambda a, x: lax.custom_linear_solve(lambda v: a * v, x, lambda _, b: b / a, lambda _, b: b / a), S, S,
)  # fmt: skip
for _reverse, _length in ((False, 5), (True, 5), (True, 3), (False, 6)):
    case("scan", lambda x, r=_reverse: lax.scan(lambda c, v: (c * v + 1, c), x[0], x, reverse=r), _floats(_length))
case("scan", lambda x: lax.scan(lambda c, _: (2 * c, None), x, None, length=7)[0], S)
case("scan", lambda x: lax.scan(lambda c, _: (2 * c, None), x, None, length=9, unroll=3)[0], S)
case("scan", lambda x, y: lax.scan(lambda c, _: ((c[1], c[0] * y), None), (x, y), None, length=6)[0], S, 1 + S)
case("scan", lambda x, y: lax.scan(lambda c, v: (c * y, v * x), x, jnp.arange(6.0)), S, 1 + S)
for _platforms in ({"cpu": jnp.sin}, {"cuda": jnp.sin}, {"cuda": jnp.tan, "cpu": jnp.exp}):
    case("platform_index", lambda x, p=_platforms: lax.platform_dependent(x, default=jnp.cos, **p), S)


def _checkpointed_loop(fn: Any, x: Any) -> Any:
    return jax.value_and_grad(jax.checkpoint(lambda v: lax.fori_loop(0, 3, lambda _, s: fn(s), v)))(x)


def _with_jvp(fn: Any) -> Any:
    wrapped = jax.custom_jvp(fn)
    wrapped.defjvp(lambda p, t: (fn(*p), t[0]))
    return wrapped


def _with_vjp(fn: Any) -> Any:
    wrapped = jax.custom_vjp(fn)
    wrapped.defvjp(lambda x: (fn(x), None), lambda _, g: (g,))
    return wrapped


# Linear algebra.
for _size in (3, 4):
    _pivots = np.array([[1, 2, 2]] * ROWS, np.int32)
    case("lu_pivots_to_permutation", lambda p, n=_size: lax.linalg.lu_pivots_to_permutation(p, n), _pivots)
for _flag in (False, True):
    for _name in ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"):
        _given = {"left_side": True, "transpose_a": True, _name: _flag}
        case("triangular_solve", lambda a, b, g=_given: lax.linalg.triangular_solve(a, b, **g), SQUARE + 1j * M, M + 0j)
    case("qr", lambda a, f=_flag: jnp.linalg.qr(a, mode="complete" if f else "reduced"), _floats(3, 2))
    case("eigh", lambda a, f=_flag: jnp.abs(lax.linalg.eigh(a, lower=f, symmetrize_input=False)[0]), SQUARE)
    case("eigh", lambda a, f=_flag: jnp.abs(lax.linalg.eigh(a, sort_eigenvalues=f)[0]), SYMMETRIC)
    case("svd", lambda a, f=_flag: [jnp.abs(x) for x in lax.linalg.svd(a, full_matrices=f)], _floats(3, 2))
    case("svd", lambda a, f=_flag: lax.linalg.svd(a, compute_uv=False, full_matrices=f), SQUARE)
case("qr", lambda a: jsl.qr(a, pivoting=True, mode="economic"), _floats(3, 2))
for _left in (False, True):
    for _flag in (False, True):
        case("ormqr", lambda a, f=_left, t=_flag: ormqr(a, a[0], a, left=f, transpose=t), M)
case("tridiagonal", lambda a: lax.linalg.tridiagonal(a, lower=False)[1:], SYMMETRIC)
case("tridiagonal", lambda a: lax.linalg.tridiagonal(a, lower=True)[1:], SYMMETRIC)
for _by in (1.0, 2.0):
    case("symmetric_product", lambda a, b=_by: lax.linalg.symmetric_product(a, a, alpha=b, symmetrize_output=True), M)
    case("symmetric_product", lambda a, b=_by: lax.linalg.symmetric_product(a, a, beta=b, symmetrize_output=True), M)
for _left in (False, True):
    for _right in (False, True):
        case("eig", lambda a, f=_left, r=_right: [jnp.abs(v) for v in _eig(a, f, r)], TRIANGLE)
    case("schur", lambda a, f=_left: jnp.abs(lax.linalg.schur(a, compute_schur_vectors=f)[0]), TRIANGLE + 0j)
for _function in (jnp.sin, jnp.cos):
    case("custom_vmap_call", jax.custom_batching.sequential_vmap(_function), V)

# Windows, convolutions, transforms, samples.
_ADD, _OWN = (0.0, lax.add), (0.0, lambda a, b: a + b + a * b)
_POOL: dict[str, Any] = {"window_dimensions": (2, 2), "window_strides": (1, 1), "padding": "VALID"}
_POOLS: list[dict[str, Any]] = [
    {},
    {"window_dimensions": (2, 3)},
    {"window_strides": (1, 2)},
    {"padding": ((1, 0), (0, 2))},
    {"base_dilation": (1, 2)},
    {"window_dilation": (1, 2)},
]
_PIXELS = _floats(3, 5)
for _form in _POOLS:
    for _start, _combine in (_ADD, (-np.inf, lax.max), (np.inf, lax.min), _OWN):
        case(
            "reduce_window",
            lambda x, s=_start, c=_combine, f=_form: lax.reduce_window(x, np.float32(s), c, **{**_POOL, **f}),
            _PIXELS,
        )
    for _start, _combine in ((-np.inf, lax.max), (np.inf, lax.min)):
        _pooled = lambda x, s=_start, c=_combine, f=_form: lax.reduce_window(x, s, c, **{**_POOL, **f})  # noqa: E731
        case("select_and_gather_add", lambda x, p=_pooled: jax.jvp(p, (x,), (2 * x + 1,))[1], _PIXELS)
        if "base_dilation" not in _form and "window_dilation" not in _form:
            case("select_and_scatter_add", jax.grad(lambda x, p=_pooled: jnp.sum(p(x) ** 2)), _PIXELS)
case("reduce_window", lambda x: lax.reduce_window(x, jnp.float32(1), lambda a, b: a * b, **_POOL), _PIXELS)
_CONVOLUTION: dict[str, Any] = {"window_strides": (1, 1), "padding": "VALID"}
_CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"window_strides": (1, 2)},
    {"padding": ((1, 0), (0, 2))},
    {"padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 2)},
    {"rhs_dilation": (2, 1)},
    {"feature_group_count": 2},
    {"batch_group_count": 2},
    {"precision": lax.Precision.HIGHEST},
    {"dimension_numbers": ("NHWC", "OIHW", "NHWC")},
]
_IMAGES, _KERNEL = _floats(2, 2, 4, 2), _floats(4, 2, 2, 1)
for _form in _CONVOLUTIONS:
    _depth = 1 if "feature_group_count" in _form else None
    case(
        "conv_general_dilated",
        lambda x, k, f=_form, d=_depth: lax.conv_general_dilated(x, k[:, :d], **{**_CONVOLUTION, **f}),
        _IMAGES,
        _KERNEL,
    )
case(
    "conv_general_dilated",
    lambda x, k: lax.conv_general_dilated(x, k, **_CONVOLUTION, preferred_element_type=jnp.float32),
    _IMAGES.astype(np.float16),
    _KERNEL.astype(np.float16),
)
for _name in ("fft", "ifft", "rfft", "irfft", "fft2"):
    case("fft", lambda x, n=_name: getattr(jnp.fft, n)(x if n == "rfft" else x + 1j * x[::-1]), A)
for _name in ("gamma", "loggamma"):
    case("random_gamma", lambda k, a, n=_name: getattr(jax.random, n)(jax.random.wrap_key_data(k), a), KEYS, S)
