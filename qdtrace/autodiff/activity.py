"""Activity analysis: finds the variables that depend on an active input and that a result depends on.

Dependence is between floats only: it ends at an integer, a comparison or an operation without a derivative. Memory
counts as one variable: a buffer is active when anything active is stored into any of it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING

from qdtrace.ir.dataflow import flows, reached
from qdtrace.ir.memory import values_of
from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qdtrace.ir.program import Atom, Eqn, Program, Task

    Edge = tuple[Atom, Atom]


def active_variables(program: Program, inputs: Iterable[Var], results: Iterable[Var] | None = None) -> frozenset[Var]:
    """Returns the floats and references that depend on `inputs`; with `results`, only those that these depend on."""
    return _active(program.tasks, tuple(inputs), None if results is None else tuple(results))


@functools.lru_cache(maxsize=2)  # residuals are chosen, and then the reverse is made
def _active(tasks: Sequence[Task], inputs: Sequence[Var], results: Sequence[Var] | None) -> frozenset[Var]:
    after: defaultdict[Var, list[Var]] = defaultdict(list)
    before: defaultdict[Var, list[Var]] = defaultdict(list)
    for eqn in (e for task in tasks for e in task.all_eqns):
        for source, target in _edges(eqn):
            if isinstance(source, Var) and isinstance(target, Var) and source.dtype.is_float and target.dtype.is_float:
                after[source].append(target)
                before[target].append(source)
    varied = reached(_floats(inputs), after.__getitem__)
    return frozenset(varied if results is None else varied & reached(_floats(results), before.__getitem__))


def _floats(variables: Iterable[Var]) -> Iterator[Var]:
    return (v for v in variables if v.dtype.is_float)


def _edges(eqn: Eqn) -> Iterator[Edge]:
    """Yields pairs of an operand of the equation and a variable whose value depends on it."""
    name = eqn.primitive.name
    match name:
        case "load":
            yield eqn.invars[0], eqn.outvar
        case "store" | "accum" | "atomic":
            ref = eqn.invars[0]
            for value in values_of(eqn):
                yield value, ref
            for out in eqn.outvars:
                yield ref, out
        case "for" | "while" | "if":
            yield from flows(eqn)
        case "custom":
            # The value itself has no derivative; a rule that is missing is reported when its adjoint is asked for.
            refused = isinstance(eqn.params["rule"], str) and eqn.params["rule"] != "stop_gradient"
            for atom in eqn.invars if refused else eqn.invars[1:]:
                yield atom, eqn.outvar
        case _ if not eqn.primitive.locally_constant:
            for atom in eqn.invars:
                if not isinstance(atom, Literal):
                    yield atom, eqn.outvar
        case _:
            pass
