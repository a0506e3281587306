"""Strength reduction of index arithmetic: divisions by powers of two become shifts and masks.

Before:  a: i32 = mul i k                After:  a: i32 = mul i k
         q: i32 = div a 8:i32                    q: i32 = shift_right_logical a 3:i32
         r: i32 = rem a 8:i32                    r: i32 = and a 7:i32

A wrapped neighbour (`jnp`'s `%`) by a power of two is a mask, and a remainder of what is below its divisor nothing:

Before:  a: i32 = add i -1:i32           After:  a: i32 = add i -1:i32
         m: i32 = rem a 64:i32                   r: i32 = and a 63:i32
         d: bool = ne m 0:i32
         z: bool = lt m 0:i32
         c: bool = and z d
         s: i32 = add m 64:i32
         r: i32 = select c s m

The next neighbour by another number is what is left below it, or less by that number:

Before:  a: i32 = add k 1:i32            After:  a: i32 = add k 1:i32
         r: i32 = rem a 70:i32                   m: i32 = add a -70:i32
                                                 c: bool = ge a 70:i32
                                                 r: i32 = select c m a

Quotients and other remainders are of values that are surely not negative (`analysis/index`), which LLVM does not know
of indices: it emits four operations for each. Measured on the CPU with AVX-512, 256 of them a lane: remainders 0.189 to
0.089 ms, quotient and remainder together 0.251 to 0.158.

Comes last: `div` and `rem` are what analyses of indices read best. Left alone: a division of the task's or a loop's
own index (plus a constant), which is how a flat index is split into axes, as emitters keep their steps to one row
instead; 64 bits, whose affine forms have no bounds.

Tried, and left as they are, because the times are equal: quotient and remainder by one other number as a quotient, a
product and a difference (0.44 and 0.46 by 7, 0.97 and 0.91 by a value of the program: LLVM shares the quotient);
products of a varying loop index and a constant as a sum that the loop carries (0.239 and 0.244); quotient and remainder
of a loop index as counters or two nested loops (0.092, 0.096 and 0.091 by 16; 0.095 and 0.096 by 17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.ir.primitives import DIV, REM
from qdtrace.ir.program import Literal
from qdtrace.passes.rewrite import RewriteOptions, RewritePass
from qdtrace.rules.match import integer, power_of_two, same, wrapped
from qdtrace.rules.table import RuleSet, RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Program, Task
    from qdtrace.passes.rewrite import Rewriter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()


@TABLE.rule("div", on="signed")
def quotient_by_shift(w: Rewriter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x / 2**k -> x >> k, where x is not negative"""
    k = power_of_two(ops[1])
    if k is None or not _is_reducible(w, ops[0]):
        return None
    return w.op("shift_right_logical", ops[0], wrapped(k, ops[0].dtype))


@TABLE.rule("rem", on="signed")
def remainder_of_small(w: Rewriter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x rem n -> x, where |x| < n"""
    return ops[0] if _is_below(w, ops[0], ops[1]) else None


@TABLE.rule("select", on="signed")
def wrapped_by_mask(w: Rewriter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(r < 0, r + 2**k, r) -> r & (2**k - 1), where |r| < 2**k; of r = x rem 2**k the same bits of x"""
    moved, sign = w.defined_by(ops[1], "add"), w.defined_by(ops[0], "lt")
    if moved is None or sign is None or not same(moved[0], ops[2]) or not same(sign[0], ops[2]):
        return None
    if power_of_two(moved[1]) is None or integer(sign[1]) != 0 or not _is_below(w, ops[2], moved[1]):
        return None
    divided = w.defined_by(ops[2], "rem")
    source = divided[0] if divided is not None and same(divided[1], moved[1]) else ops[2]
    return w.op("and", source, wrapped(int(moved[1].value) - 1, source.dtype))  # type: ignore[union-attr]


@TABLE.rule("and", on="bool")
def negative_and_not_zero(w: Rewriter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x < 0) & (x != 0) -> x < 0"""
    sign, other = w.defined_by(ops[0], "lt"), w.defined_by(ops[1], "ne")
    if sign is None or other is None or not same(sign[0], other[0]) or not same(sign[1], other[1]):
        return None
    return ops[0]


@TABLE.rule("rem", on="signed")
def remainder_by_mask(w: Rewriter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x rem 2**k -> x & (2**k - 1), where x is not negative"""
    k = power_of_two(ops[1])
    if k is None or not _is_reducible(w, ops[0]):
        return None
    return w.op("and", ops[0], wrapped((1 << k) - 1, ops[0].dtype))


@TABLE.rule("rem", on="signed")
def remainder_by_comparison(w: Rewriter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x rem n -> select(x >= n, x - n, x), where 0 <= x < 2 n and n is no power of two"""
    if not isinstance(ops[1], Literal) or power_of_two(ops[1]) is not None or not _is_reducible(w, ops[0]):
        return None
    n = int(ops[1].value)
    if not 0 < n <= w.ranges.of(ops[0])[1] < 2 * n:
        return None
    moved = w.op("add", ops[0], wrapped(-n, ops[0].dtype))
    return w.op("select", w.op("ge", ops[0], ops[1]), moved, ops[0])


def _is_below(w: Rewriter, atom: Atom, limit: Atom) -> bool:
    """Returns whether the magnitude of a value is always below a constant."""
    if atom.dtype.bits > 32 or not isinstance(limit, Literal):
        return False
    low, high = w.ranges.of(atom)
    return -int(limit.value) < low and high < int(limit.value)


def _is_reducible(w: Rewriter, atom: Atom) -> bool:
    """Returns whether a dividend is never negative, of at most 32 bits, and no index, nor an index plus a constant."""
    if atom.dtype.bits > 32 or w.ranges.of(atom)[0] < 0:
        return False
    offset = w.defined_by(atom, "add")
    if offset is not None and isinstance(offset[1], Literal):
        atom = offset[0]
    return w.definition(atom) is not None


_RULES = RuleSet.of(TABLE.rules, fast_math=False)


@frozen
class StrengthReduction(RewritePass):
    """Replaces divisions by powers of two by cheaper operations."""

    name: ClassVar[str] = "strength_reduction"

    def options(self) -> RewriteOptions:
        """Returns the rules of this file."""
        return RewriteOptions(_RULES)

    def on_task(self, task: Task, program: Program) -> Task:
        """Returns the rewritten task; a task without integer divisions, as most are, is not visited."""
        divides = any(e.primitive in (DIV, REM) and e.outvar.dtype.is_integer for e in task.all_eqns)
        return super().on_task(task, program) if divides else task
