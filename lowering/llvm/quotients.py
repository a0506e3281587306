"""`quotient`: a division by a value whose reciprocal is known becomes a multiplication.

`x * c` with `c = 1 / r` has the class and sign of `x / r` for every `x`, if `r` and `c` are normal numbers. For *odd*
divisors (zeros, infinities, NaN, and finite ones whose reciprocal overflows or is subnormal) `x` is divided, in a
branch that is hardly ever taken, and the quotient is multiplied by one. So the multiplication follows the branch,
where a following sum can be fused with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.conversions import round_to
from lowering.llvm.types import REGISTER
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.descriptions import OddDivisor
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from lowering.llvm.vectors import Value
    from qdtrace.ir.program import Eqn, Var

_LAYOUT = {DType.f32: ("i32", 24, 252), DType.f64: ("i64", 53, 2044)}
"""The integer of each dtype's width, the position of the exponent without the sign, and the number of
exponents of divisors whose reciprocals are all normal."""


def _is_odd(o: Ops, d: DType, divisor: str) -> str:
    """Returns whether a divisor is odd: subtracting a bit pattern brings the exponents of all others below a limit."""
    integer, exponent, largest = _LAYOUT[d]
    t = o.vector(integer)
    bits = o.binary("shl", t, o.cast("bitcast", REGISTER[d], divisor, integer), o.number(integer, 1))
    above = o.binary("sub", t, bits, o.number(integer, 1 << exponent))
    return o.compare("icmp uge", t, above, o.number(integer, largest << exponent))


def note_divisor(f: Frame, inverse: Var) -> None:
    """Tests a divisor where its reciprocal is defined, before the loops that divide by it."""
    divisor = f.facts.divisors.get(inverse)
    if divisor is not None and f.scalar.fast_math and inverse.dtype in _LAYOUT:
        f.odd[_registers(f.env[inverse])] = f.odd_divisor(divisor, _is_odd)


def emit_quotient(f: Frame, eqn: Eqn) -> None:
    """Emits `quotient x r c`."""
    _, r, c = eqn.invars
    out = eqn.outvars[0]
    o = f.ops(out)
    x_registers, r_registers, c_registers = (f.operands(out, a) for a in eqn.invars)
    if o.fast_math and out.dtype in _LAYOUT:
        odd = f.odd.get(_registers(f.value(c))) or f.odd_divisor(r, _is_odd)
        f.bind(out, _multiplied(f, o, out.dtype, odd, x_registers, r_registers, c_registers))
    else:
        pairs = zip(x_registers, r_registers, strict=True)
        f.bind(out, [round_to(o, out.dtype, o.op(f"fdiv {o.flags}{o.type(out.dtype)} {a}, {b}")) for a, b in pairs])


def _registers(value: Value) -> tuple[str, ...]:
    return (value.scalar,) if value.scalar is not None else tuple(value.vectors or ())


def _multiplied(
    f: Frame, o: Ops, d: DType, odd: OddDivisor, numerators: list[str], divisors: list[str], inverses: list[str]
) -> list[str]:
    text, kind, one = f.text, o.type(d), o.constant(1, d)
    before, divide, join = text.label, text.fresh_label("divide"), text.fresh_label("multiply")
    weights = text.module.node('!{!"branch_weights", i32 1, i32 1048575}')
    text.branch(odd.some, divide, join, f", !prof {weights}")
    text.begin(divide)
    quotients = [o.op(f"fdiv {kind} {a}, {b}") for a, b in zip(numerators, divisors, strict=True)]
    ones = [one] * len(quotients)
    if odd.lanes:
        quotients = [o.select(m, kind, q, a) for m, q, a in zip(odd.lanes, quotients, numerators, strict=True)]
        ones = [o.select(m, kind, one, c) for m, c in zip(odd.lanes, inverses, strict=True)]
    text.jump(join)
    text.begin(join)

    def either(usual: list[str], seldom: list[str]) -> list[str]:
        pairs = zip(usual, seldom, strict=True)
        return [text.op(f"phi {kind} [ {a}, %{before} ], [ {b}, %{divide} ]") for a, b in pairs]

    factors = zip(either(numerators, quotients), either(inverses, ones), strict=True)
    return [o.op(f"fmul {o.flags}{kind} {a}, {b}") for a, b in factors]
