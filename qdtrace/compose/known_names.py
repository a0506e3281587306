"""Names of libraries whose objects depend on their operands alone: a function that uses no others can be described.

A function is here if it reads and writes nothing but what it is given, and takes no function: JAX keeps traces of those
by identity, so what they were traced with before would show through.
"""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np

_SHARED = """
abs absolute add all allclose amax amin any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax
argmin argsort array array_equal asarray atleast_1d atleast_2d atleast_3d average bincount bool bitwise_and
bitwise_not bitwise_or bitwise_xor broadcast_arrays broadcast_shapes broadcast_to cbrt ceil clip column_stack
concatenate conj conjugate convolve copy copysign cos cosh count_nonzero cov cross cumprod cumsum deg2rad degrees
delete diag diagflat diagonal diff digitize divide divmod dot dstack dtype einsum equal exp exp2 expand_dims expm1
eye fabs finfo flatnonzero flip fliplr flipud float16 float32 float64 floor floor_divide fmax fmin fmod frexp full
full_like gcd geomspace greater greater_equal heaviside hstack hypot identity iinfo imag indices inner int16 int32
int64 int8 interp invert isclose isfinite isin isinf isnan isneginf isposinf issubdtype ix_ kron lcm ldexp
left_shift less less_equal linspace log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor logspace matmul max maximum mean median meshgrid min minimum mod modf moveaxis multiply nan_to_num
nanmax nanmean nanmin nansum ndim negative nextafter nonzero not_equal ones ones_like outer permute_dims
positive power prod promote_types quantile rad2deg radians ravel real reciprocal remainder repeat reshape
result_type right_shift rint roll rot90 round searchsorted shape sign signbit sin sinc sinh size sort split sqrt
square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace transpose
trapezoid tri tril triu true_divide trunc uint16 uint32 uint64 uint8 unravel_index vander var vdot vecdot vstack
where zeros zeros_like complex64 complex128 bool_ complexfloating floating inexact integer number signedinteger
unsignedinteger
"""
_LAX = """
abs acos acosh add argmax argmin asin asinh atan atan2 atanh bitcast_convert_type bitwise_and bitwise_not bitwise_or
bitwise_xor broadcast broadcast_in_dim broadcasted_iota cbrt ceil clamp clz collapse complex concatenate conj
convert_element_type cos cosh cumlogsumexp cummax cummin cumprod cumsum digamma div dot dot_general
dynamic_index_in_dim dynamic_slice dynamic_slice_in_dim dynamic_update_index_in_dim dynamic_update_slice
dynamic_update_slice_in_dim eq erf erf_inv erfc exp exp2 expand_dims expm1 floor full full_like ge gt igamma igammac
imag index_in_dim integer_pow iota is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter pad
population_count pow real reciprocal reduce_max reduce_min reduce_prod reduce_sum rem reshape rev round rsqrt select
select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice slice_in_dim sort sqrt square
squeeze stop_gradient sub tan tanh top_k transpose Precision
"""
_NN = """
celu elu gelu glu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid log_softmax logsumexp one_hot relu relu6
selu sigmoid silu soft_sign softmax softplus swish
"""
_QD = """
Buffer atomic_add atomic_and atomic_cas atomic_exchange atomic_max atomic_min atomic_or atomic_xor break_if check
continue_if copy empty empty_like full local ndrange ones otherwise range when while_ zeros zeros_like
"""
_BUILTINS = """
abs all any bool complex dict divmod enumerate filter float int isinstance len list map max min next iter pow range
reversed round slice sorted str sum tuple zip ArithmeticError AssertionError Exception IndexError KeyError
NotImplementedError RuntimeError StopIteration TypeError ValueError ZeroDivisionError
"""
_OPERATOR = """
abs add and_ contains eq floordiv ge getitem gt index inv invert le lshift lt matmul mod mul ne neg not_ or_ pos pow
rshift sub truediv truth xor
"""
_ITERTOOLS = "accumulate chain combinations count islice pairwise permutations product repeat zip_longest"
_LINALG = "cholesky cross det diagonal eigh inv matmul norm outer slogdet solve trace"
_RANDOM = """
PRNGKey bernoulli bits choice exponential fold_in gamma key key_data normal permutation poisson randint split
truncated_normal uniform wrap_key_data
"""
_SPECIAL = """
betainc digamma entr erf erfc erfinv expit gammainc gammaincc gammaln i0 i0e i1 i1e log_ndtr logit logsumexp ndtr
ndtri polygamma xlog1py xlogy zeta
"""

_ATTRIBUTES = """
T add all any append argmax argmin astype at bits clip conj copy count cumprod cumsum divide dot dtype eps extend
flatten get imag index insert itemsize kind mT max mean min multiply ndim pop power prod ravel real remove reshape
reverse round set shape size smallest_normal sort squeeze start std step stop subtract sum swapaxes tiny transpose
value values var
"""
ATTRIBUTES = frozenset(_ATTRIBUTES.split())
"""Attributes of numbers, arrays, dtypes, buffers, cells, tuples, lists and dicts that read or change only these."""
STORED = frozenset({"value"})
"""Attributes that may be stored: of cells."""

_ROWS = [
    ("jax.numpy", f"{_SHARED} bfloat16 float8_e4m3fn float8_e5m2"),
    ("numpy", _SHARED),
    ("jax.lax", _LAX),
    ("jax.nn", _NN),
    ("jax.numpy.linalg", _LINALG),
    ("jax.random", _RANDOM),
    ("jax.scipy.special", _SPECIAL),
    ("jax", "Array"),
    ("qdtrace", _QD),
    ("math", " ".join(name for name in dir(math) if callable(getattr(math, name)))),
    ("operator", _OPERATOR),
    ("itertools", _ITERTOOLS),
    ("functools", "partial reduce"),
    ("builtins", _BUILTINS),
]
_TABLE = {module: frozenset(names.split()) for module, names in _ROWS}
MODULES = frozenset({*_TABLE, "jax.scipy"})
"""Modules whose names are looked up."""
_FOLDERS = tuple(str(Path(str(m.__file__)).parent) + "/" for m in (jax, np, sys.modules["qdtrace"]))
_BUILT_IN = ("builtins", "math", "_operator", "itertools", "functools", "_functools")
_OWNERS = ("jax", "jaxlib", "numpy", "ml_dtypes", "qdtrace", *_BUILT_IN)
"""Packages whose classes and C functions are known."""


def known_name(value: Any) -> str:
    """Returns the name of an object of a library that is known, or nothing. An object that somebody put in the place of
    another one has its own name, or none."""
    own = _own_name(value)
    name = own.rpartition(".")[2]
    rows = (module for module, names in _TABLE.items() if name in names)
    found = next((m for m in rows if getattr(sys.modules.get(m), name, None) is value), None)
    return f"{found}: {own}" if own and found else ""


def _own_name(value: Any) -> str:
    """Returns the name that an object of a library was made with, or nothing if it is no library's: one may have put
    another object in its place."""
    if isinstance(value, types.FunctionType):
        inner = vars(value).get("__wrapped__")  # one of the user, perhaps, in a wrapper of the library
        is_own = is_of_library(value.__code__) and (inner is None or _own_name(inner))
        return f"{value.__module__}.{value.__name__}" if is_own else ""
    if isinstance(value, np.ufunc):
        return f"numpy.{value.__name__}" if getattr(np, value.__name__, None) is value else ""
    if isinstance(value, types.BuiltinFunctionType | type):
        home = value.__module__ or "numpy"
        return f"{home}.{value.__name__}" if home.partition(".")[0] in _OWNERS else ""
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        return _own_name(_inside(value))
    return ""


def _inside(value: Any) -> Any:
    """Returns the function that an object of JAX or NumPy calls, or None."""
    for name in ("__wrapped__", "fun", "_implementation"):
        if (inner := getattr(value, name, None)) is not None:
            return inner
    props = getattr(value, "_ufunc__static_props", None)
    return props["func"] if isinstance(props, dict) and "func" in props else None


def is_of_library(code: types.CodeType) -> bool:
    """Returns whether code is JAX's, NumPy's or this package's."""
    return code.co_filename.startswith(_FOLDERS)
