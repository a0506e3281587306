"""Calls that also return residuals: contents of memory between the program's tasks that derivatives would recompute.

`jvp`, `vjp` and `linearize` of a call become a call with residuals, and a derivative that takes them. JAX removes
residuals that nobody uses, and all that only they need: then the call is the plain one again.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from jax.interpreters import partial_eval

from qdtrace.compose.call import Origin, call, call_p
from qdtrace.compose.linearised import linearised
from qdtrace.compose.pass_cache import DERIVATIONS, kept, keyed
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.errors import GradientError
from qdtrace.frozen import frozen
from qdtrace.ir.platforms import asks_platform
from qdtrace.passes.dead_code import DeadCode
from qdtrace.trace import compat
from qdtrace.trace.dtypes import kept_by_mode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    from jax import Array
    from jax.typing import ArrayLike

    from qdtrace.autodiff.residuals import Moment
    from qdtrace.compose.pass_cache import GraphKey
    from qdtrace.ir.program import Program

    Mask = tuple[bool, ...]
    Moments = tuple[Moment, ...]


def derivation() -> ModuleType:
    """Returns the module `derivation`."""
    # Loaded here: a process that finds its derivatives on disk does without its 40 modules.
    from qdtrace.compose import derivation as module

    return module


@frozen
class Keeping:
    """A program with residuals among its results."""

    staged: StagedProgram
    origin: Origin
    places: tuple[int, ...]
    """Index of each residual among the results: one of the program's own, or one after them."""


@kept_by_mode
def residuals_of(base: StagedProgram, wrt: Mask, out: Mask) -> Moments:
    """Returns the residuals that save a derivative from recomputing tasks."""
    if len(base.with_rules.tasks) < 2 or base.options.debug:  # the interpreter runs the program as it was traced
        return ()
    if asks_platform(base.with_rules):  # platforms have different tasks
        return ()
    if not base.has_primal:
        return ()

    def choose() -> Moments:
        with base.depth_told():
            return derivation().residuals(made)

    try:
        made = linearised(base, (wrt,), out, with_primal=True)
        if made.constants:
            return ()
        return kept(DERIVATIONS, lambda: made.key, ("residuals", wrt, out), made.options, choose)
    except GradientError:
        return ()  # reverse mode raises it when it is asked for


@kept_by_mode
def unread_by(base: StagedProgram, wrt: Mask, out: Mask, *, with_primal: bool) -> Mask:
    """Returns the mask of parameters that the tangents of results `out` along `wrt` do not read, nor their transpose.

    These have the same coefficients. A `lax.scan` keeps the operands of a derivative at each step. Empty if all are
    read, or may be.
    """
    source = base.source
    if source is None or base.options.debug or asks_platform(base.with_rules):
        return ()

    def find() -> Mask:
        if source.traced.may_have_rules:
            return ()
        program = made.staged.program
        tangents = program.results[len(base.program.results) if with_primal else 0 :]
        used = {v for task in DeadCode()(replace(program, results=tangents)).tasks for v in task.refs}
        unread = tuple(v not in used for v in program.params[: len(base.program.params)])
        return unread if any(unread) else ()

    try:
        made = linearised(base, (wrt,), out, with_primal=with_primal)
        return kept(DERIVATIONS, lambda: made.key, ("unread", wrt, out), made.options, find)
    except GradientError:
        return ()  # as above


@kept_by_mode
def keeping(base: StagedProgram, wrt: Mask, out: Mask, residuals: Moments) -> Keeping:
    """Returns the program that returns its results with residuals."""
    own = len(base.program.results)
    made = linearised(base, (wrt,), out, with_primal=True)
    with base.depth_told():

        def make() -> tuple[Program, GraphKey | None, tuple[int, ...]]:
            program, places = derivation().keeping(made, residuals)
            return *keyed(program, base.options), places

        about = ("keeping", wrt, own, residuals)
        program, key, places = kept(DERIVATIONS, lambda: made.key, about, base.options, make)
    numbers = (*range(own), *[None] * (len(program.results) - own))
    return Keeping(StagedProgram(program, base.options, known_key=key), Origin(base, numbers), places)


def call_keeping(
    base: StagedProgram, operands: Sequence[ArrayLike], wrt: Mask, out: Mask, residuals: Moments, origin: Origin | None
) -> tuple[list[Array], list[Array]]:
    """Returns the results of a call, and residuals for derivatives of results `out` by parameters `wrt`."""
    made = keeping(base, wrt, out, residuals)
    outs = call(made.staged, operands, replace(origin or made.origin, numbers=made.origin.numbers))
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
        plain = None if origin.before is None else replace(origin, numbers=tuple(range(len(types))))
        params = {"staged": origin.base, "origin": plain}
    else:
        outvars = [v for v, _ in left]
        params = {
            "staged": _giving(eqn.params["staged"], tuple(used)),
            "origin": replace(origin, numbers=tuple(k for _, k in left)),
        }
    return [True] * len(eqn.invars), eqn.replace(outvars=outvars, params=params)


partial_eval.dce_rules[call_p] = _without_unused
