"""The transpose of a program that is linear in some of its parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.custom import residuals_of as residuals_of_rule
from qdtrace.autodiff.custom import rule_of
from qdtrace.autodiff.partials import not_linear
from qdtrace.autodiff.residuals import Given, keeping, loading_given
from qdtrace.autodiff.reverse import reverse
from qdtrace.autodiff.zeros import changing_with, zeros_of
from qdtrace.ir.custom import without_rules
from qdtrace.ir.memory import written
from qdtrace.ir.primitives import BITCAST, CHECK, CUSTOM, WHILE
from qdtrace.ir.program import Program, Stage, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_inside
from qdtrace.passes.dead_code import DeadCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.loops.policy import Stacks
    from qdtrace.autodiff.residuals import Moment
    from qdtrace.ir.program import Atom, Eqn


def transpose(
    program: Program,
    linear: Sequence[Var],
    stacks: Stacks,
    residuals: Sequence[Moment] = (),
    wanted: Sequence[bool] | None = None,
) -> Program:
    """Returns the program that computes adjoints of the `linear` parameters, all or the `wanted` ones, from adjoints of
    the results.

    Its parameters are those of the program, with residuals and adjoints of the results in place of the linear ones.
    The linear ones are taken as zero: no coefficient of a linear operation depends on them.
    """
    asked = changing_with(program, linear)
    _refuse_decisions(program, linear, asked)
    _refuse_steps(program, linear, asked)
    given = Given(program, residuals)
    made = reverse(_without_checks(program, asked), linear, program.results, given, stacks, wanted)
    refuse_transposes(made)  # `made` may need the value of a function of which only the transpose is known
    own = len(program.params)
    first = program.params.index(linear[0])
    before, behind = program.params[:first], program.params[first + len(linear) :]
    made = replace(
        without_rules(made),
        params=(*before, *made.params[own:], *behind),
        buffers=(*made.buffers, *linear),
        initial={**made.initial, **{v: literal(0, v.dtype) for v in linear}},
        stage=Stage.TRACED,
    )
    return DeadCode()(made) if residuals else made


class _WithoutChecks(Rebuilder):
    def __init__(self, asked: frozenset[Var]) -> None:
        super().__init__()
        self._asked = asked
        self._inside = 0

    def visit(self, eqn: Eqn) -> None:
        """Omits checks of variables in `asked`, and checks in branches and loops that such variables control."""
        if eqn.primitive is CHECK and (self._inside or not self._asked.isdisjoint(eqn.invars)):
            return
        is_decided = bool(eqn.blocks) and not self._asked.isdisjoint(eqn.control)
        self._inside += is_decided
        super().visit(eqn)
        self._inside -= is_decided


def _refuse_decisions(program: Program, linear: Sequence[Var], asked: frozenset[Var]) -> None:
    """Raises GradientError for branches and loops that tangents control, and for bit casts of tangents.

    Neither is linear.
    """
    eqns = list(program.all_eqns)
    deciding = [e for e in eqns if e.blocks and not asked.isdisjoint(_deciding(e))]
    casts = [e for e in eqns if e.primitive is BITCAST and e.outvar in asked]
    made = {e.outvar: e for e in casts if e.outvar.dtype.is_float}
    if not deciding and not made:
        return
    active = active_variables(program, linear, program.results)
    for var in active_variables(program, made, program.results) & made.keys():
        raise not_linear(made[var], "`bitcast` of one")
    for eqn in deciding:
        if not active.isdisjoint((*eqn.outvars, *written(walk_inside(eqn)))):
            raise not_linear(eqn, f"`{eqn.primitive.name}` that one decides")


def _refuse_steps(program: Program, linear: Sequence[Var], asked: frozenset[Var]) -> None:
    """Raises GradientError where a result depends on a comparison, a sign or an integer part of a tangent.

    Such an operation has no slope, so it would count as that of tangents of zero.
    """
    eqns = [e for e in program.all_eqns if not e.blocks and e.outvars and not asked.isdisjoint(e.invars)]
    steps = [e for e in eqns if e.primitive.locally_constant or not e.outvar.dtype.is_float]
    if not steps:
        return
    sure = zeros_of(program, linear, active_variables(program, linear))
    for eqn in steps:
        if not sure.isdisjoint(eqn.invars) and not changing_with(program, eqn.outvars).isdisjoint(program.results):
            raise not_linear(eqn, f"`{eqn.primitive.name}` of one")


def _deciding(eqn: Eqn) -> Sequence[Atom]:
    return (*eqn.control, *(eqn.blocks[0].results if eqn.primitive is WHILE else ()))


def _without_checks(program: Program, asked: frozenset[Var]) -> Program:
    """Returns the program without checks of tangents, which mean nothing as these are taken as zero."""
    if not any(e.primitive is CHECK for e in program.all_eqns):
        return program
    return program.map_tasks(lambda task: _WithoutChecks(asked).rebuild_task(task))


def tangents_given(program: Program, linear: Sequence[Var], residuals: Sequence[Moment]) -> Program:
    """Returns the program with residuals as parameters before the `linear` ones."""
    given = Given(program, residuals)
    made = loading_given(program, program, given, active_variables(program, linear, program.results))
    first = program.params.index(linear[0])
    return replace(made, params=(*program.params[:first], *given.params.values(), *program.params[first:]))


def primal_keeping(program: Program, linear: Sequence[Var], residuals: Sequence[Moment]) -> Program:
    """Returns the program without its `linear` parameters, with residuals as additional results."""
    made = without_tangents(without_rules(keeping(program, residuals)), linear)
    # Without tangents more tasks may be worth joining.
    return replace(made, name=f"{program.name}_kept", stage=min(program.stage, Stage.CANONICAL))


def without_tangents(program: Program, linear: Sequence[Var]) -> Program:
    """Returns the program with zeros in the place of the `linear` parameters."""
    made = replace(
        program,
        params=tuple(v for v in program.params if v not in linear),
        buffers=(*program.buffers, *linear),
        initial={**program.initial, **{v: literal(0, v.dtype) for v in linear}},
    )
    return DeadCode()(made)


def refuse_transposes(program: Program) -> None:
    """Raises GradientError if a result needs the value of a function of which only the transpose is known.

    The error has the name of the function.
    """
    if not any(_is_transposed(e) for e in program.all_eqns):
        return
    for eqn in DeadCode()(program).all_eqns:
        if _is_transposed(eqn):
            raise rule_of(eqn).refused()


def _is_transposed(eqn: Eqn) -> bool:
    return eqn.primitive is CUSTOM and residuals_of_rule(eqn) is not None
