"""Derives programs: JAX's tangents are split, transposed and batched. Loaded when a derivative is not on disk."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from qdtrace.autodiff import transpose
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.extremes import has_extremes, with_extremes
from qdtrace.autodiff.loops.known import with_known_trips
from qdtrace.autodiff.residuals import moments_found
from qdtrace.autodiff.split import with_split_tasks
from qdtrace.batching.batch import batch
from qdtrace.compose.staged_program import chosen
from qdtrace.counters import count
from qdtrace.errors import GradientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.autodiff.loops.policy import Stacks
    from qdtrace.autodiff.residuals import Moment
    from qdtrace.ir.program import Program, Var

    Mask = tuple[bool, ...]

__all__ = ["Reverse", "active_variables", "derived", "keeping", "reverse_for_residuals", "with_extremes"]

Derivative: TypeAlias = Any
"""A `derivative.Derivative`, whose module loads this one."""
Linearised: TypeAlias = Any
"""A `linearised.Linearised`, likewise."""


@dataclass(frozen=True)
class Reverse:
    """The transpose of a program's tangents for a CPU, with the residuals that it takes."""

    program: Program | None
    """None if derivatives take no residuals."""
    residuals: tuple[Moment, ...]
    stacks: Stacks


def reverse_for_residuals(made: Linearised, stacks: Stacks) -> Reverse:
    """Returns the reverse from which residuals of a program are chosen."""
    base = made.base
    with base.depth_told(), suppress(GradientError):
        program, linear = _joined(made)
        tangents = replace(program, results=program.results[len(base.program.results) :])
        is_apart = not has_extremes(program)  # values that are compared are computed by one program
        if is_apart and moments_found(tangents, active_variables(tangents, linear, tangents.results)):
            count(derivations=1)
            return Reverse(*transpose.with_residuals(tangents, linear, stacks), stacks)
    return Reverse(None, (), stacks)


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


def derived(
    spec: Derivative, made: Linearised, masks: Sequence[Mask], asked: Mask, stacks: Stacks, machine: Machine
) -> Program:
    """Returns the program of a derivative, made of tangents along the `masks`; `asked` are the results of the program
    of tangents that it has, or takes adjoints of."""
    own, mask = len(spec.program.params), masks[spec.place]
    first = own + sum(map(sum, spec.directions[: spec.place]))

    def split(program: Program) -> Program:
        known = with_known_trips(program)
        made = with_split_tasks(known, known.params[first : first + sum(mask)])
        return program if made is known else made

    def transposed(joined: Program, *, is_same: bool) -> Program:
        joined = with_known_trips(joined)
        linear = joined.params[first : first + sum(mask)]
        joined = replace(joined, results=tuple(chosen(joined.results, asked)))
        if spec.wrt is None:
            return transpose.tangents_given(joined, linear, spec.residuals)
        adjoints = spec.made_before(stacks) if is_same else None
        if adjoints is None:
            adjoints = transpose.transpose(joined, linear, stacks, spec.residuals)
            count(derivations=1)
        given, taken = adjoints.params, len(spec.residuals) + sum(spec.out)
        params = (*given[:own], *given[first : first + taken], *given[own:first], *given[first + taken :])
        return replace(adjoints, params=params, results=tuple(chosen(adjoints.results, chosen(spec.wrt, mask))))

    staged = made.staged.on(machine.platform)
    program, is_same = staged.program, staged is made.staged
    if spec.wrt is None:
        count(derivations=1)
        transpose.refuse_transposes(staged.with_rules)
    if spec.wrt is not None or spec.residuals:
        try:
            program = transposed(staged.unrolled_for(machine, split(staged.joined)), is_same=is_same)
        except GradientError:
            if spec.residuals:
                raise
            # a loop of joined tasks may be refused where the user's own loops are not
            stacks.choices.clear()
            program = transposed(split(staged.canonical), is_same=is_same)
    transpose.check_atomics(program)
    program = replace(program, name=f"{spec.program.name}_{'d' if spec.wrt is None else 'r'}{len(spec.directions)}")
    known = [False] * len(made.constants)
    for size, groups in spec.levels:
        program = batch(program, [*(b for mask in groups for b in mask), *known], size)
    return program
