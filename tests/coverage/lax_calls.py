"""jax.lax and jax.lax.linalg."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .numpy_calls import COMPLEX, HOST, INTS, MATRICES, SMALL
from .table import SPD, SQUARE, B, C, F, I, Module, P, T

COLLECTIVE = "a collective: needs an axis that is mapped over devices or by the caller, which a lane has not"
PLACED = "says where arrays are kept, or in which order whole programs run"
LARGE = "scaled products of matrices of narrow floats, for large blocks"

L = Module("jax.lax")
L.elementwise(
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh erf erf_inv erfc exp "
    "exp2 expm1  "
    "floor is_finite log log1p log2 logistic neg reciprocal round rsqrt sign sin sinh sqrt square tan tanh "
    "stop_gradient optimization_barrier one_minus_square"
)
L.elementwise("lgamma digamma", absolute=8, why="near its zeros XLA gives roundings of one")
L.elementwise("abs neg sign square clz population_count bitwise_not", values=INTS, kind=np.int32)
L.elementwise("add atan2 div eq ge gt le lt max min mul ne nextafter pow rem sub complex", 2)
L.elementwise(
    "add sub mul div rem max min bitwise_and bitwise_or bitwise_xor eq lt", 2, values=INTS[1:-1], kind=np.int32
)
L.elementwise("mulhi", 2, values=INTS, kind=np.int32)
L.elementwise("shift_left shift_right_arithmetic shift_right_logical", 2, values=SMALL, kind=np.int32)
GAMMA = np.array([-1, 0, 1e-3, 0.25, 0.75, 1, 2.5, 7, 30, 88.5, np.inf, np.nan])
INNER = "a hundred steps of a series or a continued fraction, on another lgamma"
L.elementwise("igamma igammac", 2, values=GAMMA, ulps=4096, absolute=64, why=INNER)
L.elementwise("igamma_grad_a random_gamma_grad", 2, values=GAMMA[1:10], ulps=1e5, why=INNER)
L.elementwise("betainc", 3, values=np.array([0.0, 0.25, 0.5, 0.75, 1, 3, 20]), ulps=1e4, why=INNER)
L(
    "polygamma",
    I(5, low=0, high=5),
    P(5),
    via=lambda f, m, x: f(m.astype(x.dtype), x),
    ulps=512,
    why="powers and factorials",
)
L("zeta", P(5, low=1.25, high=9), P(5), ulps=512, why="sums of powers")
L("conj real imag exp log sqrt sin tanh", C(3), ulps=256)
L("integer_pow", F(4), 3)
L("integer_pow", F(4), -2)
L("clamp", -0.5, F(4), 0.5)
L("clamp", F(), F(4), F())
L("select", B(4), F(4), F(4))
L("select_n", I(4, low=0, high=3), F(4), F(4), F(4))
L("reduce_precision", F(4), 5, 10)
L("reduce_precision", F(4), 8, 7)
L("convert_element_type", T(4, low=-100, high=100), np.int32)
L("bitcast_convert_type", I(4), np.uint32)
L("bitcast_convert_type", I(4, dtype=np.uint32), np.float32, via=lambda f, x, t: f(f(x, t), np.uint32))

L("reduce_sum reduce_max reduce_min reduce_prod", F(2, 3), axes=(1,))
L("reduce_and reduce_or", B(2, 3), axes=(0,))
L("reduce_and reduce_or reduce_xor", I(2, 3), axes=(0,))
L("reduce", F(2, 3), via=lambda f, x: f(x, np.zeros((), x.dtype), lax.add, (0,)))
L(
    "reduce",
    T(2, 3),
    via=lambda f, x: f((x, x), (x.dtype.type(0), x.dtype.type(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
)
L("argmax argmin", F(5), 0, np.int32)
L("cumsum cumprod cummax cummin", F(5))
L("cumsum cumprod cummax cummin cumlogsumexp", T(2, 3), axis=1, reverse=True)
L("cumlogsumexp", F(5))
L("associative_scan", jnp.add, T(5))
L("associative_scan", jnp.matmul, T(3, 2, 2), reverse=True)
L("sort", F(5))
L("sort", (I(5, low=0, high=3), F(5)), num_keys=1)
L("sort_key_val", I(5, low=0, high=3), F(5))
L("top_k", F(6), 3)
L("approx_max_k approx_min_k", T(8), 3)
L("reduce_window", F(6), via=lambda f, x: f(x, -jnp.inf, lax.max, (3,), (2,), "SAME"))
L("reduce_window", T(4, 4), via=lambda f, x: f(x, 0.0, lax.add, (2, 3), (1, 1), "VALID"))
L("conv", T(1, 2, 5), T(3, 2, 2), (1,), "SAME")
L("conv_general_dilated", T(1, 2, 4, 4), T(3, 2, 2, 2), (1, 2), "VALID")
L(
    "conv_general_dilated",
    T(1, 4, 5),
    T(4, 2, 2),
    (2,),
    [(1, 2)],
    lhs_dilation=(2,),
    rhs_dilation=(2,),
    feature_group_count=2,
)
L("conv_with_general_padding", T(1, 2, 5), T(3, 2, 2), (1,), [(1, 0)], None, None)
L("conv_transpose", T(1, 5, 2), T(2, 2, 3), (2,), "SAME")
L("conv_general_dilated_patches", T(1, 2, 4, 4), (2, 2), (1, 1), "VALID")
L("conv_general_dilated_local", T(1, 2, 4), T(3, 4, 3), (1,), "VALID", (2,))
L("fft", C(8), "FFT", (8,))
L("fft", C(3, 4), "IFFT", (3, 4))

L("dot batch_matmul", T(2, 2, 3), T(2, 3, 2), via=lambda f, a, b: f(a, b) if f is lax.batch_matmul else f(a[0], b[0]))
L("dot", T(3), T(3))
L("dot_general", T(2, 3), T(3, 2), (((1,), (0,)), ((), ())))
L("dot_general", T(2, 3, 2), T(2, 2, 4), (((2,), (1,)), ((0,), (0,))))
L.without("ragged_dot ragged_dot_general composite", "jax.vmap has no rule for it")

L("broadcast", F(3), (2,))
L("broadcast_in_dim", F(3), (2, 3), (1,))
L("broadcast_like", F(3), F(2, 3), via=lambda f, x, y: f(x[None], y))
L("broadcast_to_rank", F(3), 2)
L("broadcasted_iota", F(), via=lambda f, x: f(np.int32, (2, 3), 1))
L("iota", F(), via=lambda f, x: f(np.int32, 4))
L("full", F(), via=lambda f, x: f((2, 3), x))
L("full_like", F(2, 3), 1.5)
L("empty", F(), via=lambda f, x: f((2,), np.float32).at[:].set(1))
L("collapse", F(2, 3), 0)
L("concatenate", [F(2), F(3)], 0)
L("stack unstack", F(2, 3), via=lambda f, x: f([x, x]) if f is getattr(lax, "stack", None) else f(x))
L("expand_dims squeeze", F(1, 3), (0,))
L("reshape", F(6), (2, 3))
L("reshape", F(2, 3), (3, 2), dimensions=(1, 0))
L("rev", F(2, 3), (1,))
L("transpose", F(2, 3), (1, 0))
L("tile", F(2, 3), (2, 1))
L("split", F(5), (2, 3))
L("pad", F(3), via=lambda f, x: f(x, x.dtype.type(7), [(1, -1, 2)]))
L("slice", F(5), (1,), (5,), (2,))
L("slice_in_dim", F(5), 1, 4)
L("index_in_dim", F(5), 2)
L("index_take", F(4, 3), I(2, 1, low=0, high=4), via=lambda f, x, i: f(x, (i[:, 0],), (0,)))
L("dynamic_slice", F(5), [I(low=-7, high=9)], (2,))
L("dynamic_slice_in_dim", F(5), I(low=-7, high=9), 3)
L("dynamic_index_in_dim", F(5), I(low=-7, high=9))
L("dynamic_update_slice", F(5), F(2), [I(low=-7, high=9)])
L(
    "dynamic_update_slice_in_dim dynamic_update_index_in_dim",
    F(5),
    F(2),
    I(low=-7, high=9),
    0,
    via=lambda f, x, u, i, a: f(x, u if f is lax.dynamic_update_slice_in_dim else u[0], i, a),
)
for _mode in ("clip", "fill", "promise_in_bounds"):
    _bounds = (0, 5) if _mode == "promise_in_bounds" else (-9, 9)
    _gather = lax.GatherDimensionNumbers((), (0,), (0,))
    L("gather", F(5), I(4, 1, low=_bounds[0], high=_bounds[1]), _gather, (1,), mode=_mode)
_scatter = lax.ScatterDimensionNumbers((), (0,), (0,))
L("scatter_add scatter_max scatter_min scatter_mul scatter_sub", T(5), I(4, 1, low=-9, high=9), T(4), _scatter)
L("scatter", F(5), np.array([[3], [0], [7], [-1]]), F(4), _scatter)
L("scatter_apply", F(5), np.array([[3], [0]]), via=lambda f, x, i: f(x, i, jnp.sin, _scatter, update_shape=(2,)))

L("cond", F(), via=lambda f, x: f(x > 0, lambda v: v * 2, lambda v: v - 1, x))
L("switch", I(low=-2, high=5), F(), via=lambda f, i, x: f(i, [lambda v: v, lambda v: v * 2, lambda v: -v], x))
L("fori_loop", T(), via=lambda f, x: f(0, 5, lambda k, v: v * 0.5 + k, x))
L("fori_loop", I(low=0, high=6), T(), via=lambda f, n, x: f(0, n, lambda k, v: v * 0.5 + k, x))
L("while_loop", P(), via=lambda f, x: f(lambda v: v < 9, lambda v: v * 2, x))
L("scan", T(5), via=lambda f, x: f(lambda c, v: (c * 0.5 + v, c), x[0], x))
L("scan", T(5), via=lambda f, x: f(lambda c, v: (c * 0.5 + v, c), x[0], x, reverse=True, unroll=2))
L("map", T(4), via=lambda f, x: f(lambda v: jnp.sin(v) * v, x))
L("platform_dependent", T(4), via=lambda f, x: f(x, cpu=lambda v: v + 1, default=lambda v: v))
L(
    "custom_root",
    P(),
    via=lambda f, a: f(
        lambda x: x * x - a,
        a,
        lambda g, x: lax.fori_loop(0, 8, lambda _, x: (x + a / x) / 2, x),
        lambda g, y: y / g(1.0),
    ),
)
L(
    "custom_linear_solve",
    SPD(3),
    T(3),
    via=lambda f, a, b: f(lambda x: a @ x, b, lambda mv, v: jnp.linalg.solve(a, v)),
    ulps=512,
)
L("polynomial", T(4), [1.0, 2.0, 3.0], via=lambda f, x, c: f(x, c))
L("rng_bit_generator", I(4, low=0, high=99, dtype=np.uint32), (3,))
L.without("rng_uniform", "without a seed: no two programs give the same numbers, and jax.vmap refuses it")
L.without("ConvGeneralDilatedDimensionNumbers DotDimensionNumbers PrecisionLike", "names of types")
L.without(
    "broadcast_shapes conv_dimension_numbers conv_general_permutations conv_general_shape_tuple conv_shape_tuple "
    "conv_transpose_shape_tuple dtype padtype_to_pads reduce_window_shape_tuple shape_as_value",
    HOST,
)
L.without(
    "all_gather all_to_all axis_index axis_size pbroadcast pcast pmax pmean pmin ppermute precv psend pshuffle psum "
    "psum_scatter psum_scatter_start pswapaxes ragged_all_to_all",
    COLLECTIVE,
)
L.without("after_all create_token dce_sink stage with_sharding_constraint", PLACED)
L.without("scaled_dot", LARGE)

A = Module("jax.lax.linalg", MATRICES)
A("cholesky", SPD(3), ulps=512)
A(
    "cholesky_update",
    SPD(3),
    T(3),
    via=lambda f, a, w: jax.custom_batching.sequential_vmap(f)(jnp.linalg.cholesky(a).T, w),
    ulps=512,
)
A("eigh", SPD(3), ulps=512, invariant=lambda a, v, w: [w, (v * w[:, None]) @ v.swapaxes(1, 2)])
A("eig", SQUARE(3), ulps=4096, invariant=lambda a, w, left, v: [np.sort(w.real, -1), np.sort(np.abs(w.imag), -1)])
A("hessenberg", SQUARE(3), ulps=512)
A("householder_product", T(3, 2, low=-0.5, high=0.5), T(2), ulps=512)
A("lu", SQUARE(3), ulps=512)
A("lu", T(2, 3), ulps=512)
A("lu_pivots_to_permutation", np.array([2, 1, 2], np.int32), 3, via=lambda f, p, n: f(p, n))
A("lu_pivots_to_permutation", I(3, low=2, high=4), 4)
A("ormqr", T(3, 2, low=-0.5, high=0.5), T(2), T(3, 4), left=True, transpose=True, ulps=512)
A("qr", SQUARE(3), full_matrices=True, ulps=512)
A("qr", T(3, 2), full_matrices=False, ulps=512)
A(
    "qdwh",
    SQUARE(3),
    ulps=4096,
    via=lambda f, a: f(a)[:2],
    why="the unitary factor of an iteration that stops at a rounding",
)
A(
    "schur",
    SQUARE(3),
    why=COMPLEX,
    via=lambda f, a: f(a + 0j),
    ulps=4096,
    invariant=lambda a, t, q: [q @ t @ q.conj().swapaxes(1, 2)],
)
A("svd", T(3, 2), full_matrices=False, ulps=512, invariant=lambda a, u, s, v: [s, (u * s[:, None]) @ v])
A("symmetric_product", T(3, 2), SPD(3), symmetrize_output=True)
A("triangular_solve", SPD(3), T(3, 2), left_side=True, lower=True, ulps=512)
A("triangular_solve", SPD(3), T(2, 3), left_side=False, lower=False, transpose_a=True, unit_diagonal=True, ulps=512)
A("tridiagonal", SPD(4), lower=True, ulps=512)
A("tridiagonal_solve", T(4), P(4, low=4, high=6), T(4), T(4, 2), ulps=512)
