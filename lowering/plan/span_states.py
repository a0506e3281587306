"""A reverse task that keeps the states of a walk over spans at the positions, in place of a stack.

    c = cell                                 saved: one element a position
    q = at_most (n >> 3)                     no segments
    r = n - 8 q
    for b in 0 : q ...                       gone
    for t in 0 : r   carry s                 for t in 0 : n   carry s
      store c s t                              ...
      ...                                      store saved s (lo + t)
    for t in r - 1 : -1 : -1                 for t in n - 1 : -1 : -1
      load c t                                 load saved (lo + t)
    for b in q - 1 : -1 : -1 ...             gone

A derivative keeps the states of whole segments on a stack that is bounded, and those of the iterations after them in
an array for each. It says by `at_most` that any iteration may be one of those. So with no segment at all, what is kept
for an iteration is in elements of its own number, which is a position of the span. Spans that are disjoint share the
memory of their positions, and no bound is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.plan.span_partials import with_partials
from qdtrace.analysis.expressions import params_key
from qdtrace.analysis.spans import find_walks
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import AT_MOST, CELL, CHECK, LOAD, STORE, Effect
from qdtrace.ir.program import Program, is_local, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.simplify import Simplify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.analysis.spans import Walk
    from qdtrace.ir.program import Eqn, Task, Var


@frozen(eq=False)
class KeptStates:
    """A task without segments, and what it keeps for each position."""

    task: Task
    states: Mapping[Var, Eqn]
    """Its private arrays, with the one `store` into each. All accesses are at the counter of a walk."""
    origins: Mapping[Eqn, Eqn]
    """Maps checks that differ to those of the original task."""


def states_at_positions(task: Task) -> KeptStates | None:
    """Returns a task without segments, whose private arrays all hold one element for each position of the walks. It is
    right only where they have room for that. Returns None if the task has no segments, or other private arrays."""
    counts = [e.outvar for e in walk_eqns(task.body) if e.primitive is AT_MOST]
    if not counts:
        return None
    whole = Rebuilder({v: literal(0, v.dtype) for v in counts}).rebuild_task(task)
    refs = tuple(whole.refs)
    tasks = Simplify()(Program("whole", refs, (), (whole,), refs)).tasks
    walks = find_walks(tasks[0]) if len(tasks) == 1 else None
    if walks is None:
        return None
    states, origins = _states(tasks[0], walks.found), _origins(tasks[0], task)
    if states is None or origins is None:
        return None
    made = with_partials(tasks[0], states, walks.found)
    again = find_walks(made)
    assert again is not None
    found = _states(made, again.found)
    assert found is not None
    return KeptStates(made, found, origins)


def _states(task: Task, walks: tuple[Walk, ...]) -> Mapping[Var, Eqn] | None:
    """Returns the private arrays with their stores, or None if one is not filled by a walk and read by later ones."""
    walk_of = {eqn: (number, walk.counter) for number, walk in enumerate(walks) for eqn in walk.block.eqns}
    arrays = {e.outvar for e in walk_eqns(task.body) if e.primitive is CELL}
    stores: dict[Var, Eqn] = {}
    for eqn in walk_eqns(task.body):
        if not eqn.primitive.is_access or not is_local(eqn.invars[0]):
            continue
        number, counter = walk_of.get(eqn, (0, None))
        (array,) = arrays.intersection(eqn.invars[:1])
        if counter is None or indices_of(eqn) != (counter,) or len(ref_type(array).shape) != 1:
            return None
        if eqn.primitive is STORE and array not in stores:
            stores[array] = eqn
        elif eqn.primitive is not LOAD or array not in stores or walk_of[stores[array]][0] >= number:
            return None
    return stores if set(stores) == arrays else None


def _origins(made: Task, task: Task) -> Mapping[Eqn, Eqn] | None:
    """Maps the checks of a simplified task to the original ones, or returns None if some are not found."""
    checks = [e for e in task.all_eqns if Effect.CHECK in e.primitive.effects]
    by_result = {e.outvars: e for e in checks if e.outvars}
    by_text = {(params_key(e), e.loc): e for e in checks if e.primitive is CHECK}
    found = {
        e: by_result.get(e.outvars) if e.outvars else by_text.get((params_key(e), e.loc))
        for e in made.all_eqns
        if Effect.CHECK in e.primitive.effects
    }
    mapped = {e: origin for e, origin in found.items() if origin is not None}
    return mapped if len(mapped) == len(found) else None
