"""Complex numbers as pairs (real, imaginary): arithmetic written out, functions by real jnp formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import jax.numpy as jnp
import numpy as np

from qdtrace.errors import UnsupportedError
from qdtrace.ir import powers
from qdtrace.ir.program import Literal
from qdtrace.trace.importer.elements import length_of, per_element
from qdtrace.trace.importer.registry import RESULT_TYPE, rule, scalar_struct, traced_rule
from qdtrace.trace.importer.scalars import constant
from qdtrace.trace.importer.values import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array

    from qdtrace.ir.program import Atom
    from qdtrace.ir.types import DType
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Element, Pair, Value
    from qdtrace.trace.jaxprs import AnyJaxpr, Shaped

    Parts = tuple[Array, Array]


def element(imp: Importer, name: str, a: Any, *rest: Any) -> Any:
    """Emits an elementwise operation on elements: on numbers, or on pairs."""
    op = imp.op
    if type(a) is not tuple:
        return op(name, a, *rest)
    match name:
        case "add" | "sub" | "neg":
            return tuple(op(name, *parts) for parts in zip(a, *rest, strict=True))
        case "mul":
            (b,) = rest
            real = op("sub", op("mul", a[0], b[0]), op("mul", a[1], b[1]))
            return real, op("add", op("mul", a[0], b[1]), op("mul", a[1], b[0]))
        case "square":  # the product does not overflow where the square is imaginary
            return op("mul", op("sub", *a), op("add", *a)), op("mul", a[0], op("add", a[1], a[1]))
        case "div":
            return a if _is_one(*rest) else _divide(imp, a, *rest)
        case "max" | "min":
            (b,), compare = rest, {"max": "gt", "min": "lt"}[name]
            first = imp.choose(op("eq", a[0], b[0]), op(compare, a[1], b[1]), op(compare, a[0], b[0]))
            return imp.choose(first, a, b)
        case "eq" | "is_finite" | "ne":
            join = {"eq": "and", "is_finite": "and", "ne": "or"}[name]
            return op(join, *(op(name, *parts) for parts in zip(a, *rest, strict=True)))
        case "pow" if type(rest[0]) is not tuple:
            return _formula(imp, name, [a, converted(imp, rest[0], a[0].type.dtype, pair=True)])
        case _:
            return _formula(imp, name, [a, *rest]) if name in _FORMULAS else unsupported(imp, name)


def _is_one(b: Sequence[Atom]) -> bool:
    """Returns whether a divisor is the constant 1, by which XLA does not divide: infinite parts stay what they are."""
    parts = [part.value for part in b if isinstance(part, Literal)]
    return parts == [1, 0]


def _divide(imp: Importer, a: Pair, b: Pair) -> Pair:
    """Divides by Smith's method: scales by the larger part of the divisor, so nothing overflows early.

    A quotient by zero is both parts over the zero's real part, and one by an infinite number zero, as XLA's. No
    condition asks the dividend, which may be a tangent.
    """
    op, real_type = imp.op, b[0].type.dtype.numpy.type
    zero, one, minus, inf = (constant(real_type(x)) for x in (0, 1, -1, np.inf))
    ends = [op("eq", op("abs", part), inf) for part in b]
    endless = op("or", *ends)
    ones = [imp.choose(op("lt", part, zero), minus, one) for part in b]
    b = imp.choose(endless, tuple(imp.choose(end, sign, zero) for end, sign in zip(ends, ones, strict=True)), b)
    wide = op("ge", op("abs", b[0]), op("abs", b[1]))
    large, small = imp.choose(wide, b[0], b[1]), imp.choose(wide, b[1], b[0])
    none = op("and", op("eq", large, zero), op("eq", small, zero))  # the smaller may be NaN
    ratio = imp.choose(none, zero, op("div", small, large))
    scale = imp.choose(none, large, op("add", large, op("mul", small, ratio)))
    scale = imp.choose(endless, inf, scale)
    x, y = imp.choose(wide, a[0], a[1]), imp.choose(wide, a[1], a[0])
    first, other = op("add", x, op("mul", y, ratio)), op("mul", x, ratio)
    second = imp.choose(wide, op("sub", y, other), op("sub", other, y))  # a negation would turn a zero's sign
    return op("div", imp.choose(none, x, first), scale), op("div", imp.choose(none, y, second), scale)


def unsupported(imp: Importer, name: str) -> NoReturn:
    raise UnsupportedError(
        f"`{name}` of complex numbers has no import rule", loc=imp.here(),
        help="write it with real and imaginary parts, or compute it outside of the loop",
    )  # fmt: skip


def _log_size(x: Array, y: Array) -> Array:
    """Returns log |z|; near the unit circle from the distance to it, where the logarithm is small."""
    size = jnp.hypot(x, y)
    large, small = jnp.maximum(jnp.abs(x), jnp.abs(y)), jnp.minimum(jnp.abs(x), jnp.abs(y))
    near = 0.5 * jnp.log1p((large - 1) * (large + 1) + small * small)
    return jnp.where((size > 0.5) & (size < 2), near, jnp.log(size))


def _log(x: Array, y: Array) -> Parts:
    return _log_size(x, y), jnp.arctan2(y, x)


def _exp(x: Array, y: Array) -> Parts:
    r = jnp.exp(x)
    return jnp.where(y == 0, r, r * jnp.cos(y)), jnp.where(y == 0, y, r * jnp.sin(y))


def _sqrt(x: Array, y: Array) -> Parts:
    r = jnp.sqrt(0.5 * (jnp.hypot(x, y) + jnp.abs(x)))
    other = jnp.where(r == 0, r, 0.5 * jnp.abs(y) / jnp.where(r == 0, jnp.ones_like(r), r))
    real, imag = jnp.where(x >= 0, r, other), jnp.where(x >= 0, other, r)
    endless, none = jnp.isinf(y) & ~jnp.isnan(x), jnp.isnan(y)
    real = jnp.where(endless, jnp.inf, jnp.where(none, y, real))
    return real, jnp.where(endless | none, y, jnp.copysign(imag, y))


def _rsqrt(x: Array, y: Array) -> Parts:
    u, v = _sqrt(x, y)
    n = u * u + v * v
    endless = jnp.isinf(x) | jnp.isinf(y)
    real, imag = jnp.where(endless, 0, u / n), jnp.where(endless, jnp.copysign(0, -y), -v / n)
    return jnp.where(n == 0, jnp.inf, real), jnp.where(n == 0, jnp.nan, imag)


def _sinh(x: Array, y: Array) -> Parts:
    """Computes sinh; a zero part stays zero beside a cosine of the other, or an infinity."""
    real, imag = jnp.sinh(x) * jnp.cos(y), jnp.cosh(x) * jnp.sin(y)
    return jnp.where((x == 0) & jnp.isfinite(y), x, real), jnp.where(y == 0, y, imag)


def _cosh(x: Array, y: Array) -> Parts:
    real, imag = jnp.cosh(x) * jnp.cos(y), jnp.sinh(x) * jnp.sin(y)
    return real, jnp.where(y == 0, y * jnp.copysign(1, x), jnp.where(x == 0, x * y, imag))


def _tanh(x: Array, y: Array) -> Parts:
    t, s = jnp.tanh(x), jnp.tan(y)
    s = jnp.where(jnp.isinf(x) & ~jnp.isfinite(y), 0, s)
    d = 1 + t * t * s * s
    return t * (1 + s * s) / d, jnp.where(y == 0, y, s * (1 - t * t) / d)


def _pow(x: Array, y: Array, u: Array, v: Array) -> Parts:
    """Returns z**w; it is 1 where z is 1 or w is 0, whatever the other is, and real where z is inf + 0i and w real."""
    a, b = _log(x, y)
    real, imag = _exp(a * u - b * v, a * v + b * u)
    zero = (x == 0) & (y == 0)
    nothing = jnp.where((v != 0) | ~(u >= 0), jnp.nan, 0).astype(real.dtype)
    endless = (x == jnp.inf) & (y == 0) & (v == 0) & (u != 0) & ~jnp.isnan(u)
    real = jnp.where(zero, nothing, jnp.where(endless, jnp.where(u > 0, jnp.inf, 0.0), real))
    unit = (u == 0) & (v == 0) | (x == 1) & (y == 0)
    return jnp.where(unit, 1, real), jnp.where(unit | endless, 0, jnp.where(zero, nothing, imag))


def _sign(x: Array, y: Array) -> Parts:
    r = jnp.hypot(x, y)
    safe = jnp.where(r == 0, jnp.ones_like(r), r)
    return x / safe, y / safe


def _log1p(x: Array, y: Array) -> Parts:
    far = jnp.maximum(jnp.abs(x), jnp.abs(y)) > 0.5
    near = 0.5 * jnp.log1p(x * (2 + x) + y * y)
    return jnp.where(far, _log_size(1 + x, y), near), jnp.arctan2(y, 1 + x)


def _expm1(x: Array, y: Array) -> Parts:
    half = jnp.sin(0.5 * y)
    real, imag = jnp.expm1(x) * jnp.cos(y) - 2 * half * half, jnp.exp(x) * jnp.sin(y)
    return real, jnp.where(y == 0, y, imag)


def _logistic(x: Array, y: Array) -> Parts:
    """Returns 1 / (1 + exp(-z)), or exp(z) / (1 + exp(z)) on the left, by the smaller exponential u + iv."""
    u, v = _exp(-jnp.abs(x), y)
    size = (1 + u) * (1 + u) + v * v
    return jnp.where(x < 0, u + u * u + v * v, 1 + u) / size, v / size


def _corner(x: Array, y: Array) -> Array:
    """Returns the angle of an infinite x + i|y|: a multiple of an eighth of a turn, or NaN beside NaN."""
    u, v = (jnp.where(jnp.isinf(a), jnp.copysign(1, a), 0 * a) for a in (x, y))
    return jnp.arctan2(jnp.abs(v), u)


def _asinh(x: Array, y: Array) -> Parts:
    """Uses roots of 1 + iz and 1 - iz, right on both sides of a branch cut (W. Kahan, 1987); so do the next ones."""
    a, b = _sqrt(1 - y, x)
    c, d = _sqrt(1 + y, -x)
    real, imag = jnp.arcsinh(c * b - a * d), jnp.arctan2(y, c * a - d * b)
    endless, angle = jnp.isinf(x) | jnp.isinf(y), jnp.copysign(_corner(jnp.abs(x), y), y)
    return jnp.where(endless, jnp.copysign(jnp.inf, x), real), jnp.where(endless, angle, imag)


def _acos(x: Array, y: Array) -> Parts:
    a, b = _sqrt(1 - x, -y)
    c, d = _sqrt(1 + x, y)
    real, imag = 2 * jnp.arctan2(a, c), jnp.arcsinh(c * b - d * a)
    endless = jnp.isinf(x) | jnp.isinf(y)
    return jnp.where(endless, _corner(x, y), real), jnp.where(endless, jnp.copysign(jnp.inf, -y), imag)


def _acosh(x: Array, y: Array) -> Parts:
    a, b = _sqrt(x - 1, y)
    c, d = _sqrt(x + 1, y)
    real, imag = jnp.arcsinh(a * c + b * d), 2 * jnp.arctan2(b, c)
    endless, angle = jnp.isinf(x) | jnp.isinf(y), jnp.copysign(_corner(x, y), y)
    return jnp.where(endless, jnp.inf, real), jnp.where(endless, angle, imag)


def _atanh(x: Array, y: Array) -> Parts:
    size = jnp.abs(x)
    d = jnp.hypot(1 - size, y)
    real = 0.25 * jnp.log1p(4 * (size / d) / d)
    imag = 0.5 * jnp.arctan2(2 * y, (1 - x) * (1 + x) - y * y)
    far = jnp.isinf(x) | jnp.isinf(y)
    quarter = jnp.copysign(jnp.asarray(np.pi / 2, y.dtype), y)
    return jnp.copysign(jnp.where(far, 0, real), x), jnp.where(far, quarter, imag)


def _exp2(x: Array, y: Array) -> Parts:
    two = jnp.asarray(np.log(2), x.dtype)
    r = jnp.exp2(x)
    return jnp.where(y == 0, r, r * jnp.cos(two * y)), jnp.where(y == 0, y, r * jnp.sin(two * y))


def _log2(x: Array, y: Array) -> Parts:
    scale = jnp.asarray(np.log(2), x.dtype)
    return _log_size(x, y) / scale, jnp.arctan2(y, x) / scale


def _turned(function: Callable[[Array, Array], Parts]) -> Callable[[Array, Array], Parts]:
    """Returns z -> -i f(iz)."""

    def run(x: Array, y: Array) -> Parts:
        a, b = function(-y, x)
        return b, -a

    return run


_FORMULAS: dict[str, Callable[..., Any]] = {
    "log": _log, "exp": _exp, "sqrt": _sqrt, "rsqrt": _rsqrt, "sinh": _sinh, "cosh": _cosh, "tanh": _tanh,
    "tan": _turned(_tanh), "pow": _pow, "sign": _sign, "log1p": _log1p, "expm1": _expm1, "logistic": _logistic,
    "sin": _turned(_sinh), "cos": lambda x, y: _cosh(-y, x), "abs": jnp.hypot, "asin": _turned(_asinh), "acos": _acos,
    "atan": _turned(_atanh), "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "exp2": _exp2, "log2": _log2,
}  # fmt: skip


def _traced(name: str, dtype: DType, parts: int) -> AnyJaxpr:
    return traced_rule(_FORMULAS[name], scalar_struct(dtype.numpy, parts), {})


def _formula(imp: Importer, name: str, elements: Sequence[Any]) -> Element:
    parts = [p for pair in elements for p in parts_of(pair)]
    results = imp.call_on_scalars(_traced(name, parts[0].type.dtype, len(parts)), parts)
    return results[0] if len(results) == 1 else tuple(results)


def power(imp: Importer, a: Pair, y: int) -> Pair:
    """Raises to a constant exponent."""
    one = converted(imp, constant(a[0].type.dtype.numpy.type(1)), a[0].type.dtype, pair=True)
    total = powers.power(a, abs(y), lambda a, b: element(imp, "mul", a, b)) or one
    return element(imp, "div", one, total) if y < 0 else total


def per_pair(imp: Importer, name: str, aval: Shaped, values: Sequence[Value]) -> Value:
    """Imports an elementwise primitive on complex operands."""
    length = length_of(_traced(name, imp.dtype_of(aval), 2 * len(values))) if name in _FORMULAS else 1
    return per_element(imp, lambda *elements: element(imp, name, *elements), aval, *values, length=length)


def converted(imp: Importer, value: Element, dtype: DType, *, pair: bool) -> Any:
    """Returns an element with parts of another dtype: a pair, or the real part of one."""
    parts = value if isinstance(value, tuple) else (value, constant(dtype.numpy.type(0)))
    return tuple(imp.convert(p, dtype) for p in parts) if pair else imp.convert(parts[0], dtype)


def _parts(pick: Callable[..., Any]) -> Callable[..., Value]:
    return lambda imp, eqn, *values: per_element(imp, lambda *e: pick(imp, *e), eqn.outvars[0].aval, *values)


rule("real")(_parts(lambda imp, z: z[0]))
rule("imag")(_parts(lambda imp, z: z[1]))
rule("complex")(_parts(lambda imp, x, y: (x, y)))
rule("conj", ignores={"input_dtype": RESULT_TYPE})(
    _parts(
        lambda imp, z: (z[0], imp.op("neg", z[1])) if type(z) is tuple else converted(imp, z, z.type.dtype, pair=True)
    )
)
