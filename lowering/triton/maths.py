"""Functions of Triton's device library that we use: those whose documented largest error is at most 4 ulp.

The figures are those of NVIDIA's CUDA Programming Guide, "Mathematical Functions", for the functions that libdevice
implements, over the whole range. `erfc` and `erf_inv` of f64 have 5 ulp, `lgamma` has no bound near its zeros, and
`digamma` is missing. AMD documents errors for parts of the range only, so on its GPUs only exact functions are used.
"""

from __future__ import annotations

from qdtrace.ir.types import DType

LIBDEVICE = {
    **{name: name for name in (
        "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "pow", "rsqrt", "cbrt", "trunc",
    )},
    "erf_inv": "erfinv", "rem": "fmod", "round_even": "rint", "round_away": "round",
}  # fmt: skip
"""Name in the device library of each primitive's function."""
_EXACT = frozenset({"rem", "trunc", "round_even", "round_away"})
_KNOWN = frozenset({*LIBDEVICE, "logistic"})
_TOO_COARSE = frozenset({("erfc", DType.f64), ("erf_inv", DType.f64)})


def is_accurate(name: str, dtype: DType, family: str) -> bool:
    """Returns whether a family of GPUs has a function for the primitive within 4 ulp."""
    if name in _EXACT:
        return True
    return name in _KNOWN and family == "cuda" and (name, dtype) not in _TOO_COARSE
