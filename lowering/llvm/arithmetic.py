"""Rules of the elementwise primitives: one function per primitive, over one vector or one scalar.

A rule gets the vocabulary `o`, the dtype of the operands, the operands and the parameters. Floats of 16 bits arrive
as f32; rules of rounding operations end in `round_to`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lowering.llvm import conversions, elementary, integers
from lowering.llvm.conversions import round_to
from lowering.llvm.types import REGISTER, compute_dtype, constant
from qdtrace.ir.powers import power
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom

    Params = Mapping[str, Any]
    Rule = Callable[[Ops, DType, list[str], Params, tuple[Atom, ...]], str]

RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Registers a rule for a primitive."""

    def register(fn: Rule) -> Rule:
        RULES[name] = fn
        return fn

    return register


def _define_binary(name: str, integer: str, float_: str = "") -> None:
    def apply(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
        if d.is_float:
            return round_to(o, d, o.op(f"{float_} {o.flags}{o.type(d)} {values[0]}, {values[1]}"))
        return o.op(f"{integer} {o.type(d)} {values[0]}, {values[1]}")

    RULES[name] = apply


_define_binary("add", "add", "fadd")
_define_binary("sub", "sub", "fsub")
_define_binary("mul", "mul", "fmul")
for _name in ("and", "or", "xor"):
    _define_binary(_name, _name)


@rule("div")
def _div(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    a, b = values
    if not d.is_float:
        return integers.divide(o, d, a, b, atoms[1], remainder=False)
    return round_to(o, d, o.op(f"fdiv {o.flags}{o.type(d)} {a}, {b}"))


@rule("rem")
def _rem(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    if not d.is_float:
        return integers.divide(o, d, values[0], values[1], atoms[1], remainder=True)
    if _is_power_of_two(atoms[1]):
        return _rem_by_power_of_two(o, d, *values)
    return elementary.call(o, "rem", d, [values])[0]


def _is_power_of_two(divisor: Atom) -> bool:
    """Returns whether a divisor is 1, 2, 4, ... up to 2**14, whose multiples and reciprocal all floats have."""
    return isinstance(divisor, Literal) and float(divisor.value) in {2.0**k for k in range(15)}


def _rem_by_power_of_two(o: Ops, d: DType, x: str, divisor: str) -> str:
    """Emits `x - trunc(x / divisor) * divisor`, in which nothing is rounded, with the sign of x; NaN for infinities."""
    kind, t = REGISTER[d], o.type(d)
    whole = o.intrinsic("trunc", kind, o.op(f"fdiv {t} {x}, {divisor}"))
    rest = o.op(f"fsub {t} {x}, {o.op(f'fmul {t} {whole}, {divisor}')}")
    return o.intrinsic("copysign", kind, rest, x)


def minimum(
    o: Ops, d: DType, a: str, b: str, *, largest: bool, number: Literal | None = None, signed: bool = True
) -> str:
    """Returns the smaller (larger) operand; NaN if one is NaN; -0.0 is below 0.0. `number`: `b` is this constant.

    If zeros are not `signed`, either of them is the result.
    """
    t = o.type(d)
    if not d.is_float:
        if d is DType.bool:
            return o.binary("or" if largest else "and", t, a, b)
        return o.intrinsic(("s" if d.is_signed else "u") + ("max" if largest else "min"), REGISTER[d], a, b)
    better = "fcmp ogt" if largest else "fcmp olt"
    if number is not None:
        if signed and number.value == 0 and np.signbit(number.value) != largest:
            # the constant is the zero that wins against the other zero
            return o.select(o.compare("fcmp ole" if largest else "fcmp oge", t, a, b), t, b, a)
        # one minps: it returns its second operand if one is NaN
        return o.select(o.compare(better, t, b, a), t, b, a)
    # the two orders of operands differ only for zeros and NaN: `or` keeps what makes NaN, and chooses -0.0
    one, other = (o.select(o.compare(better, t, x, y), t, x, y) for x, y in ((a, b), (b, a)))
    either = _bitwise(o, "or", d, one, other)
    if not (largest and signed):
        return either
    return _bitwise(o, "or", d, _bitwise(o, "and", d, one, other), o.intrinsic("fabs", REGISTER[d], either))


def _bitwise(o: Ops, opcode: str, d: DType, a: str, b: str) -> str:
    float_, integer = REGISTER[d], "i64" if d is DType.f64 else "i32"
    bits = [o.cast("bitcast", float_, x, integer) for x in (a, b)]
    return o.cast("bitcast", integer, o.binary(opcode, o.vector(integer), *bits), float_)


def extreme(o: Ops, d: DType, values: list[str], atoms: tuple[Atom, ...], *, largest: bool, signed: bool) -> str:
    """Returns the smaller (larger) operand, one of which may be a constant."""
    for k, atom in enumerate(atoms):
        if isinstance(atom, Literal) and d.is_float and atom.value == atom.value:
            return minimum(o, d, values[1 - k], values[k], largest=largest, number=atom, signed=signed)
    return minimum(o, d, *values, largest=largest, signed=signed)


def _define_extreme(name: str, *, largest: bool) -> None:
    def apply(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
        return extreme(o, d, values, atoms, largest=largest, signed=True)

    RULES[name] = apply


_define_extreme("min", largest=False)
_define_extreme("max", largest=True)


@rule("select")
def _select(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    return o.select(values[0], o.type(atoms[1].dtype), values[1], values[2])


@rule("neg")
def _neg(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    if d.is_float:
        return o.op(f"fneg {o.type(d)} {values[0]}")
    return o.binary("sub", o.type(d), o.constant(0, d), values[0])


@rule("abs")
def _abs(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    if d.is_float:
        return o.intrinsic("fabs", REGISTER[d], values[0])
    return o.intrinsic("abs", REGISTER[d], values[0], extra="i1 false") if d.is_signed else values[0]


@rule("sign")
def _sign(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    (x,), t = values, o.type(d)
    zero, one = o.constant(0, d), o.constant(1, d)
    if d.is_float:
        signed = o.intrinsic("copysign", REGISTER[d], one, x)
        return o.select(o.compare("fcmp one", t, x, zero), t, signed, x)
    positive = o.op(f"zext {o.bits} {o.compare('icmp ne', t, x, zero)} to {t}")
    if not d.is_signed:
        return positive
    return o.select(o.compare("icmp slt", t, x, zero), t, o.constant(-1, d), positive)


def _define_intrinsic(name: str, intrinsic: str, extra: str = "") -> None:
    def apply(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
        return round_to(o, d, o.intrinsic(intrinsic, REGISTER[d], *values, extra=extra))

    RULES[name] = apply


for _name, _intrinsic in {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round_even": "roundeven",
    "round_away": "round", "fma": "fma", "population_count": "ctpop",
}.items():  # fmt: skip
    _define_intrinsic(_name, _intrinsic)
_define_intrinsic("clz", "ctlz", "i1 false")


@rule("is_finite")
def _is_finite(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    size = o.intrinsic("fabs", REGISTER[d], values[0])
    return o.compare("fcmp one", o.type(d), size, o.lanes.splat(REGISTER[d], constant(math.inf, compute_dtype(d))))


def _define_comparison(name: str, of_floats: str, *, equality: bool = False) -> None:
    def apply(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
        if d.is_float:
            return o.compare(f"fcmp {of_floats}", o.type(d), *values)
        sign = "" if equality else "s" if d.is_signed else "u"
        return o.compare(f"icmp {sign}{name}", o.type(d), *values)

    RULES[name] = apply


for _name in ("lt", "le", "gt", "ge"):
    _define_comparison(_name, f"o{_name}")
_define_comparison("eq", "oeq", equality=True)
_define_comparison("ne", "une", equality=True)


@rule("not")
def _not(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    return o.binary("xor", o.type(d), values[0], o.constant(1 if d is DType.bool else -1, d))


def _define_shift(name: str, opcode: str) -> None:
    def apply(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
        return integers.shift(o, d, opcode, values[0], values[1], atoms[1])

    RULES[name] = apply


for _name, _opcode in [("shift_left", "shl"), ("shift_right_logical", "lshr"), ("shift_right_arithmetic", "ashr")]:
    _define_shift(_name, _opcode)


@rule("convert")
def _convert(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    return conversions.convert(o, d, values[0], params["dtype"])


@rule("bitcast")
def _bitcast(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    return conversions.bitcast(o, d, values[0], params["dtype"])


@rule("integer_pow")
def _integer_pow(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    y = int(params["y"])
    if d is not compute_dtype(d):
        return round_to(o, d, _integer_pow(o, DType.f32, values, params, atoms))
    result, one = power(values[0], abs(y), lambda a, b: RULES["mul"](o, d, [a, b], {}, ())), o.constant(1, d)
    if result is None:
        return one
    if y > 0:
        return result
    if d.is_float:
        return o.op(f"fdiv {o.flags}{o.type(d)} {one}, {result}")
    return integers.divide(o, d, one, result, atoms[0], remainder=False)


@rule("nextafter")
def _nextafter(o: Ops, d: DType, values: list[str], params: Params, atoms: tuple[Atom, ...]) -> str:
    """Adds 1 to the bits, or subtracts 1: bits of neighbouring floats are neighbours, and grow away from zero."""
    a, b = values
    t, width = o.type(d), {DType.f64: 64, DType.f32: 32}.get(d, 16)
    integer = {64: DType.i64, 32: DType.i32, 16: DType.i16}[width]
    n = o.type(integer)

    def i(value: int) -> str:
        return o.constant(value, integer)

    bits = conversions.bitcast(o, d, a, integer)
    up = o.compare("fcmp olt", t, a, b)
    negative = o.compare("icmp slt", n, bits, i(0))
    grow = o.binary("xor", o.bits, up, negative)
    moved = o.binary("add", n, bits, o.select(grow, n, i(1), i(-1)))
    smallest = o.select(up, n, i(1), i(1 - (1 << width - 1)))
    zero = o.compare("fcmp oeq", t, a, o.constant(0, d))
    moved = conversions.bitcast(o, integer, o.select(zero, n, smallest, moved), d)
    # equal operands yield the second one; NaN is their sum
    result = o.select(o.compare("fcmp oeq", t, a, b), t, b, moved)
    nan = o.op(f"fadd {t} {a}, {b}")
    return o.select(o.compare("fcmp uno", t, a, b), t, nan, result)
