"""Calls of the functions of `jax.numpy`."""

import jax.numpy as jnp
import numpy as np

from .table import SQUARE, B, C, F, I, Module, P, T

HOST = "answers with types, shapes or text while tracing; there is nothing to compute"
FILES = "reads or writes files, or Python objects"
DATA_SHAPE = "the shape of its result depends on values, which jax.jit refuses too"
MATRICES = "iterations that end at another rounding, and the condition of the matrix"
COMPLEX = "of complex matrices; the form of a real one is refused by name"
INTS = np.array([-(2**31), -100, -7, -3, -2, -1, 0, 1, 2, 3, 5, 31, 100, 2**31 - 1])
SMALL = np.array([0, 1, 2, 3, 7, 31])

J = Module("jax.numpy")

# Elementwise.
J.elementwise(
    "abs absolute acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh around asin asinh atan atanh cbrt "
    "ceil conj  "
    "conjugate copy cos cosh deg2rad degrees exp exp2 expm1 fabs floor i0 imag iscomplex isfinite isinf isnan "
    "isneginf isposinf  "
    "isreal log log10 log1p log2 logical_not nan_to_num negative positive rad2deg radians real reciprocal rint "
    "round sign signbit  "
    "sin sinc sinh spacing sqrt square tan tanh trunc modf frexp"
)
J.elementwise(
    "abs negative sign square bitwise_count bitwise_invert bitwise_not invert logical_not positive exp sqrt",
    values=INTS,
    kind=np.int32,
)
J.elementwise(
    "add arctan2 atan2 copysign divide equal fmax fmin greater greater_equal hypot isclose less "
    "less_equal logical_and logical_or logical_xor maximum minimum multiply nextafter not_equal "
    "pow power subtract true_divide heaviside float_power",
    2,
)
MODERATE = np.array([-np.inf, -100.5, -3, -1, -0.75, -0.0, 0.0, 0.25, 0.5, 1, 1.5, 3, 10, 88.5, np.inf, np.nan])
J.elementwise("divmod floor_divide fmod mod remainder", 2, values=MODERATE)
J.elementwise(
    "add subtract multiply floor_divide mod remainder fmod divmod maximum minimum gcd lcm bitwise_and bitwise_or "
    "bitwise_xor equal less greater true_divide",
    2,
    values=INTS[1:-1],
    kind=np.int32,
)
J.elementwise("left_shift right_shift bitwise_left_shift bitwise_right_shift power", 2, values=SMALL, kind=np.int32)
J.elementwise("logaddexp logaddexp2", 2, absolute=4, why="the result may be near zero while the arguments are not")
J("ldexp", F(5), I(5))
J("ldexp", F(), I())
J("frexp modf", T(3, 3, low=-1000, high=1000))
J("angle", C(3), deg=True)
J("round around", T(5, low=-100, high=100), decimals=1)
J("nan_to_num", F(5), nan=1.5, posinf=3.0, neginf=-3.0)
J(
    "abs conj exp log sqrt sin cos tan sinh cosh tanh square sign real imag angle log1p expm1 reciprocal isfinite "
    "isnan isreal iscomplex arcsin arccos arctan arcsinh arccosh arctanh log2 log10 exp2 negative",
    C(3, 3),
    ulps=256,
    why="real formulas of complex functions cancel digits near their zeros",
)
J("add subtract multiply divide equal not_equal power", C(3), C(3), ulps=256)
J("clip", F(5), -0.5, 1.0)
J("clip", F(5), F(5), F(5))
J("where", B(5), F(5), F(5))
J("where", B(), F(3, 3), 0.0)
J("select", [B(5), B(5)], [F(5), F(5)], 2.0)
J("piecewise", F(5), via=lambda f, x: f(x, [x < 0, x > 1], [-1.0, lambda v: v * 2, 0.5]))
J("choose", I(4, low=0, high=3), [F(4), F(4), F(4)], mode="clip")

# Reductions.
J(
    "sum prod mean std var max min amax amin ptp median any all argmax argmin nansum nanprod nanmean nanstd nanvar "
    "nanmax nanmin  "
    "nanargmax nanargmin count_nonzero nanmedian",
    F(5),
)
J(
    "sum prod mean std var max min amax amin ptp median any all argmax argmin nansum nanprod nanmean nanstd nanvar "
    "nanmax nanmin  "
    "count_nonzero average",
    F(2, 3),
    axis=1,
)
J("sum max argmin mean", F(3, 3), axis=0, keepdims=True)
J("sum prod max min any argmax mean", F())
J("sum prod max min argmax cumsum cumprod ptp mean median", I(5))
J("sum any all", B(5))
J("sum prod mean var std", C(4), ulps=128)
J("average", F(5), weights=np.arange(1.0, 6))
J("cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod", F(5))
J("cumsum cumprod", F(2, 3), axis=1)
J("cumulative_sum cumulative_prod", F(5), include_initial=True)
J("quantile percentile nanquantile nanpercentile", F(5), 0.3)
J("quantile nanquantile", T(5), np.array([0.1, 0.5, 0.9]), method="nearest")
J("quantile", T(2, 3), 0.25, axis=0)
J("diff ediff1d", F(5))
J("diff", F(2, 4), n=2, axis=1)
J("gradient", F(5))
J("gradient", T(3, 3))
J("trapezoid", T(5))
J("trapezoid", T(5), T(5))
J("trace diagonal", F(3, 3))
J("corrcoef cov", T(2, 4), ulps=256, why="differences of products")
J("corrcoef cov", T(4), ulps=256)
J("convolve correlate", T(5), T(3))
J("convolve correlate", T(5), T(3), mode="same")
J("interp", F(4), np.arange(5.0), T(5))
J("unwrap", T(5, low=-9, high=9))
J("unwrap", T(2, 3, low=-9, high=9))
J("histogram", T(8), bins=4, range=(-2, 2))
J("histogram_bin_edges", T(8), bins=4)
J("histogram", T(8), bins=4)
J("histogram2d", T(8), T(8), bins=3, range=((-2, 2), (-2, 2)))
J("histogramdd", T(8, 2), bins=3, range=((-2, 2), (-2, 2)))
J("bincount", I(8, low=0, high=5), length=5)
J("bincount", I(8, low=0, high=5), T(8), length=4)
J("digitize", F(5), np.array([-1.0, 0.0, 1.0]))
J("searchsorted", np.array([-1.0, 0.0, 0.5, 1.0]), F(5))
J("searchsorted", np.array([-1.0, 0.0, 0.5, 1.0]), F(), side="right")

# Products.
J("dot inner outer matmul vdot kron", T(3), T(3))
J("dot matmul inner", T(2, 3), T(3, 3), via=lambda f, a, b: f(a, b.T) if f is not jnp.inner else f(a, b))
J("outer", F(3), F(2))
J("matvec", T(2, 3), T(3))
J("vecmat", T(2), T(2, 3))
J("vecdot", T(3), T(3))
J("vecdot dot matmul", C(3), C(3))
J("cross", T(3), T(3))
J("tensordot", T(2, 3), T(3, 2), axes=1)
J("tensordot", T(2, 3), T(2, 3), axes=2)
J("kron", T(2, 2), T(2, 3))
J("einsum", "ij,jk->ik", T(2, 3), T(3, 2))
J("einsum", "ii->i", F(3, 3))
J("einsum", "i,j,ij->", T(2), T(3), T(2, 3))

# Shapes and places.
J(
    "ravel transpose flip fliplr flipud rot90 squeeze atleast_1d atleast_2d atleast_3d matrix_transpose tril triu",
    F(2, 3),
)
J("atleast_1d atleast_2d atleast_3d ravel squeeze transpose", F())
J("reshape", F(6), (2, 3))
J("reshape", F(2, 3), 6, order="F")
J("reshape", F(2, 3), (3, -1), order="F")
J("ravel", F(2, 3), order="F")
J("resize", F(3), (2, 4))
J("broadcast_to", F(3), (2, 3))
J("broadcast_arrays", F(3), F(2, 1))
J("expand_dims", F(3), 0)
J("swapaxes moveaxis rollaxis", F(2, 3), 1, 0)
J("permute_dims", F(2, 3), (1, 0))
J("roll", F(5), 2)
J("roll", F(2, 3), (1, -1), axis=(0, 1))
J("roll", F(5), I(low=-7, high=7))
J("flip", F(5))
J("tile", F(2, 3), (2, 1))
J("repeat", F(3), 2)
J("repeat", F(2, 3), 2, axis=1)
J("repeat", F(3), np.array([1, 0, 2]), total_repeat_length=3)
J("concatenate hstack vstack column_stack dstack stack concat block", [F(3), F(3)])
J("concatenate stack", [F(2, 3), F(2, 3)], axis=1)
J("vstack hstack dstack column_stack", [F(2, 3), F(2, 3)])
J("append", F(3), F(2))
J("insert", F(4), 2, 7.0)
J("insert", F(4), I(low=-4, high=5), 7.0)
J("delete", F(4), 1)
J("delete", F(4), np.array([0, 2]))
J("split array_split", F(6), 3)
J("array_split", F(5), 2)
J("hsplit", F(2, 4), 2)
J("vsplit", F(4, 2), 2)
J("dsplit", F(2, 2, 4), 2)
J("unstack", F(2, 3))
J("pad", F(3), 2)
J("pad", F(2, 3), ((1, 0), (0, 2)), constant_values=1.5)
for _mode in ("edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean", "minimum", "median"):
    J("pad", T(2, 3), ((1, 0), (0, 2)), mode=_mode)
J("pad", T(4), ((2, 1),), mode="empty", via=lambda f, x, w, mode: f(x, w, mode=mode)[2:-1])
J("diag diagflat", F(3))
J("diag", F(3, 3), 1)
J("diag", F(3), -1)
J("diagonal trace", F(3, 3), 1)
J("tril triu", F(3, 3), -1)
J("fill_diagonal", F(3, 3), 5.0, inplace=False)
J("vander", T(3))
J("vander", T(3), 4, increasing=True)
J("meshgrid ix_", F(2), F(3))
J("meshgrid", F(2), F(3), indexing="ij", sparse=True)
J("take", F(5), I(3, low=-5, high=5))
J("take", F(3, 3), I(low=-9, high=9), axis=1, mode="wrap")
J("take", F(5), I(3, low=-9, high=9), mode="clip")
J("take", F(5), I(3, low=-9, high=9), mode="fill")
J("take_along_axis", F(2, 3), I(2, 2, low=-3, high=3), axis=1)
J("put", F(5), I(2, low=-5, high=5), 7.0, inplace=False)
J("put_along_axis", F(2, 3), I(2, 1, low=0, high=3), 9.0, axis=1, inplace=False)
J("place", F(5), B(5), np.array([1.0, 2.0]), inplace=False)
J("extract", B(4), F(4), size=3, fill_value=0)
J("argwhere nonzero flatnonzero", F(5), size=4)
J("nonzero", B(2, 3), size=4, fill_value=-1)
J("unravel_index", I(3, low=-7, high=7), (2, 3))
J("ravel_multi_index", (I(3, low=0, high=2), I(3, low=0, high=3)), (2, 3), mode="clip")
J("ravel_multi_index", (I(3, low=-2, high=4), I(3, low=-2, high=5)), (2, 3), mode="wrap")
J("apply_along_axis", jnp.sum, 1, F(2, 3))
J("apply_over_axes", jnp.sum, F(2, 3), [0, 1])
J("vectorize", F(3), F(3), via=lambda f, a, b: f(lambda x, y: x * y + 1)(a, b))
J("vectorize", F(2, 3), via=lambda f, a: f(jnp.sum, signature="(n)->()")(a))
J("fromfunction", F(), via=lambda f, x: f(lambda i, j: i + 2 * j + x, (2, 3)))
J("frompyfunc", F(3), F(3), via=lambda f, a, b: f(lambda x, y: x * y, 2, 1)(a, b))
J("frompyfunc", T(4), via=lambda f, a: f(lambda x, y: x + y, 2, 1, identity=0).reduce(a))
J("bartlett blackman hamming hanning", F(), via=lambda f, x: f(5) * x)
J("kaiser", F(), via=lambda f, x: f(5, 3.0) * x)

# Making.
J("zeros ones empty", F(), via=lambda f, x: f((2, 3)) if f is not jnp.empty else f((2, 3)) * 0)
J("full", F(), via=lambda f, x: f((2, 3), x))
J("zeros_like ones_like", F(2, 3))
J("empty_like", F(2, 3), via=lambda f, x: f(x).at[:].set(1.0))
J("full_like", F(2, 3), F())
J("eye identity tri", F(), via=lambda f, x: f(3))
J("eye tri", F(), via=lambda f, x: f(3, 4, 1))
J("arange", F(), via=lambda f, x: f(5))
J("arange", F(), via=lambda f, x: f(1.0, 2.0, 0.25))
J("linspace logspace", F(), via=lambda f, x: f(0.0, 2.0, 5))
J("linspace", T(), T(), 5)
J("geomspace", P(), P(), 5)
J("logspace", T(), T(), 5, ulps=256, why="a power of ten multiplies the rounding of the exponent")
J("indices", F(), via=lambda f, x: f((2, 3)))
J("diag_indices tril_indices triu_indices", F(), via=lambda f, x: f(3))
J("diag_indices_from tril_indices_from triu_indices_from", F(3, 3))
J("mask_indices", F(), via=lambda f, x: f(3, jnp.triu, size=6))
J("array asarray", F(3), dtype=np.int32, via=lambda f, x, dtype: f(x > 0, dtype=dtype))
J("array asarray copy", F(3))
J("array", [F(), F(), 1.0])
J("astype", I(3), np.float32)
J("astype", T(3, low=-100, high=100), np.int32)
J("ndim shape size", F(2, 3), via=lambda f, x: jnp.asarray(f(x)))
J("isscalar iscomplexobj isrealobj", F(2), via=lambda f, x: jnp.asarray(f(x)))

# Order and sets.
J("sort argsort", F(5))
J("sort argsort", F(2, 3), axis=0)
J("sort argsort", F(5), descending=True)
J("sort argsort", I(5))
J("sort sort_complex", C(4))
J("lexsort", (I(5, low=0, high=3), F(5)))
J("partition", F(6), 2, via=lambda f, x, k: jnp.sort(f(x, k)[: k + 1]))
J("argpartition", T(6), 2, via=lambda f, x, k: jnp.sort(x[f(x, k)[: k + 1]]))
J("isin", I(5), np.array([1, 2, 5]))
J("isin", F(5), F(3))
J("unique", I(6, low=0, high=4), size=5, fill_value=-1)
J("unique", I(6, low=0, high=4), size=5, return_index=True, return_inverse=True, return_counts=True)
J("unique_all unique_counts unique_inverse unique_values", I(6, low=0, high=4), size=5, fill_value=-1)
J("union1d setdiff1d", I(4, low=0, high=5), I(4, low=0, high=5), size=5, fill_value=-1)
J("intersect1d setxor1d", I(4, low=0, high=5), I(4, low=0, high=5), size=4, fill_value=-1)
J("array_equal array_equiv allclose", F(3), F(3))
J("array_equal array_equiv allclose", T(3), via=lambda f, x: f(x, x))
J("packbits", B(10))
J("unpackbits", I(2, low=0, high=256, dtype=np.uint8))
J("packbits", B(2, 8), axis=1, bitorder="little")
J("top_k", F(5), 3)
J("minmax", F(5))

# Polynomials.
J("polyval", T(4), T(3))
J("polyadd polysub polymul", T(3), T(4))
J("polyder polyint", T(4))
J("polyint", T(3), m=2)
J("polydiv", P(4), P(2), ulps=1024, why="digits cancel in remainders")
J("polyfit", np.arange(5.0), T(5), 2, ulps=1024, why="least squares of a condition above ten")
J("poly", T(3))
J("poly", SQUARE(3), ulps=512)
J(
    "roots",
    P(3),
    strip_zeros=False,
    via=lambda f, p, strip_zeros: f(p, strip_zeros=strip_zeros),
    invariant=lambda p, r: [np.sort(r.real, -1), np.sort(np.abs(r.imag), -1)],
    ulps=1e4,
    why="roots close to each other move by the square root of a rounding",
)
J("nan_to_num", C(3))

J.without(
    "array_repr array_str can_cast broadcast_shapes einsum_path get_printoptions isdtype issubdtype iterable "
    "printoptions  "
    "promote_types result_type set_printoptions",
    HOST,
)
J.without("from_dlpack frombuffer fromfile fromiter fromstring load save savez", FILES)
J.without("compress trim_zeros", DATA_SHAPE)

N = Module("jax.numpy.linalg", MATRICES)
N("det inv slogdet matrix_rank pinv", SQUARE(3), ulps=512)
N("det inv slogdet cond", SQUARE(2), ulps=512)
N("cond", SQUARE(3), ulps=512)
N("det slogdet", F(2, 2), ulps=512)
N("cholesky", P(), via=lambda f, x: f(x[None, None]))
N("solve", SQUARE(3), T(3), ulps=512)
N("solve", SQUARE(3), T(3, 2), ulps=512)
N("tensorsolve", SQUARE(4), T(4), ulps=512)
N("tensorinv", SQUARE(4), ind=1, ulps=512)
N("lstsq", T(4, 2), T(4), ulps=4096, why="least squares of a condition up to a hundred", via=lambda f, a, b: f(a, b)[0])
N("matrix_power", SQUARE(3), 3)
N("matrix_power", SQUARE(3), -2, ulps=1024)
N("norm matrix_norm", T(3, 3))
N("norm vector_norm", F(4))
for _order in (1, np.inf, -np.inf, 0):
    N("norm vector_norm", F(4), ord=_order)
for _order in (1, np.inf, -1, 2, "nuc"):
    N("norm matrix_norm", T(3, 3), ord=_order, ulps=256)
N("multi_dot", [T(2, 3), T(3, 3), T(3, 2)])
N("cross", T(3), T(3))
N("outer", F(3), F(2))
N("matmul", T(2, 3), T(3, 2))
N("vecdot", T(3), T(3))
N("tensordot", T(2, 3), T(3, 2), axes=1)
N("trace diagonal matrix_transpose", F(3, 3))
N("qr", SQUARE(3), ulps=512)
N("qr", T(3, 2), ulps=512)
N("eigvals", SQUARE(3), invariant=lambda a, w: [np.sort(w.real, -1), np.sort(np.abs(w.imag), -1)], ulps=4096)
N("eig", SQUARE(3), invariant=lambda a, w, v: [np.sort(w.real, -1), np.abs(a @ v - v * w[:, None]) < 1e-4], ulps=4096)
REBUILT_U = "vectors are unique up to sign"
N("svdvals", T(3, 2), ulps=512)
N("svd", T(3, 2), ulps=512, invariant=lambda a, u, s, v: [s, (u[..., :2] * s[:, None]) @ v], why=REBUILT_U)
N("eigvalsh", T(3, 3), via=lambda f, a: f(a + a.T), ulps=512)
N(
    "eigh",
    T(3, 3),
    via=lambda f, a: f(a + a.T),
    ulps=512,
    invariant=lambda a, w, v: [w, (v * w[:, None]) @ v.swapaxes(1, 2)],
    why=REBUILT_U,
)
N("cholesky", SQUARE(3), via=lambda f, a: f(a @ a.T), ulps=512)

X = Module("jax.numpy.fft")
X("fft ifft hfft", C(6))
X("fft rfft ihfft", T(6))
X("irfft", C(4))
X("irfft fft", C(4), n=7)
X("fft2 ifft2 fftn ifftn irfft2 irfftn", C(3, 4))
X("rfft2 rfftn", T(3, 4))
X("fftshift ifftshift", F(5))
X("fftfreq rfftfreq", F(), via=lambda f, x: f(6))
X("fft ifft", C(60))
