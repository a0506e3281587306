"""Derives programs: JAX's tangents are split, transposed and batched. Loaded when a derivative is not on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from qdtrace.autodiff import transpose
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.atomics import check_atomics
from qdtrace.autodiff.extremes import has_extremes
from qdtrace.autodiff.linearity import (
    dependent_variables,
    not_linear_in,
    reads_none,
    refuse_moving,
    refuse_nonlinear,
    refuse_rules_along,
)
from qdtrace.autodiff.loops.known import with_known_trips
from qdtrace.autodiff.residual_choice import is_made_again, moments_read
from qdtrace.autodiff.residuals import references
from qdtrace.autodiff.split import with_split_tasks
from qdtrace.batching.batch import batch
from qdtrace.compose.staged_program import chosen
from qdtrace.counters import count
from qdtrace.errors import GradientError
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax.typing import ArrayLike

    from qdtrace.analysis.machine import Machine
    from qdtrace.autodiff.loops.policy import Stacks
    from qdtrace.autodiff.residuals import Moment
    from qdtrace.compose.derivative_spec import Derivative
    from qdtrace.compose.linearised import Linearised
    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.ir.program import Program

    Mask = tuple[bool, ...]

__all__ = [
    "active_variables",
    "dependent_variables",
    "derived",
    "keeping",
    "not_linear_in",
    "refuse_nonlinear",
    "residuals",
]

class Tangents(Protocol):
    """A program of tangents: a `Linearised`, or one that was given."""

    @property
    def base(self) -> StagedProgram:
        """The program that is differentiated."""
        ...

    @property
    def staged(self) -> StagedProgram:
        """The program of tangents."""
        ...

    @property
    def constants(self) -> tuple[ArrayLike, ...]:
        """Known values, of its last parameters."""
        ...

    @property
    def lower(self) -> tuple[tuple[int, Mask], ...]:
        """Numbers of directions, and results whose tangents along all others it has."""
        ...


def residuals(made: Linearised) -> tuple[Moment, ...]:
    """Returns the residuals that the reverse of a program reads."""
    program, linear = _joined(made)
    if has_extremes(program):  # values that are compared are computed by one program
        return ()
    read = moments_read(replace(program, results=program.results[len(made.base.program.results) :]), linear)
    return tuple(moment for moment in read if not is_made_again(program, linear, moment))


def _joined(made: Linearised) -> tuple[Program, Sequence[Var]]:
    """Returns the program of primal and tangents to which residuals refer, and its linear parameters."""
    (wrt,), own = made.masks, len(made.base.program.params)
    program = with_known_trips(made.staged.joined)
    linear = program.params[own : own + sum(wrt)]
    return with_split_tasks(program, linear), linear


def keeping(made: Linearised, residuals: Sequence[Moment]) -> tuple[Program, tuple[int, ...]]:
    """Returns the program that returns its results with residuals, and the places of these among them."""
    program, linear = _joined(made)
    own = len(made.base.program.results)
    program = transpose.primal_keeping(replace(program, results=program.results[:own]), linear, residuals)
    first, found = program.results[:own], program.results[own:]
    results = (*first, *dict.fromkeys(v for v in found if v not in first))
    return replace(program, results=results), tuple(map(results.index, found))


def _refuse_moving(made: Tangents, program: Program, masks: Sequence[Mask], asked: Mask, number: int) -> None:
    """Raises GradientError if a user's rule makes the tangents that are `asked` for not linear in a direction."""
    source = made.base.source
    if source is None or not (found := source.traced.rule_along(masks[number])):
        return
    first = len(made.base.program.params) + sum(map(sum, masks[:number]))
    # tangents along all other directions are no function of this one
    others = [k == number for k, out in made.lower for _ in range(sum(out))]
    wanted = [a and not o for a, o in zip(asked, [*[False] * (len(asked) - len(others)), *others], strict=True)]
    known = program.params[len(program.params) - len(made.constants) :]
    zeros = [v for v, value in zip(known, made.constants, strict=True) if not np.any(value)]
    direction = program.params[first : first + sum(masks[number])]
    refuse_moving(replace(program, results=tuple(chosen(program.results, wanted))), direction, zeros, *found)


def derived(
    spec: Derivative, made: Tangents, masks: Sequence[Mask], asked: Mask, stacks: Stacks, machine: Machine
) -> Program:
    """Returns the program of a derivative, made of tangents along the `masks`; `asked` are the results of the program
    of tangents that it has, or takes adjoints of."""
    own, mask = len(spec.program.params), masks[spec.place + (spec.before is not None)]
    first = own + sum(sum(mask[:own]) for mask in spec.directions[: spec.place])

    def at_rest(program: Program) -> Program:
        """Returns the program without the direction that was asked for before."""
        if spec.before is None:
            return program
        return transpose.without_tangents(program, program.params[own : own + sum(spec.before)])

    def split(program: Program) -> Program:
        known = with_known_trips(program)
        made = with_split_tasks(known, known.params[first : first + sum(mask)])
        return program if made is known else made

    def transposed(program: Program, given: Sequence[Moment], unused: Sequence[Var] = ()) -> Program:
        program = with_known_trips(program)
        linear = program.params[first : first + sum(mask)]
        program = replace(program, results=tuple(chosen(program.results, asked)))
        if spec.wrt is None:
            tangents = transpose.tangents_given(program, linear, given)
            # residuals may have been chosen for more parameters than have a part in the direction
            moves = chosen(spec.directions[spec.place], mask)
            still = [v for v, does in zip(linear, moves, strict=True) if not does]
            return transpose.without_tangents(tangents, still) if still else tangents
        adjoints = transpose.transpose(program, linear, stacks, given, tuple(chosen(spec.wrt, mask)))
        count(derivations=1)
        params, last, end = adjoints.params, first + len(given) + sum(spec.out), first + len(given) + sum(asked)
        parts, changes = iter((*params[own:first], *params[end:])), iter(params[last:end])
        moved = [next(changes if k >= own else parts) for m in spec.directions for k, moves in enumerate(m) if moves]
        params = (*params[:own], *unused, *params[first:last], *moved, *parts)
        return replace(adjoints, params=params)

    staged = made.staged.on(machine.platform)
    program = staged.program
    for number in spec.moving:
        _refuse_moving(made, replace(staged.with_rules, name=spec.program.name), masks, asked, number)
    if spec.wrt is not None:
        refuse_rules_along(replace(staged.with_rules, name=spec.program.name), moves=bool(spec.moving))
    else:
        count(derivations=1)
        transpose.refuse_transposes(staged.with_rules)
        program = at_rest(program)
    if spec.wrt is not None or spec.residuals:
        joined = split(at_rest(staged.joined))
        try:
            program = transposed(staged.unrolled_for(machine, joined), spec.residuals)
        except GradientError:
            # a loop of joined tasks may be refused where the user's own loops are not
            stacks.choices.clear()
            refs = references(joined)
            unused = [Var(refs[r].type, refs[r].hint) for _, r in spec.residuals]
            program = transposed(split(at_rest(staged.canonical)), (), unused)
    if spec.wrt is None:
        check_atomics(program)
    program = replace(program, name=f"{spec.program.name}_{'d' if spec.wrt is None else 'r'}{len(spec.directions)}")
    if any(spec.absent):
        program = reads_none(program, tuple(chosen(program.params[:own], spec.absent)))
    known = [False] * len(made.constants)
    for size, groups in spec.levels:
        program = batch(program, [*(b for mask in groups for b in mask), *known], size)
    return program
