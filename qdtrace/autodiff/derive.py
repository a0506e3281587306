"""Programs of derivatives of any order: forward mode upon forward or reverse mode."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.accumulations import with_sums_only
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.forward import forward
from qdtrace.autodiff.residuals import Given, keeping, loading_given, moments_found
from qdtrace.autodiff.reverse import reverse
from qdtrace.autodiff.volatile import old_value_refused
from qdtrace.ir.custom import without_rules
from qdtrace.ir.program import Program, Stage, Var, literal
from qdtrace.ir.walk import task_refs, walk_program, walk_task
from qdtrace.passes.dead_code import DeadCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qdtrace.autodiff.policy import Stacks
    from qdtrace.autodiff.residuals import Moment

    Mask = Sequence[bool]


def derive(
    program: Program,
    directions: Sequence[Mask],
    out: Mask,
    wrt: Mask | None,
    residuals: Sequence[Moment] = (),
    stacks: Stacks | None = None,
) -> Program:
    """The derivative of a program along directions, of its results `out` or of the adjoints of its parameters `wrt`.

    Masks choose parameters, and results in `out`. Parameters are those of the program, the residuals, adjoints of
    results in `out` when `wrt` is given, then parts of each direction. Residuals are of use in first derivatives alone.
    What is kept of loops is told to `stacks`, within its budget.
    """
    masks = [*directions, *([] if wrt is None else [wrt])]
    assert not residuals or len(masks) == 1
    program = _with_sums_only(program, masks)
    params, chosen = program.params, _chosen(program.results, out)
    given = Given(program, residuals)
    if wrt is None:
        made = replace(program, results=tuple(chosen))
    else:
        made = reverse(program, _chosen(params, wrt), chosen, given, stacks)
    for mask in directions:
        made = _along(made, _chosen(params, mask))
    if wrt is None and residuals:
        made = loading_given(program, made, given, active_variables(program, _chosen(params, directions[0]), chosen))
    made = _finished(made, f"{'d' if wrt is None else 'r'}{len(directions)}")
    _check_atomics(made)
    return made


def residuals_of(program: Program, wrt: Mask, out: Mask) -> tuple[Moment, ...]:
    """What the program may hand over to its reverse for results `out`. Raises GradientError where it has none."""
    if _with_sums_only(program, [wrt]) is not program:
        return ()  # moments count the tasks of the program itself
    inputs, chosen = _chosen(program.params, wrt), _chosen(program.results, out)
    given = Given(program, moments_found(program, active_variables(program, inputs, chosen)))
    if not given.params:
        return ()
    made = DeadCode()(without_rules(reverse(program, inputs, chosen, given)))
    used = {v for task in made.tasks for v in task_refs(task)}
    return tuple(moment for moment, v in given.params.items() if v in used)


def with_residuals(program: Program, residuals: Sequence[Moment]) -> Program:
    """The program with the residuals as further results."""
    return _finished(keeping(program, residuals), "kept")


def _chosen(variables: Iterable[Var], mask: Mask) -> list[Var]:
    return [v for v, wanted in zip(variables, mask, strict=True) if wanted]


def _with_sums_only(program: Program, masks: Sequence[Mask]) -> Program:
    inputs = [v for k, v in enumerate(program.params) if any(mask[k] for mask in masks)]
    return with_sums_only(program, active_variables(program, inputs, program.results), len(masks))


def _check_atomics(program: Program) -> None:
    """Refuses a derivative that runs atomics again: threads would take other old values than in the primal."""
    if not any(e.primitive.name == "atomic" for e in walk_program(program)):
        return
    for task in DeadCode()(program).tasks:
        for eqn in walk_task(task) if task.index is not None else ():
            if eqn.primitive.name == "atomic":
                raise old_value_refused(eqn)


def _finished(program: Program, suffix: str) -> Program:
    made = without_rules(program)
    return replace(made, name=f"{program.name}_{suffix}", stage=Stage.TRACED)


def _along(program: Program, inputs: Sequence[Var]) -> Program:
    """Forward mode, with zeros for results that do not depend on the inputs."""
    made, tangents = forward(program, inputs)
    results: list[Var] = []
    zeros: list[Var] = []
    for ref in program.results:
        if ref in tangents:
            results.append(tangents[ref])
        else:
            zeros.append(Var(ref.type, f"{ref.hint}_t"))
            results.append(zeros[-1])
    initial = {**made.initial, **{v: literal(0, v.dtype) for v in zeros}}
    return replace(made, buffers=(*made.buffers, *zeros), results=tuple(results), initial=initial)
