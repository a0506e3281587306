"""Elementwise primitives: most are graph primitives of the same name, applied per element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.combining import ON_BOOL
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.types import DType
from qdtrace.trace.importer import complexes
from qdtrace.trace.importer.elements import per_element
from qdtrace.trace.importer.registry import PLACED, RESULT_TYPE, rule
from qdtrace.trace.importer.scalars import integer
from qdtrace.trace.importer.values import Element, Value, rank0
from qdtrace.trace.physical import is_pair
from qdtrace.trace.rows import SAME_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.jaxprs import Shaped

_WITH_ACCURACY = frozenset(
    ("cbrt", "cos", "erfc", "exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "rsqrt", "sin", "sqrt", "tan",
     "tanh")
)  # fmt: skip
_PLAIN: dict[str, object] = {}
"""No parameters."""
_OTHER_NAME = {"add_any": "add"}
ACCURACY = "it is a wish that XLA's code for the CPU leaves aside"


def _is_complex(aval: Shaped) -> bool:
    return getattr(aval.dtype, "kind", "") == "c"


def _direct(name: str) -> Callable[..., Value]:
    on_bool = ON_BOOL.get(name, name)

    def run(imp: Importer, eqn: JaxprEqn, *values: Value) -> Value:
        aval = eqn.outvars[0].aval
        kind = getattr(eqn.invars[0].aval.dtype, "kind", "")
        if kind == "c":
            return complexes.per_pair(imp, name, aval, values)
        graph = on_bool if kind == "b" else name
        if not aval.shape and type(values[0]) is np.ndarray and type(values[-1]) is np.ndarray:
            # most equations of most programs
            return rank0(imp.scalar(PRIMITIVES[graph], tuple([v.item() for v in values]), _PLAIN, None))  # type: ignore[union-attr]
        return per_element(imp, lambda *elements: imp.op(graph, *elements), aval, *values)

    return run


for _name in SAME_NAME:
    rule(_name, ignores={"accuracy": ACCURACY} if _name in _WITH_ACCURACY else None)(_direct(_name))
for _name, _graph in _OTHER_NAME.items():
    rule(_name)(_direct(_graph))


@rule("mul")
def mul(imp: Importer, eqn: JaxprEqn, x: Value, y: Value, *, out_dtype: object = None) -> Value:
    """Returns the product, of operands in `out_dtype` when there is one."""
    if out_dtype is not None:
        x, y = (converted(imp, v.aval, value, eqn.outvars[0].aval) for v, value in zip(eqn.invars, (x, y), strict=True))
    return _product(imp, eqn, x, y)


_product = _direct("mul")


@rule("pow")
def pow_(imp: Importer, eqn: JaxprEqn, x: Value, y: Value) -> Value:
    """Imports `pow`; an integer exponent becomes a float one."""
    aval = eqn.outvars[0].aval
    if _is_complex(aval):
        return complexes.per_pair(imp, "pow", aval, (x, y))
    dtype = imp.dtype_of(aval)
    power = lambda a, b: imp.op("pow", a, imp.convert(b, dtype))  # noqa: E731
    return per_element(imp, power, aval, x, y)


@rule("integer_pow")
def integer_pow(imp: Importer, eqn: JaxprEqn, x: Value, *, y: int) -> Value:
    """Raises to a constant exponent; the first few are written out."""

    def power(a: Element) -> Element:
        if isinstance(a, tuple):
            return complexes.power(imp, a, y)
        if y in (2, 3, 4):
            square = imp.op("mul", a, a)
            return {2: square, 3: None, 4: None}[y] or imp.op("mul", square, a if y == 3 else square)
        return a if y == 1 else imp.op("integer_pow", a, y=y)

    return per_element(imp, power, eqn.outvars[0].aval, x)


@rule("square")
def square(imp: Importer, eqn: JaxprEqn, x: Value) -> Value:
    """Returns x times x."""
    if _is_complex(eqn.outvars[0].aval):
        return complexes.per_pair(imp, "square", eqn.outvars[0].aval, (x,))
    return per_element(imp, lambda a: imp.op("mul", a, a), eqn.outvars[0].aval, x)


@rule("round")
def round_(imp: Importer, eqn: JaxprEqn, x: Value, *, rounding_method: Any) -> Value:
    """Rounds ties to even or away from zero."""
    name = {"AWAY_FROM_ZERO": "round_away", "TO_NEAREST_EVEN": "round_even"}[rounding_method.name]
    return per_element(imp, lambda a: imp.op(name, a), eqn.outvars[0].aval, x)


@rule("clamp")
def clamp(imp: Importer, eqn: JaxprEqn, low: Value, x: Value, high: Value) -> Value:
    """Returns min(max(x, low), high)."""
    aval = eqn.outvars[0].aval
    if _is_complex(aval):
        return complexes.unsupported(imp, "clamp")
    larger, smaller = ("or", "and") if aval.dtype == np.bool_ else ("max", "min")
    limit = lambda a, b, c: imp.op(smaller, imp.op(larger, b, a), c)  # noqa: E731
    return per_element(imp, limit, aval, low, x, high)


@rule("select_n")
def select_n(imp: Importer, eqn: JaxprEqn, which: Value, *cases: Value) -> Value:
    """Returns the case chosen by a bool or an integer; a constant choice copies nothing."""
    if len(cases) == 1:
        return cases[0]

    def choose(index: Atom, *elements: Element) -> Element:
        if index.type.dtype is DType.bool:
            return imp.choose(index, elements[1], elements[0])
        chosen = elements[-1]
        for k in range(len(elements) - 2, -1, -1):
            chosen = imp.choose(imp.op("le", index, integer(k, index.dtype)), elements[k], chosen)
        return chosen

    return per_element(imp, choose, eqn.outvars[0].aval, which, *cases)


@rule(
    "convert_element_type",
    ignores={"new_dtype": RESULT_TYPE, "weak_type": "dtypes were promoted while tracing", "sharding": PLACED},
)
def convert_element_type(imp: Importer, eqn: JaxprEqn, x: Value) -> Value:
    """Converts between dtypes."""
    return converted(imp, eqn.invars[0].aval, x, eqn.outvars[0].aval)


def converted(imp: Importer, source: Shaped, x: Value, aval: Shaped) -> Value:
    """Returns an array of type `source` as one of type `aval`, to whose shape its own broadcasts."""
    if source.dtype == aval.dtype:
        return x
    dtype, pair = imp.dtype_of(aval), is_pair(aval)
    return per_element(imp, lambda a: complexes.converted(imp, a, dtype, pair=pair), aval, x)


@rule("bitcast_convert_type", ignores={"new_dtype": RESULT_TYPE})
def bitcast_convert_type(imp: Importer, eqn: JaxprEqn, x: Value) -> Value:
    """Returns bits as another dtype; a narrower one adds a trailing axis, a wider one removes it (little end first)."""
    aval = eqn.outvars[0].aval
    source, target = imp.dtype_of(eqn.invars[0].aval), imp.dtype_of(aval)
    if source is target:
        return x
    if source.itemsize == target.itemsize:
        # a rule that folds two of them into none must not bring a derivative back
        cast = lambda a: imp.op("bitcast", a, dtype=target)  # noqa: E731
        return per_element(imp, cast, aval, x)
    x = imp.scalars(x, "bitcast_convert_type")
    wide = DType(f"u{max(source.itemsize, target.itemsize) * 8}")
    narrow = DType(f"u{min(source.itemsize, target.itemsize) * 8}")
    to = lambda a, d: a if a.type.dtype is d else imp.op("bitcast", a, dtype=d)  # noqa: E731
    out = np.empty(aval.shape, object)
    if target.itemsize < source.itemsize:
        for at in np.ndindex(*x.shape):
            bits = to(x[at], wide)
            for k in range(source.itemsize // target.itemsize):
                part = imp.op("shift_right_logical", bits, integer(k * narrow.bits, wide))
                out[(*at, k)] = to(imp.convert(part, narrow), target)
        return out
    for at in np.ndindex(*aval.shape):
        total: Atom = integer(0, wide)
        for k in range(target.itemsize // source.itemsize):
            part = imp.convert(to(x[(*at, k)], narrow), wide)
            total = imp.op("or", imp.op("shift_left", part, integer(k * narrow.bits, wide)), total) if k else part
        out[at] = to(total, target)
    return out


def total_less(imp: Importer, dtype: DType, a: Atom, b: Atom) -> Atom:
    """Returns a < b in the order of sorting: NaN is the largest, -0.0 equals 0.0."""
    less = imp.op("lt", a, b)
    if not dtype.is_float:
        return less
    only_b = imp.op("and", imp.op("ne", b, b), imp.op("eq", a, a))
    return imp.op("or", less, only_b)


@rule("eq_to", "lt_to", "le_to")
def total_order(imp: Importer, eqn: JaxprEqn, x: Value, y: Value) -> Value:
    """Compares in the total order of IEEE 754, which is that of the bits: -0.0 is below 0.0, NaN at the ends."""
    dtype = imp.dtype_of(eqn.invars[0].aval)
    name = eqn.primitive.name.removesuffix("_to")

    def key(element: Atom) -> Atom:
        if not dtype.is_float:
            return element
        kind = DType(f"i{dtype.bits}")
        bits = imp.op("bitcast", element, dtype=kind)
        sign = imp.op("shift_right_arithmetic", bits, integer(dtype.bits - 1, kind))
        return imp.op("xor", bits, imp.op("and", sign, integer((1 << (dtype.bits - 1)) - 1, kind)))

    return per_element(imp, lambda a, b: imp.op(name, key(a), key(b)), eqn.outvars[0].aval, x, y)


@rule("mulhi")
def mulhi(imp: Importer, eqn: JaxprEqn, x: Value, y: Value) -> Value:
    """Returns the upper half of the product of integers."""
    aval = eqn.outvars[0].aval
    dtype = imp.dtype_of(aval)
    high = _high_of_wide if dtype.bits == 64 else _high
    return per_element(imp, lambda a, b: high(imp, dtype, a, b), aval, x, y)


def _high(imp: Importer, dtype: DType, a: Atom, b: Atom) -> Atom:
    wide = DType.i64 if dtype.is_signed else DType.u64
    product = imp.op("mul", imp.convert(a, wide), imp.convert(b, wide))
    return imp.convert(imp.op("shift_right_logical", product, integer(dtype.bits, wide)), dtype)


def _high_of_wide(imp: Importer, dtype: DType, a: Atom, b: Atom) -> Atom:
    """Emits the high word by products of halves; a negative number read as unsigned is 2^64 too large."""
    op, word, low = imp.op, DType.u64, integer(2**32 - 1, DType.u64)
    shift = lambda v: op("shift_right_logical", v, integer(32, word))  # noqa: E731
    x, y = (v if dtype is word else op("bitcast", v, dtype=word) for v in (a, b))
    (x0, x1), (y0, y1) = ((op("and", v, low), shift(v)) for v in (x, y))
    first, second = op("mul", x0, y1), op("mul", x1, y0)
    middle = op("add", shift(op("mul", x0, y0)), op("add", op("and", first, low), op("and", second, low)))
    high = op("add", op("add", op("mul", x1, y1), shift(first)), op("add", shift(second), shift(middle)))
    if dtype is word:
        return high
    zero = integer(0, dtype)
    for negative, other in ((a, b), (b, a)):
        high = op("sub", high, op("bitcast", imp.choose(op("lt", negative, zero), other, zero), dtype=word))
    return op("bitcast", high, dtype=dtype)


@rule("polynomial")
def polynomial(imp: Importer, eqn: JaxprEqn, x: Value, *coefficients: Value) -> Value:
    """Evaluates a polynomial by Horner's scheme; coefficients from the constant term up."""

    def horner(a: Element, *terms: Element) -> Element:
        total = terms[-1]
        for term in reversed(terms[:-1]):
            total = complexes.element(imp, "add", complexes.element(imp, "mul", total, a), term)
        return total

    return per_element(imp, horner, eqn.outvars[0].aval, x, *coefficients)


@rule("device_put", ignores=dict.fromkeys(("devices", "srcs", "copy_semantics"), PLACED))
@rule("copy", "optimization_barrier", "random_clone")
@rule("name", ignores={"name": "it is for policies of jax.checkpoint"})
@rule("pvary", ignores={"axes": PLACED})
@rule("reshard", ignores={"dst_sharding": PLACED, "concrete_mesh": PLACED})
@rule("layout_constraint", ignores={"layout": PLACED})
@rule(
    "sharding_constraint", ignores=dict.fromkeys(("sharding", "layout", "context_mesh", "unconstrained_dims"), PLACED)
)
def identity(imp: Importer, eqn: JaxprEqn, *values: Value) -> Any:
    """Returns the operand."""
    return list(values) if eqn.primitive.multiple_results else values[0]
