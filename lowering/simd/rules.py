"""The table of emission functions in lanes, by primitive. Uniform equations are emitted by `llvm.rules`."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lowering.llvm import rules
from lowering.llvm.borders import after, before
from lowering.llvm.parts import emit_in_parts
from lowering.llvm.quotients import note_divisor
from lowering.llvm.types import REGISTER
from lowering.plan.update_groups import group_updates
from lowering.simd import checks, control, memory, private
from lowering.simd.accumulation.atomic import atomic
from lowering.simd.accumulation.rules import GROUPED, accum, update_group
from lowering.simd.clipped import emit_clipped
from lowering.simd.inner.emit import emit_for
from lowering.simd.interleave import plan_stores, settle_stores
from lowering.simd.pieces import count_pieces
from lowering.simd.selects import emit_select
from qdtrace.analysis.index.affine import Quotient
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowering.llvm.rules import Rule
    from lowering.simd.descriptions import Row
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn


def _select(f: LaneFrame, eqn: Eqn) -> None:
    condition, a, b = eqn.invars
    out = eqn.outvars[0]
    if f.is_uniform(out) or not (isinstance(condition, Literal) or f.is_uniform(condition)):
        rules.elementwise(f, eqn)
        return
    kind, bit = f.vector.type(out.dtype), f.scalar_of(condition)
    f.env[out] = f.each(
        out.dtype, lambda v: f.text.op(f"select i1 {bit}, {kind} {f.vector_of(a, v)}, {kind} {f.vector_of(b, v)}")
    )


def _select_alone(f: LaneFrame, eqn: Eqn) -> None:
    if not emit_select(f, eqn):
        rules.elementwise(f, eqn)


def _min_alone(f: LaneFrame, eqn: Eqn) -> None:
    if not emit_clipped(f, eqn):
        rules.RULES["min"](f, eqn)


def _lane_max(f: LaneFrame, eqn: Eqn) -> None:
    operand, d = eqn.invars[0], eqn.invars[0].dtype
    if isinstance(operand, Literal) or f.is_uniform(operand):
        f.env[eqn.outvars[0]] = f.value(operand)
        return
    lowest = -(1 << (d.bits - 1)) if d.is_signed else 0
    each = f.blended(f.mask, d, f.vectors_of(operand), [f.vector.number(REGISTER[d], lowest)] * f.vectors)
    f.bind(eqn.outvars[0], [f.most(d, each)])


def _lane_count(f: LaneFrame, eqn: Eqn) -> None:
    masks = f.narrowed(f.mask, f.vectors_of(eqn.invars[0]))
    total = reduce(lambda a, b: f.text.op(f"add i64 {a}, {b}"), map(f.active, masks))
    f.remember(("active", masks), total)
    f.bind(eqn.outvars[0], [f.text.op(f"trunc i64 {total} to i32")])


def _lane_rank(f: LaneFrame, eqn: Eqn) -> None:
    f.bind(eqn.outvars[0], f.ranks(f.narrowed(f.mask, f.vectors_of(eqn.invars[0]))))


def _div(f: LaneFrame, eqn: Eqn) -> None:
    if f.row is None or not _of_row(f, eqn, f.row):
        rules.elementwise(f, eqn)
    note_divisor(f, eqn.outvars[0])


def _rem(f: LaneFrame, eqn: Eqn) -> None:
    """Emits a remainder, or a shift or mask that a quotient or remainder by a power of two has become."""
    if f.row is None or not _of_row(f, eqn, f.row):
        rules.elementwise(f, eqn)


def _of_row(f: LaneFrame, eqn: Eqn, row: Row) -> bool:
    """Emits the quotient or remainder of the task's index by a row's length without a division, if it is one."""
    out, form = eqn.outvars[0], f.facts.forms.of(eqn.outvars[0])
    kind = REGISTER[out.dtype]
    if out in row.uniform and not form.constant:
        (quotient,) = form.terms
        assert isinstance(quotient, Quotient)
        rows = quotient.divisor // row.length
        number = f.row_number if rows == 1 else f.text.op(f"udiv i64 {f.row_number}, {rows}")
        f.bind(out, [f.scalar.cast("trunc", "i64", number, kind)])
        return True
    if form.terms != {f.facts.task.index: 1, row.quotient: -row.length} or not _is_index(f, eqn.invars[0], row):
        return False
    type_ = f.lanes.of(kind)
    first = f.text.op(f"mul i64 {f.row_number}, {row.length}")
    spread = f.spread(kind, f.scalar.cast("trunc", "i64", first, kind))
    f.env[out] = f.each(out.dtype, lambda v: f.vector.binary("sub", type_, f.vector_of(eqn.invars[0], v), spread))
    return True


def _is_index(f: LaneFrame, atom: Atom, row: Row) -> bool:
    form = f.facts.forms.of(atom)
    return form.terms == {f.facts.task.index: 1} and form.constant == row.offset


_SHARED: dict[str, Rule] = {"accum": accum, "atomic": atomic, "for": emit_for}
SCALAR_RULES: Mapping[str, Rule] = {**rules.RULES, **_SHARED, "select": _select_alone, "min": _min_alone}
LANE_RULES: Mapping[str, Rule] = {
    **SCALAR_RULES, "select": _select, "min": rules.RULES["min"],
    "div": _div, "rem": _rem, "shift_right_logical": _rem, "and": _rem,
    "load": memory.load, "store": memory.store, "cell": private.allocate, "bound": checks.bound, "check": checks.check,
    "lane_max": _lane_max, "lane_count": _lane_count, "lane_rank": _lane_rank,
    "if": control.emit_if, "for": control.emit_for, "while": control.emit_while,
}  # fmt: skip


def emit_eqns(f: LaneFrame, eqns: Sequence[Eqn]) -> None:
    """Emits equations in order, and all stores of theirs that wait in groups."""
    if f.split:
        *steps, _ = plan_stores(f, eqns)
        emit_in_parts(f, eqns, [not step.waits for step in steps], _emit_whole)
    else:
        _emit_whole(f, eqns)


def _emit_whole(f: LaneFrame, eqns: Sequence[Eqn]) -> None:
    table = SCALAR_RULES if f.is_scalar else LANE_RULES
    *steps, end = plan_stores(f, eqns)
    *updates, last = group_updates(f.accumulators.plan.sums, eqns, GROUPED)
    around, f.pieces = f.pieces, count_pieces(f, eqns)
    for eqn, step, groups in zip(eqns, steps, updates, strict=True):
        f.step = step
        before(f, eqn)
        if eqn.primitive.structured:
            settle_stores(f)
        for group in groups:
            update_group(f, group)
        table[eqn.primitive.name](f, eqn)
        after(f, eqn)
    f.step = end
    settle_stores(f)
    for group in last:
        update_group(f, group)
    f.pieces = around
