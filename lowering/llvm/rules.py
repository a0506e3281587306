"""The table of emission functions for one lane, by primitive; shells add `accum` and `atomic`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowering.llvm import arithmetic, checks, control, elementary, memory, private
from lowering.llvm.parts import emit_in_parts
from lowering.llvm.quotients import emit_quotient, note_divisor
from qdtrace.ir.primitives import FUNCTIONS, MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lowering.llvm.frame import EmitEqns, Frame
    from qdtrace.ir.program import Eqn

    Rule = Callable[[Any, Eqn], None]


def elementwise(f: Frame, eqn: Eqn) -> None:
    """Emits a primitive register by register, by a rule of `arithmetic` or the maths library."""
    name, atoms, out = eqn.primitive.name, eqn.invars, eqn.outvars[0]
    d, o = atoms[0].dtype, f.ops(out)

    if name in FUNCTIONS:
        f.bind(out, elementary.call(o, name, d, f.rows(out, atoms)))
    else:
        rule = arithmetic.RULES[name]
        f.bind(out, [rule(o, d, values, eqn.params, atoms) for values in f.rows(out, atoms)])


def _extreme(f: Frame, eqn: Eqn) -> None:
    atoms, out, largest = eqn.invars, eqn.outvars[0], eqn.primitive is MAX
    o, d, signed = f.ops(out), out.dtype, out not in f.facts.unsigned_zeros
    rows = f.rows(out, atoms)
    f.bind(out, [arithmetic.extreme(o, d, values, atoms, largest=largest, signed=signed) for values in rows])


def _div(f: Frame, eqn: Eqn) -> None:
    elementwise(f, eqn)
    note_divisor(f, eqn.outvars[0])


def _same(f: Frame, eqn: Eqn) -> None:
    f.env[eqn.outvars[0]] = f.value(eqn.invars[0])


def _lane_count(f: Frame, eqn: Eqn) -> None:
    f.bind(eqn.outvars[0], [f.scalar.cast("zext", "i1", f.scalar_of(eqn.invars[0]), "i32")])


def _lane_rank(f: Frame, eqn: Eqn) -> None:
    f.bind(eqn.outvars[0], ["0"])


RULES: Mapping[str, Rule] = dict.fromkeys((*arithmetic.RULES, *FUNCTIONS), elementwise) | {
    "min": _extreme, "max": _extreme, "div": _div, "quotient": emit_quotient, "load": memory.load,
    "store": memory.store, "cell": private.allocate,
    "at_most": _same, "lane_max": _same, "lane_count": _lane_count, "lane_rank": _lane_rank,
    "bound": checks.bound, "check": checks.check,
    "if": control.emit_if, "for": control.emit_for, "while": control.emit_while,
}  # fmt: skip


def emitter(whole: Callable[[Any, Sequence[Eqn]], None]) -> EmitEqns:
    """Returns a function that emits equations as `whole` does, in parts where there are many."""

    def emit(f: Frame, eqns: Sequence[Eqn]) -> None:
        if f.split:
            emit_in_parts(f, eqns, [True] * len(eqns), whole)
        else:
            whole(f, eqns)

    return emit
