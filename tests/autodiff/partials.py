"""First-order behaviour of scalar operations: for each operand, what a small change of it does to the result.

The change is a product with a number, so the same function serves both directions: forward mode applies it to the
tangent of the operand, reverse mode to the adjoint of the result. Where a factor is 0 by a choice between operands
(`select`, `min`, `max`) the function chooses instead of multiplying, so that an infinite or undefined value of the side
not taken adds nothing. Conventions are JAX's: operands that tie in `min` and `max` get half each, `abs` has the
derivative 1 at 0, `pow(0, 0)` has the derivative 0 in its base.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qdtrace.ir.builder import Builder
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Eqn, literal

Partial = Callable[[Atom], Atom]
Rule = Callable[[Builder, Sequence[Atom], Atom, Mapping[str, Any]], tuple[Partial | None, ...]]

CONSTANT = frozenset({"sign", "floor", "ceil", "round_even", "round_away", "trunc", "bitcast"})
"""Operations on floats whose result does not change with small changes of the operands."""
RULES: dict[str, Rule] = {}
"""For each operation with a derivative: its partial derivatives, None where the result does not depend on an
operand."""

def partials(builder: Builder, eqn: Eqn, operands: Sequence[Atom], out: Atom) -> tuple[Partial | None, ...]:
    """The partial derivatives of an equation of scalars, one an operand, at these values of operands and result.

    The factors are emitted by `builder` when a function is called. Integers have none.
    """
    name = eqn.primitive.name
    if name in CONSTANT or not out.dtype.is_float:
        return (None,) * len(operands)
    found = RULES[name](builder, operands, out, eqn.params)
    return tuple(p if a.dtype.is_float else None for p, a in zip(found, operands, strict=True))


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names:
            assert name in PRIMITIVES, name
            RULES[name] = rule
        return rule

    return register


def _same(t: Atom) -> Atom:
    return t


def _scaled(builder: Builder, factor: Callable[[], Atom]) -> Partial:
    return lambda t: builder("mul", t, factor())


def _unary(name: str) -> Callable[[Callable[[Builder, Atom, Atom], Atom]], None]:
    """Registers the factor of an operation of one operand, written with the operand and the result."""

    def register(factor: Callable[[Builder, Atom, Atom], Atom]) -> None:
        RULES[name] = lambda b, ins, out, _: (_scaled(b, lambda: factor(b, ins[0], out)),)

    return register


def _number(value: float, like: Atom) -> Atom:
    return literal(value, like.dtype)


def _square(b: Builder, x: Atom) -> Atom:
    return b("mul", x, x)


def _plus(b: Builder, x: Atom, value: float) -> Atom:
    return b("add", x, _number(value, x))


def _times(b: Builder, x: Atom, value: float) -> Atom:
    return b("mul", x, _number(value, x))


def _minus_from(b: Builder, value: float, x: Atom) -> Atom:
    return b("sub", _number(value, x), x)


# Arithmetic.


@_rule("add")
def _add(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return _same, _same


@_rule("sub")
def _sub(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return _same, lambda t: b("neg", t)


@_rule("neg")
def _neg(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return (lambda t: b("neg", t),)


@_rule("abs")
def _abs(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return (lambda t: b("select", b("ge", ins[0], _number(0, ins[0])), t, b("neg", t)),)


@_rule("mul")
def _mul(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    x, y = ins
    return _scaled(b, lambda: y), _scaled(b, lambda: x)


@_rule("div")
def _div(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    y = ins[1]
    return lambda t: b("div", t, y), lambda t: b("neg", b("mul", b("div", t, y), out))


@_rule("fma")
def _fma(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    x, y, _ = ins
    return _scaled(b, lambda: y), _scaled(b, lambda: x), _same


@_rule("rem")
def _rem(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    x, y = ins
    return _same, lambda t: b("neg", b("mul", t, b("trunc", b("div", x, y))))


@_rule("nextafter")
def _nextafter(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return _same, None


@_rule("min", "max")
def _extreme(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    x, y = ins

    def part(mine: Atom, other: Atom) -> Partial:
        def chosen(t: Atom) -> Atom:
            alone = b("select", b("eq", mine, out), t, _number(0, t))
            return b("select", b("eq", mine, other), _times(b, t, 0.5), alone)

        return chosen

    return part(x, y), part(y, x)


@_rule("select")
def _select(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    which = ins[0]
    return (None, lambda t: b("select", which, t, _number(0, t)), lambda t: b("select", which, _number(0, t), t))


@_rule("convert")
def _convert(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    """Both directions are a conversion to the dtype of the other end."""
    ends = (ins[0].dtype, out.dtype)
    return (lambda t: b.convert(t, ends[1] if t.dtype is ends[0] else ends[0]),)


# Powers.


@_rule("integer_pow")
def _integer_pow(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    x, y = ins[0], int(params["y"])
    if y == 0:
        return (None,)
    if y == 1:
        return (_same,)
    power = x if y == 2 else None
    return (_scaled(b, lambda: _times(b, power or b("integer_pow", x, y=y - 1), y)),)


@_rule("pow")
def _pow(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    x, y = ins
    zero, one = _number(0, x), _number(1, x)

    def base() -> Atom:
        slope = b("mul", y, b("pow", x, b("sub", y, one)))
        return b("select", b("eq", y, zero), zero, slope)

    def exponent() -> Atom:
        # 0 ** y is 0 for every y near a positive one: the logarithm of 1 instead of that of 0.
        return b("mul", b("log", b("select", b("eq", x, zero), one, x)), out)

    return _scaled(b, base), _scaled(b, exponent)


@_unary("sqrt")
def _sqrt(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("div", _number(0.5, x), out)


@_unary("rsqrt")
def _rsqrt(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("div", _times(b, out, -0.5), x)


@_unary("cbrt")
def _cbrt(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("div", _number(1 / 3, x), _square(b, out))


# Exponentials and logarithms.


@_unary("exp")
def _exp(b: Builder, x: Atom, out: Atom) -> Atom:
    return out


@_unary("exp2")
def _exp2(b: Builder, x: Atom, out: Atom) -> Atom:
    return _times(b, out, math.log(2))


@_unary("expm1")
def _expm1(b: Builder, x: Atom, out: Atom) -> Atom:
    return _plus(b, out, 1)


@_rule("log")
def _log(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return (lambda t: b("div", t, ins[0]),)


@_rule("log1p")
def _log1p(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return (lambda t: b("div", t, _plus(b, ins[0], 1)),)


@_rule("log2")
def _log2(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return (lambda t: b("div", t, _times(b, ins[0], math.log(2))),)


@_unary("logistic")
def _logistic(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("mul", out, _minus_from(b, 1, out))


# Trigonometric and hyperbolic functions.


@_unary("sin")
def _sin(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("cos", x)


@_unary("cos")
def _cos(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("neg", b("sin", x))


@_unary("tan")
def _tan(b: Builder, x: Atom, out: Atom) -> Atom:
    return _plus(b, _square(b, out), 1)


@_unary("asin")
def _asin(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("rsqrt", _minus_from(b, 1, _square(b, x)))


@_unary("acos")
def _acos(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("neg", b("rsqrt", _minus_from(b, 1, _square(b, x))))


@_rule("atan")
def _atan(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    return (lambda t: b("div", t, _plus(b, _square(b, ins[0]), 1)),)


@_rule("atan2")
def _atan2(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    y, x = ins

    def over_square(factor: Callable[[], Atom]) -> Partial:
        return lambda t: b("mul", t, b("div", factor(), b("add", _square(b, x), _square(b, y))))

    return over_square(lambda: x), over_square(lambda: b("neg", y))


@_unary("sinh")
def _sinh(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("cosh", x)


@_unary("cosh")
def _cosh(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("sinh", x)


@_rule("tanh")
def _tanh(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    # (1 + tanh)(1 - tanh): 1 - tanh ** 2 would cancel in the tails.
    return (lambda t: b("mul", b("add", t, b("mul", t, out)), _minus_from(b, 1, out)),)


@_unary("asinh")
def _asinh(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("rsqrt", _plus(b, _square(b, x), 1))


@_unary("acosh")
def _acosh(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("rsqrt", _plus(b, _square(b, x), -1))


@_rule("atanh")
def _atanh(b: Builder, ins: Sequence[Atom], out: Atom, params: Mapping[str, Any]) -> tuple[Partial | None, ...]:
    x = ins[0]
    return (lambda t: b("div", t, b("mul", _plus(b, x, 1), _minus_from(b, 1, x))),)


# Functions of statistics.


@_unary("erf")
def _erf(b: Builder, x: Atom, out: Atom) -> Atom:
    return _times(b, b("exp", b("neg", _square(b, x))), 2 / math.sqrt(math.pi))


@_unary("erfc")
def _erfc(b: Builder, x: Atom, out: Atom) -> Atom:
    return _times(b, b("exp", b("neg", _square(b, x))), -2 / math.sqrt(math.pi))


@_unary("erf_inv")
def _erf_inv(b: Builder, x: Atom, out: Atom) -> Atom:
    return _times(b, b("exp", _square(b, out)), math.sqrt(math.pi) / 2)


@_unary("lgamma")
def _lgamma(b: Builder, x: Atom, out: Atom) -> Atom:
    return b("digamma", x)
