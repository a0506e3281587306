"""`quotient` in lanes, some of which may have an odd divisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import quotients
from lowering.llvm.descriptions import OddDivisor
from lowering.llvm.quotients import is_odd

if TYPE_CHECKING:
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn, Var


def look_at(f: LaneFrame, divisor: Atom) -> OddDivisor:
    """Tests the divisors of active lanes for oddness."""
    if f.value(divisor).is_uniform:
        return quotients.look_at(f, divisor)
    lanes = f.narrowed(f.mask, [is_odd(f.vector, divisor.dtype, x) for x in f.vectors_of(divisor)])
    return OddDivisor(lanes, f.any(lanes))


def emit_quotient(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `quotient x r c`."""
    quotients.emit_quotient(f, eqn, look_at)


def note_divisor(f: LaneFrame, inverse: Var) -> None:
    """Tests a divisor where its reciprocal is defined."""
    quotients.note_divisor(f, inverse, look_at)
