"""Code of scans in lanes: the carry of each lane, from the values of the lanes before it (`scans`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.combining import combine
from lowering.llvm.types import REGISTER, REGISTER_BITS
from lowering.simd.accumulation.lanes import active_or_identity
from qdtrace.ir.combining import identity

if TYPE_CHECKING:
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn, Var


def emit_scan(f: LaneFrame, eqn: Eqn, carry: Var, value: Atom, total: str, *, descends: bool) -> str:
    """Binds a carry and its next value in all lanes; returns the carry behind them, given the one in front, `total`.

    The last lane is the first trip if the loop `descends`. Extremes and products mostly leave the carry as it is
    (a largest number so far, a mask): then no lane waits for another one.
    """
    op = eqn.primitive.name
    values = active_or_identity(f, f.mask, op, carry.dtype, value)
    if op == "add":
        before, after, last = _scanned(f, op, carry, values, total, descends)
    else:
        before, after, last = _mostly_unchanged(f, op, carry, values, total, descends)
    f.bind(carry, before)
    f.bind(eqn.outvar, after)
    return last


def _mostly_unchanged(
    f: LaneFrame, op: str, carry: Var, values: list[str], total: str, descends: bool
) -> tuple[list[str], list[str], str]:
    """Emits a scan behind a test whether any value changes the carry."""
    text, o, d = f.text, f.vector, carry.dtype
    kind, integer = o.type(d), f"i{REGISTER_BITS[d]}"
    first = f.spread(REGISTER[d], total)
    bits = o.cast("bitcast", REGISTER[d], first, integer)
    new = [o.cast("bitcast", REGISTER[d], combine(o, op, d, first, v), integer) for v in values]
    changes = f.any([o.compare("icmp ne", o.vector(integer), bits, n) for n in new])
    scan, join, start = text.fresh_label("scan"), text.fresh_label("scanned"), text.label
    text.branch(changes, scan, join)
    text.begin(scan)
    with f.region():
        before, after, last = _scanned(f, op, carry, values, total, descends)
    end = text.label
    text.jump(join)
    text.begin(join)

    def merged(type_: str, same: str, scanned: str) -> str:
        return text.op(f"phi {type_} [ {same}, %{start} ], [ {scanned}, %{end} ]")

    befores = [merged(kind, first, x) for x in before]
    return befores, [merged(kind, first, x) for x in after], merged(REGISTER[d], total, last)


def _scanned(
    f: LaneFrame, op: str, carry: Var, values: list[str], total: str, descends: bool
) -> tuple[list[str], list[str], str]:
    """Emits a scan; returns the carries in front of and behind each lane, and behind all of them."""
    o, d, lanes = f.vector, carry.dtype, range(f.width)
    kind, neutral = o.type(d), o.constant(identity(op, d).value, d)
    before, after = [""] * f.vectors, [""] * f.vectors

    def shifted(vector: str, filled: str, by: int) -> str:
        """Returns each lane's value `by` lanes before it, from `filled` where there is none."""
        places = [lane + by if descends else lane - by for lane in lanes]
        order = ", ".join(f"i32 {p if 0 <= p < f.width else f.width + n}" for n, p in enumerate(places))
        return f.text.op(f"shufflevector {kind} {vector}, {kind} {filled}, {f.lanes.of('i32')} <{order}>")

    for v in reversed(range(f.vectors)) if descends else range(f.vectors):
        sums, by = values[v], 1
        while by < f.width:
            sums = combine(o, op, d, shifted(sums, neutral, by), sums)
            by *= 2
        first = f.spread(REGISTER[d], total)
        after[v] = combine(o, op, d, first, sums)
        before[v] = shifted(after[v], first, 1)
        total = f.text.op(f"extractelement {kind} {after[v]}, i64 {0 if descends else f.width - 1}")
    return before, after, total
