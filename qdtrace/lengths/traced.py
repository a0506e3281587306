"""A trace of a call: the program that it became, where its operands come from, and where its results go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from qdtrace.compose.call import call_p
from qdtrace.compose.jaxprs import is_literal
from qdtrace.compose.shown_records import Told
from qdtrace.compose.staged import Programs
from qdtrace.frozen import frozen
from qdtrace.lengths.opened import PinnedError, UnseenError
from qdtrace.lengths.skeleton import skeleton_of
from qdtrace.trace import compat
from qdtrace.trace.lengths import recorded
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.compose.derivative_spec import Derivative
    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Var
    from qdtrace.lengths.skeleton import Skeleton
    from qdtrace.trace.lengths import Recording


@frozen(eq=False)
class Known:
    """A value that is no argument."""

    value: Any
    number: int | None = None
    """The number of the recording that it is, if lengths decide it."""


@frozen(eq=False)
class Made:
    """A result of the program, by its number."""

    number: int
    is_weak: bool = False
    """True if other operands decide its type (`weak_type` of JAX)."""


Source = int | Known | Made
"""The source of a value: a leaf of the arguments by its number, a value that is known, or a result of the program."""


@frozen(eq=False)
class Trace:
    """A call at its lengths."""

    skeleton: Skeleton
    staged: StagedProgram
    """The program, with its options."""
    operands: tuple[Source, ...]
    """The source of each parameter of the program."""
    results: tuple[Source, ...]
    """The source of each leaf of the result."""
    tree: Any
    """Structure of the result."""
    recording: Recording | None = None
    """Arithmetic and decisions of the function with lengths, if recorded."""
    adjoint: Derivative | None = None
    """Specifies the derivative that runs, if the program is one of tangents and its transpose runs."""
    transposed: Callable[[StagedProgram, Machine], Program] | None = None
    """Returns the program of that derivative, for a program of tangents on a machine."""

    @property
    def options(self) -> Options:
        """The options of the program."""
        return self.staged.options

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for the traces of one program at all lengths."""
        spec = self.adjoint
        return self.skeleton.text, self.options, spec and (spec.wrt, spec.out, spec.x64)


def trace_call(
    staging: Callable[[Programs], Callable[..., Any]],
    leaves: Sequence[Any],
    structure: Any,
    recording: Recording | None = None,
) -> Trace:
    """Traces a call on leaves of arguments, and records what it does with lengths. Raises PinnedError unless it becomes
    one program and nothing else."""
    tree: Any = None
    programs = Programs(array_tasks=True)
    staged = staging(programs)

    def flat(*leaves: Any) -> list[Any]:
        nonlocal tree
        if recording is not None:
            recording.begin(leaves)
        out, tree = flat_results(staged, leaves, structure)
        return out

    with recorded(recording):
        made: Any = jax.make_jaxpr(flat)(*leaves)
    if programs.doubts:
        raise PinnedError("its iterations may race, which the elements of arguments decide")
    walk = _Walk()
    outs = walk.results(compat.without_dead_code(made), compat.constants_of(made), range(len(leaves)))
    if len(walk.calls) != 1:
        raise PinnedError(f"it is {len(walk.calls)} programs")
    ((program, operands),) = walk.calls
    if program.options.debug or program.options.deterministic:  # threads need copies for sums in one order
        raise PinnedError("it runs with `debug` or `deterministic`")
    if recording is not None:
        if not recording.has_begun:
            raise (UnseenError if program.options.pure else PinnedError)("nobody saw its lengths")
        numbers = {id(array): number for array, number in recording.operands}
        operands = [Known(s.value, numbers.get(id(s.value))) if isinstance(s, Known) else s for s in operands]
    skeleton = skeleton_of(program.program, known_params(program.program, operands, recording))
    return Trace(skeleton, program, tuple(operands), tuple(outs), tree, recording)


def known_params(program: Program, operands: Iterable[Source], recording: Recording | None) -> dict[Var, int]:
    """Returns the values of the parameters that are whole numbers which lengths decide."""
    if recording is None:
        return {}
    pairs = [(v, s.number) for v, s in zip(program.params, operands, strict=True) if isinstance(s, Known)]
    return {v: n for v, k in pairs if k is not None and type(n := recording.values[k]) is int and v.dtype.is_integer}


def flat_results(staged: Callable[..., Any], leaves: Sequence[Any], structure: Any) -> tuple[list[Any], Any]:
    """Returns leaves and structure of a call's results. Raises PinnedError if it prints."""
    args, kwargs = jax.tree.unflatten(structure, leaves)
    results = staged(*args, **kwargs)
    if type(results) is Told:
        raise PinnedError("it prints, or calls back")
    return jax.tree.flatten(results)


class _Walk:
    """The walk through a traced function that finds its programs."""

    def __init__(self) -> None:
        self.calls: list[tuple[StagedProgram, list[Source]]] = []

    def results(self, jaxpr: Any, constants: Sequence[Any], inputs: Iterable[Source]) -> list[Source]:
        """Returns the sources of the results of an open jaxpr, for those of its inputs."""
        places: dict[Any, Source] = dict(zip(jaxpr.constvars, map(Known, constants), strict=True))
        places |= zip(jaxpr.invars, inputs, strict=True)

        def sources(atoms: Iterable[Any]) -> list[Source]:
            return [Known(a.val) if is_literal(a) else places[a] for a in atoms]

        for eqn in jaxpr.eqns:
            if _says_type_alone(eqn):
                (source,) = sources(eqn.invars)
                if isinstance(source, Made):
                    places[eqn.outvars[0]] = Made(source.number, eqn.outvars[0].aval.weak_type)
                    continue
                if eqn.outvars[0] not in jaxpr.outvars:
                    places[eqn.outvars[0]] = source
                    continue
            places |= zip(eqn.outvars, self.results_of(eqn, sources(eqn.invars)), strict=True)
        return sources(jaxpr.outvars)

    def results_of(self, eqn: Any, operands: list[Source]) -> Sequence[Source]:
        """Returns the sources of the results of an equation."""
        if eqn.primitive is compat.jit_p:
            inner = eqn.params["jaxpr"]
            return self.results(compat.without_dead_code(inner), compat.constants_of(inner), operands)
        if eqn.primitive is lax.optimization_barrier_p:  # ties results to checks, which a call waits for here
            return operands
        if eqn.primitive is not call_p:  # also a derivative: see Note [Bounds of one length]
            loc = eqn_loc(eqn)
            raise PinnedError(f"`{eqn.primitive.name}` runs outside of its loops" + (f"\n  at {loc}" if loc else ""))
        self.calls.append((eqn.params["staged"], operands))
        return [Made(k) for k in range(len(eqn.outvars))]


def _says_type_alone(eqn: Any) -> bool:
    """Returns whether an equation makes the type of an argument one that no other type decides (`weak_type`)."""
    return eqn.primitive is lax.convert_element_type_p and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype


# Note [Bounds of one length]
#
# An access without a check has been proven by the importer, from loops and values alone: it is in range wherever its
# index is known. `prove_bounds` also looks at branches, and what it leaves of a check may hold for one length. So
# graphs are those before all passes. Graphs of derivatives are made of joined ones, and each length has its own.
