"""One rule for each scalar primitive: the meaning of an operation on NumPy scalars.

A rule is a function of the dtypes of the operands and the parameters of the equation; it returns the function that
computes the result. Single precision is computed in double and rounded; f16 and bf16 as f32 and rounded.
`scalar_function` is the entry; call its result under `quiet()`, as wrap-around and NaN are no accidents here.
"""

from __future__ import annotations

import math
import operator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.interpret import special
from qdtrace.ir.powers import power
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # To type checkers np.generic has no arithmetic: a scalar is Any.
    Unary = Callable[[Any], Any]
    Binary = Callable[[Any, Any], Any]
    Ternary = Callable[[Any, Any, Any], Any]
    Function = Callable[..., Any]
    Rule = Callable[[Sequence[DType], Mapping[str, Any]], Function]

quiet = lambda: np.errstate(all="ignore")  # noqa: E731 - a context manager, named for what it is for
_HALVES = (DType.f16, DType.bf16)
_TRUE, _FALSE = np.True_, np.False_


def scalar_function(name: str, dtypes: Sequence[DType], params: Mapping[str, Any]) -> Function:
    """Returns the function from operands (NumPy scalars of those dtypes) to the result (a NumPy scalar)."""
    return RULES[name](dtypes, params)


def apply_scalar(name: str, operands: Sequence[np.generic], params: Mapping[str, Any]) -> np.generic:
    """Applies a primitive to constants."""
    with quiet():
        return scalar_function(name, [DType.of(v.dtype) for v in operands], params)(*operands)


def _through_f32(function: Function, dtype: DType) -> Function:
    single, half = np.float32, dtype.numpy.type
    return lambda *operands: half(function(*map(single, operands)))


def _numeric(on_float: Callable[[DType], Function], on_integer: Callable[[DType], Function]) -> Rule:
    @cache
    def of(dtype: DType) -> Function:
        if dtype in _HALVES:
            return _through_f32(on_float(DType.f32), dtype)
        return on_float(dtype) if dtype.is_float else on_integer(dtype)

    return lambda dtypes, params: of(dtypes[0])


def _same(function: Unary | Binary) -> Callable[[DType], Function]:
    return lambda dtype: function


# Integers.


def wrapper(dtype: DType) -> Callable[[int], Any]:
    """Returns a function that converts a Python integer to the dtype, modulo its width."""
    if dtype is DType.bool:
        return lambda i: np.bool_(i & 1)
    make, mask, half = dtype.numpy.type, (1 << dtype.bits) - 1, 1 << (dtype.bits - 1)
    if not dtype.is_signed:
        return lambda i: make(i & mask)
    return lambda i: make(((i + half) & mask) - half)


def _integer_div(dtype: DType) -> Binary:
    wrap = wrapper(dtype)

    def div(a: Any, b: Any) -> Any:
        x, y = int(a), int(b)
        if y == 0:
            return wrap(-1)
        quotient = abs(x) // abs(y)
        return wrap(quotient if (x < 0) == (y < 0) else -quotient)

    return div


def _integer_rem(dtype: DType) -> Binary:
    make = dtype.numpy.type

    def rem(a: Any, b: Any) -> Any:
        x, y = int(a), int(b)
        if y == 0:
            return a
        rest = abs(x) % abs(y)
        return make(-rest if x < 0 else rest)

    return rem


def _shift(shifted: Callable[[int, int, int], int]) -> Rule:
    def rule(dtypes: Sequence[DType], params: Mapping[str, Any]) -> Binary:
        wrap, bits = wrapper(dtypes[0]), dtypes[0].bits
        mask = (1 << bits) - 1
        # The amount is read as unsigned; every amount from the width on behaves as the width.
        return lambda a, n: wrap(shifted(int(a) & mask, min(int(n) & mask, bits), bits))

    return rule


def _bit_count(count: Callable[[int, int], int]) -> Rule:
    def rule(dtypes: Sequence[DType], params: Mapping[str, Any]) -> Unary:
        make, bits = dtypes[0].numpy.type, dtypes[0].bits
        mask = (1 << bits) - 1
        return lambda a: make(count(int(a) & mask, bits))

    return rule


# Floats.


def _divide(a: Any, b: Any) -> Any:
    return a / b


def _quotient(a: Any, b: Any, inverse: Any) -> Any:
    return a / b


def _float_min(a: Any, b: Any) -> Any:
    if a != a or (a == b and np.signbit(a)):
        return a
    return a if a < b else b


def _float_max(a: Any, b: Any) -> Any:
    if a != a or (a == b and not np.signbit(a)):
        return a
    return a if a > b else b


def _float_sign(a: Any) -> Any:
    return a if a == 0 or a != a else np.copysign(type(a)(1), a)


def _integer_sign(dtype: DType) -> Unary:
    make = dtype.numpy.type
    return lambda a: make((a > 0) - int(a < 0))


def _float_fma(dtype: DType) -> Ternary:
    if dtype is DType.f32:
        return lambda a, b, c: np.float32(special.fma_to_odd(float(a), float(b), float(c)))
    return lambda a, b, c: np.float64(special.fma(float(a), float(b), float(c)))


def _round_away(a: Any) -> Any:
    whole = np.trunc(a)
    if abs(a - whole) >= 0.5:
        whole = whole + np.copysign(type(a)(1), a)
    return np.copysign(whole, a)


def _logistic(x: np.float64) -> np.float64:
    if x >= 0:
        return 1.0 / (1.0 + np.exp(-x))
    e = np.exp(x)
    return e / (1.0 + e)


def _in_double(function: Unary | Binary) -> Rule:
    """Returns the rule of a function of doubles; f32 is the rounded result."""

    def on_float(dtype: DType) -> Function:
        make = dtype.numpy.type
        double = np.float64
        return lambda *operands: make(function(*map(double, operands)))

    return _numeric(on_float, on_float)


def _next_after(dtypes: Sequence[DType], params: Mapping[str, Any]) -> Binary:
    # in the type itself, as f32 has other neighbours than f16; NumPy's f16 keeps the first of two equal zeros
    return lambda a, b: b if a == b else np.nextafter(a, b)


def _integer_pow(dtypes: Sequence[DType], params: Mapping[str, Any]) -> Unary:
    dtype, exponent = dtypes[0], int(params["y"])
    if dtype in _HALVES:
        return _through_f32(_integer_pow([DType.f32], params), dtype)
    one = dtype.numpy.type(1)
    divide: Binary = _divide if dtype.is_float else _integer_div(dtype)

    def apply(x: Any) -> Any:
        result = power(x, abs(exponent), operator.mul)
        if result is None:
            return one
        return divide(one, result) if exponent < 0 else result

    return apply


# Conversions.


def _convert(dtypes: Sequence[DType], params: Mapping[str, Any]) -> Unary:
    return _converter(dtypes[0], params["dtype"])


@cache
def _converter(source: DType, target: DType) -> Unary:
    make = target.numpy.type
    if source is target:
        return lambda a: a
    if target is DType.bool:
        return lambda a: _TRUE if a != 0 else _FALSE
    if target.is_float:
        if target in _HALVES and source is DType.f64:
            return lambda a: make(_double_to_single_odd(a))
        if target in _HALVES and source is not DType.f64:
            return lambda a: make(a.astype(np.float32))
        return lambda a: a.astype(make)
    wrap = wrapper(target)
    if source.is_float:
        low, high = int(np.iinfo(make).min), int(np.iinfo(make).max)

        def saturate(a: Any) -> Any:
            x = float(a)
            if math.isnan(x):
                return make(0)
            if math.isinf(x):
                return make(high if x > 0 else low)
            return make(min(max(int(x), low), high))

        return saturate
    return lambda a: wrap(int(a))


def _double_to_single_odd(a: Any) -> np.float32:
    """Rounds a double to single precision, to odd, so that a second rounding to fewer bits is correct."""
    single = np.float32(a)
    if not np.isfinite(single) or np.float64(single) == a:
        return single
    if single.view(np.uint32) & np.uint32(1):
        return single
    return np.nextafter(single, np.float32(np.inf if a > np.float64(single) else -np.inf))


def _bitcast(dtypes: Sequence[DType], params: Mapping[str, Any]) -> Unary:
    target = params["dtype"].numpy
    return lambda a: a.view(target)


def _select(dtypes: Sequence[DType], params: Mapping[str, Any]) -> Ternary:
    return lambda condition, on_true, on_false: on_true if condition else on_false


def _plain(function: Unary | Binary) -> Rule:
    return lambda dtypes, params: function


def _first(value: np.generic, *operands: np.generic) -> np.generic:
    return value


def _truth(function: Callable[..., object]) -> Rule:
    return lambda dtypes, params: lambda *operands: _TRUE if function(*operands) else _FALSE


RULES: dict[str, Rule] = {
    "add": _numeric(_same(operator.add), _same(operator.add)),
    "sub": _numeric(_same(operator.sub), _same(operator.sub)),
    "mul": _numeric(_same(operator.mul), _same(operator.mul)),
    "min": _numeric(_same(_float_min), _same(min)),
    "max": _numeric(_same(_float_max), _same(max)),
    "div": _numeric(_same(_divide), _integer_div),
    "rem": _numeric(_same(np.fmod), _integer_rem),
    "neg": _numeric(_same(operator.neg), _same(operator.neg)),
    "abs": _numeric(_same(abs), _same(abs)),
    "sign": _numeric(_same(_float_sign), _integer_sign),
    "pow": _in_double(np.power),
    "atan2": _in_double(np.arctan2),
    "nextafter": _next_after,
    "integer_pow": _integer_pow,
    "fma": _numeric(_float_fma, _float_fma),
    "quotient": _numeric(lambda dtype: _quotient, lambda dtype: _quotient),
    "sqrt": _in_double(np.sqrt),
    "rsqrt": _in_double(lambda x: 1.0 / np.sqrt(x)),
    "cbrt": _in_double(np.cbrt),
    "exp": _in_double(np.exp),
    "exp2": _in_double(np.exp2),
    "expm1": _in_double(np.expm1),
    "log": _in_double(np.log),
    "log2": _in_double(np.log2),
    "log1p": _in_double(np.log1p),
    "logistic": _in_double(_logistic),
    "sin": _in_double(np.sin),
    "cos": _in_double(np.cos),
    "tan": _in_double(np.tan),
    "asin": _in_double(np.arcsin),
    "acos": _in_double(np.arccos),
    "atan": _in_double(np.arctan),
    "sinh": _in_double(np.sinh),
    "cosh": _in_double(np.cosh),
    "tanh": _in_double(np.tanh),
    "asinh": _in_double(np.arcsinh),
    "acosh": _in_double(np.arccosh),
    "atanh": _in_double(np.arctanh),
    "erf": _in_double(math.erf),
    "erfc": _in_double(math.erfc),
    "erf_inv": _in_double(special.erf_inv),
    "lgamma": _in_double(special.lgamma),
    "digamma": _in_double(special.digamma),
    "floor": _numeric(_same(np.floor), _same(np.floor)),
    "ceil": _numeric(_same(np.ceil), _same(np.ceil)),
    "round_even": _numeric(_same(np.rint), _same(np.rint)),
    "round_away": _numeric(_same(_round_away), _same(_round_away)),
    "trunc": _numeric(_same(np.trunc), _same(np.trunc)),
    "is_finite": _plain(lambda a: _TRUE if math.isfinite(a) else _FALSE),
    "lt": _truth(operator.lt),
    "le": _truth(operator.le),
    "gt": _truth(operator.gt),
    "ge": _truth(operator.ge),
    "eq": _truth(operator.eq),
    "ne": _truth(operator.ne),
    "and": _plain(lambda a, b: a & b),
    "or": _plain(lambda a, b: a | b),
    "xor": _plain(lambda a, b: a ^ b),
    "not": _plain(operator.invert),
    "shift_left": _shift(lambda a, n, bits: a << n),
    "shift_right_logical": _shift(lambda a, n, bits: a >> n),
    "shift_right_arithmetic": _shift(lambda a, n, bits: (a - (a >> (bits - 1) << bits)) >> n),
    "population_count": _bit_count(lambda a, bits: a.bit_count()),
    "clz": _bit_count(lambda a, bits: bits - a.bit_length()),
    "select": _select,
    "convert": _convert,
    "bitcast": _bitcast,
    "custom": _plain(_first),
    "at_most": _plain(_first),
    "lane_max": _plain(_first),  # one iteration alone
    "lane_count": _plain(np.int32),
    "lane_rank": _plain(lambda a: np.zeros_like(a, np.int32)),
}
