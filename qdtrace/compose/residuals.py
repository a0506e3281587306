"""Calls that also return residuals: contents of memory between the program's tasks that derivatives would recompute.

`jvp`, `vjp` and `linearize` of a call become a call with residuals, and a derivative that takes them. JAX removes
residuals that nobody uses, and all that only they need: then the call is the plain one again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jax.interpreters import partial_eval

from qdtrace.analysis.machine import CPU
from qdtrace.autodiff import extremes, transpose
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.residuals import moments_found
from qdtrace.compose.call import Origin, call, call_p
from qdtrace.compose.linearised import linearised
from qdtrace.compose.stacks import stacks_for
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.errors import GradientError
from qdtrace.ir.platforms import asks_platform
from qdtrace.passes.dead_code import DeadCode
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.loops.policy import Stacks
    from qdtrace.autodiff.residuals import Moment
    from qdtrace.ir.program import Program, Var

    Mask = tuple[bool, ...]
    Moments = tuple[Moment, ...]


@dataclass(frozen=True)
class Keeping:
    """A program with residuals among its results."""

    staged: StagedProgram
    origin: Origin
    places: tuple[int, ...]
    """Index of each residual among the results: one of the program's own, or one after them."""


@dataclass(frozen=True)
class Reverse:
    """The transpose of a program's tangents for a CPU, with the residuals that it takes."""

    program: Program
    residuals: Moments
    stacks: Stacks


def residuals_of(base: StagedProgram, wrt: Mask, out: Mask) -> Moments:
    """Returns the residuals that save a derivative from recomputing tasks."""
    made = reverse_of(base, wrt, out)
    return () if made is None else made.residuals


@functools.lru_cache(maxsize=1024)
def reverse_of(base: StagedProgram, wrt: Mask, out: Mask) -> Reverse | None:
    """Returns the reverse from which residuals are chosen; None if derivatives take none."""
    if len(base.with_rules.tasks) < 2 or base.options.debug:  # the interpreter runs the program as it was traced
        return None
    if asks_platform(base.with_rules):  # platforms have different tasks
        return None
    if base.source is None or None in base.source.primal:
        return None
    try:
        with base.depth_told():
            program, linear, known = _joined(base, wrt, out)
            tangents = replace(program, results=program.results[len(base.program.results) :])
            if known or extremes.has_extremes(program):  # values that are compared are computed by one program
                return None
            if not moments_found(tangents, active_variables(tangents, linear, tangents.results)):
                return None
            stacks = stacks_for(base.options, CPU)
            return Reverse(*transpose.with_residuals(tangents, linear, stacks), stacks)
    except GradientError:
        return None  # reverse mode raises it when it is asked for


def _joined(base: StagedProgram, wrt: Mask, out: Mask) -> tuple[Program, Sequence[Var], Sequence[Any]]:
    """Returns the program of primal and tangents to which residuals refer, its linear parameters, and constants."""
    staged, own = linearised(base, (wrt,), out, with_primal=True), len(base.program.params)
    program = staged.joined
    return program, program.params[own : own + sum(wrt)], staged.constants


@functools.lru_cache(maxsize=1024)
def keeping(base: StagedProgram, wrt: Mask, out: Mask, residuals: Moments) -> Keeping:
    """Returns the program that returns its results with residuals."""
    count = len(base.program.results)
    with base.depth_told():
        program, linear, _ = _joined(base, wrt, out)
        program = transpose.primal_keeping(replace(program, results=program.results[:count]), linear, residuals)
    own, found = program.results[:count], program.results[count:]
    results = (*own, *dict.fromkeys(v for v in found if v not in own))
    numbers = (*range(count), *[None] * (len(results) - count))
    staged = StagedProgram(replace(program, results=results), base.options)
    return Keeping(staged, Origin(base, numbers), tuple(map(results.index, found)))


def call_keeping(
    base: StagedProgram, operands: Sequence[Any], wrt: Mask, out: Mask, residuals: Moments
) -> tuple[list[Any], list[Any]]:
    """Returns the results of a call, and residuals for derivatives of results `out` by parameters `wrt`."""
    made = keeping(base, wrt, out, residuals)
    outs = call(made.staged, operands, made.origin)
    return outs[: len(base.program.results)], [outs[k] for k in made.places]


@functools.lru_cache(maxsize=1024)
def _giving(staged: StagedProgram, used: Mask) -> StagedProgram:
    """Returns the program with only the used results."""
    program = staged.program
    results = tuple(v for v, wanted in zip(program.results, used, strict=True) if wanted)
    return StagedProgram(DeadCode()(replace(program, results=results)), staged.options)


def _without_unused(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    """Removes unused residuals from a call; `rest` ends with its equation."""
    eqn = rest[-1]
    origin: Origin | None = eqn.params["origin"]
    if not any(used):
        return [False] * len(eqn.invars), None
    if origin is None or all(used):
        return [True] * len(eqn.invars), eqn
    left = [(v, k) for v, k, wanted in zip(eqn.outvars, origin.numbers, used, strict=True) if wanted]
    if all(k is not None for _, k in left):
        known = {k: v for v, k in left}
        types, _ = call_p.abstract_eval(*(v.aval for v in eqn.invars), staged=origin.base, origin=None)
        outvars = [known.get(k) or compat.Var(aval) for k, aval in enumerate(types)]
        params = {"staged": origin.base, "origin": None}
    else:
        outvars = [v for v, _ in left]
        params = {
            "staged": _giving(eqn.params["staged"], tuple(used)),
            "origin": Origin(origin.base, tuple(k for _, k in left)),
        }
    return [True] * len(eqn.invars), eqn.replace(outvars=outvars, params=params)


partial_eval.dce_rules[call_p] = _without_unused
