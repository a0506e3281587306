"""The transpose of a program that is linear in some of its parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.custom import residuals_of, rule_of
from qdtrace.autodiff.reverse import reverse
from qdtrace.ir.custom import without_rules
from qdtrace.ir.program import Program, Stage, Var, literal
from qdtrace.ir.walk import walk_program
from qdtrace.passes.dead_code import DeadCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.policy import Stacks
    from qdtrace.ir.program import Eqn


def transpose(program: Program, linear: Sequence[Var], stacks: Stacks) -> Program:
    """The program of adjoints of its `linear` parameters, for adjoints of its results.

    Parameters are those of the program, with adjoints of the results in the place of the linear ones. These are taken
    as zero: no coefficient of a linear operation depends on them.
    """
    made = reverse(program, linear, program.results, stacks=stacks, is_linear=True)
    own = len(program.params)
    first = program.params.index(linear[0])
    before, behind = program.params[:first], program.params[first + len(linear) :]
    return replace(
        without_rules(made),
        name=f"{program.name}_r",
        params=(*before, *made.params[own:], *behind),
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
    return eqn.primitive.name == "custom" and residuals_of(eqn) is not None
