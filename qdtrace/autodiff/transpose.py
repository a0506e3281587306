"""The transpose of a program that is linear in some of its parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.custom import residuals_of as residuals_of_rule
from qdtrace.autodiff.custom import rule_of
from qdtrace.autodiff.residuals import Given, keeping, loading_given, moments_found
from qdtrace.autodiff.reverse import reverse
from qdtrace.autodiff.zeros import changing_with
from qdtrace.ir.carries import control_of
from qdtrace.ir.custom import without_rules
from qdtrace.ir.program import Program, Stage, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import task_refs, walk_program
from qdtrace.passes.dead_code import DeadCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.policy import Stacks
    from qdtrace.autodiff.residuals import Moment
    from qdtrace.ir.program import Eqn


def transpose(program: Program, linear: Sequence[Var], stacks: Stacks, residuals: Sequence[Moment] = ()) -> Program:
    """The program of adjoints of its `linear` parameters, for adjoints of its results.

    Parameters are those of the program, with residuals and adjoints of the results in the place of the linear ones.
    These are taken as zero: no coefficient of a linear operation depends on them.
    """
    given = Given(program, residuals)
    made = reverse(_without_checks(program, linear), linear, program.results, given, stacks, is_linear=True)
    own = len(program.params)
    first = program.params.index(linear[0])
    before, behind = program.params[:first], program.params[first + len(linear) :]
    return replace(
        without_rules(made),
        params=(*before, *made.params[own:], *behind),
        buffers=(*made.buffers, *linear),
        initial={**made.initial, **{v: literal(0, v.dtype) for v in linear}},
        stage=Stage.TRACED,
    )


class _WithoutChecks(Rebuilder):
    def __init__(self, asked: frozenset[Var]) -> None:
        super().__init__()
        self._asked = asked
        self._inside = 0

    def visit(self, eqn: Eqn) -> None:
        """Leaves checks out that ask for something in the set, or are where something in it decides."""
        if eqn.primitive.name == "check" and (self._inside or not self._asked.isdisjoint(eqn.invars)):
            return
        is_decided = bool(eqn.blocks) and not self._asked.isdisjoint(control_of(eqn))
        self._inside += is_decided
        super().visit(eqn)
        self._inside -= is_decided


def _without_checks(program: Program, linear: Sequence[Var]) -> Program:
    """The program without checks of tangents, which say nothing where these are zero."""
    if not any(e.primitive.name == "check" for e in walk_program(program)):
        return program
    asked = changing_with(program, linear)
    return program.map_tasks(lambda task: _WithoutChecks(asked).rebuild_task(task))


def residuals_of(program: Program, linear: Sequence[Var]) -> tuple[Moment, ...]:
    """Returns what a program may hand over to its transpose. Raises GradientError where it has none."""
    given = Given(program, moments_found(program, active_variables(program, linear, program.results)))
    if not given.params:
        return ()
    made = DeadCode()(without_rules(reverse(program, linear, program.results, given, is_linear=True)))
    used = {v for task in made.tasks for v in task_refs(task)}
    return tuple(moment for moment, v in given.params.items() if v in used)


def tangents_given(program: Program, linear: Sequence[Var], residuals: Sequence[Moment]) -> Program:
    """The program, which finds residuals in parameters in front of the `linear` ones."""
    given = Given(program, residuals)
    made = loading_given(program, program, given, active_variables(program, linear, program.results))
    first = program.params.index(linear[0])
    return replace(made, params=(*program.params[:first], *given.params.values(), *program.params[first:]))


def primal_keeping(program: Program, linear: Sequence[Var], residuals: Sequence[Moment]) -> Program:
    """The program without its `linear` parameters, with residuals as further results."""
    made = without_rules(keeping(program, residuals))
    return replace(
        made,
        name=f"{program.name}_kept",
        params=tuple(v for v in program.params if v not in linear),
        buffers=(*made.buffers, *linear),
        initial={**made.initial, **{v: literal(0, v.dtype) for v in linear}},
        stage=Stage.TRACED,
    )


def refuse_transposes(program: Program) -> None:
    """Refuses forward mode where a result needs a linear function of which only the transpose is known.

    Raises GradientError with the name of the function.
    """
    if not any(_is_transposed(e) for e in walk_program(program)):
        return
    for eqn in walk_program(DeadCode()(program)):
        if _is_transposed(eqn):
            rule_of(eqn).tangents()


def _is_transposed(eqn: Eqn) -> bool:
    return eqn.primitive.name == "custom" and residuals_of_rule(eqn) is not None
