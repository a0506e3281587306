"""The memory of what parts of a task keep for positions, where one value follows another.

    before: store kept p                    before: store kept p
    rows:   load kept p                     rows:   load kept p
            store saved p            ->             store kept p
            load saved p                            load kept p
            store left p                            store kept p
    after:  load left p                     after:  load kept p

Each walk meets a position once, so what is read and written for one position happens in the order of the text.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.ir.memory import reference
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from lowering.plan.span_parts import SpanParts
    from qdtrace.ir.program import Task, Var
    from qdtrace.ir.types import DType


def share_memory(parts: SpanParts) -> SpanParts:
    """Returns the parts with one reference for several of `kept` whose values of a position do not live together."""
    times: defaultdict[Var, list[int]] = defaultdict(list)
    tasks = [t for t in (parts.before, parts.rows, parts.after) if t is not None]
    eqns = (e for t in tasks for e in walk_eqns(t.body))
    for time, eqn in enumerate(eqns):
        if eqn.primitive.is_access and reference(eqn) in parts.kept:
            times[reference(eqn)].append(time)
    ends: defaultdict[DType, dict[Var, int]] = defaultdict(dict)
    env: dict[Var, Var] = {}
    for ref in sorted(parts.kept, key=lambda r: times[r][0]):
        last = ends[ref.dtype]
        memory = next((m for m, end in last.items() if end < times[ref][0]), ref)
        last[memory], env[ref] = times[ref][-1], memory

    def shared(task: Task | None) -> Task | None:
        return None if task is None else Rebuilder(dict(env)).rebuild_task(task)

    rows = shared(parts.rows)
    assert rows is not None
    kept = tuple(dict.fromkeys(env[ref] for ref in parts.kept))
    return replace(parts, kept=kept, before=shared(parts.before), rows=rows, after=shared(parts.after))
