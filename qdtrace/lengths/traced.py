"""A trace of a call: the program that it became, where its operands come from, and where its results go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from qdtrace.compose.call import call_p
from qdtrace.compose.jaxprs import is_literal
from qdtrace.compose.staged import Programs
from qdtrace.compose.told import Told
from qdtrace.frozen import frozen
from qdtrace.lengths.opened import PinnedError
from qdtrace.lengths.skeleton import skeleton_of
from qdtrace.trace import compat
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.lengths.skeleton import Skeleton


@frozen(eq=False)
class Known:
    """A value that is no argument."""

    value: Any


@frozen(eq=False)
class Made:
    """A result of the program, by its number."""

    number: int


@frozen(eq=False)
class Trace:
    """A call at its lengths. Leaves are those of the arguments, by number."""

    skeleton: Skeleton
    operands: tuple[int | Known | Made, ...]
    """The source of each parameter of the program: a leaf or a value."""
    results: tuple[int | Known | Made, ...]
    """The source of each leaf of the result: a leaf of the arguments, a value, or a result of the program."""
    tree: Any
    """Structure of the result."""


def trace_call(staging: Callable[[Programs], Callable[..., Any]], leaves: Sequence[Any], structure: Any) -> Trace:
    """Traces a call on leaves of arguments. Raises PinnedError unless it becomes one program and nothing else."""
    from qdtrace.passes.prove_bounds import ProveBounds  # only here: a process that finds its code has no passes

    tree: Any = None
    programs = Programs()
    staged = staging(programs)

    def flat(*leaves: Any) -> list[Any]:
        nonlocal tree
        args, kwargs = jax.tree.unflatten(structure, leaves)
        results = staged(*args, **kwargs)
        if type(results) is Told:
            raise PinnedError("it prints, or calls back")
        out, tree = jax.tree.flatten(results)
        return out

    made: Any = jax.make_jaxpr(flat)(*leaves)
    if programs.doubts:
        raise PinnedError("its iterations may race, which the elements of arguments decide")
    jaxpr = compat.open_jaxpr(made)
    eqns = [e for e in jaxpr.eqns if e.primitive is call_p]
    others = [e for e in jaxpr.eqns if e.primitive is not call_p]
    if others:
        loc = eqn_loc(others[0])
        raise PinnedError(f"`{others[0].primitive.name}` runs outside of its loops" + (f"\n  at {loc}" if loc else ""))
    if len(eqns) != 1:
        raise PinnedError(f"it is {len(eqns)} programs")
    (eqn,) = eqns
    known = dict(zip(jaxpr.constvars, map(Known, compat.constants_of(made)), strict=True))
    places: dict[Any, int | Known | Made] = {**known, **{v: k for k, v in enumerate(jaxpr.invars)}}
    operands = [Known(a.val) if is_literal(a) else places[a] for a in eqn.invars]
    places |= {v: Made(k) for k, v in enumerate(eqn.outvars)}
    results = [Known(a.val) if is_literal(a) else places[a] for a in jaxpr.outvars]
    program = ProveBounds()(eqn.params["staged"].program)
    return Trace(skeleton_of(program), tuple(operands), tuple(results), tree)
