"""Hoists checks of a loop's index: both ends of the range are checked before the loop in place of every index.

Before:  for k in a : b : 1:i32                After:  r: bool = lt a b
           j: i32 = bound[size=8] k                    c: i32 = select r a 0:i32
           v: f32 = load x j                           d: i32 = bound[size=8] c
           accum[op=add] s v                           e: i32 = sub b 1:i32
                                                       f: i32 = min e 8:i32
                                                       g: i32 = select r f 0:i32
                                                       h: i32 = bound[size=8] g
                                                       for k in a : b : 1:i32
                                                         v: f32 = load x k
                                                         accum[op=add] s v

Applies to the index of a loop of step 1 that each iteration checks. A range that leaves the axis leaves it at its end,
so the index in the message is the first one that fails: `min`. If the loop does not run, nothing is checked. A check
behind a condition of the user (`check`) stays there, as it is executed only if that holds. Checks of the index of a
task whose bounds are known only at run time go to the head.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.ir.builder import Builder
from qdtrace.ir.primitives import BOUND, CHECK, FOR
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_inside
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen
class HoistBounds(TaskPass):
    """Moves checks of loop indices in front of the loops."""

    name: ClassVar[str] = "hoist_bounds"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive is BOUND for e in task.all_eqns):
            return task
        body, in_front = _Hoister().rebuild_block(task.body), Builder()
        if task.kind == "range_for" and task.index is not None:
            checks, body = _taken(body, task.index)
            if checks:
                _emit_in_front(in_front, checks, task.start, task.stop)
        return task.rebuilt(body, (*task.head, *in_front.current.eqns))


class _Hoister(Rebuilder):
    def visit(self, eqn: Eqn) -> None:
        """Appends the checks of a loop's index in front of the loop."""
        made = self.rebuild_eqn(eqn)
        if eqn.primitive is FOR and isinstance(eqn.step, Literal) and eqn.step.value == 1:
            checks, body = _taken(made.blocks[0], made.index)
            if checks:
                _emit_in_front(self, checks, *eqn.invars[:2])
                made = made.rebuilt(blocks=(body,))
        self.append(made)


def _taken(body: Block, index: Var) -> tuple[list[Eqn], Block]:
    """Returns the checks of the index that every iteration executes, and the body without them."""
    before = itertools.takewhile(lambda e: not _has_condition(e), body.eqns)
    checks = [e for e in before if e.primitive is BOUND and e.invars[0] is index and _has_end(e)]
    gone = set(checks)
    kept = body.rebuilt([e for e in body.eqns if e not in gone])
    return checks, Rebuilder({e.outvars[0]: index for e in checks}).rebuild_block(kept)


def _has_condition(eqn: Eqn) -> bool:
    return any(e.primitive is CHECK for e in (eqn, *walk_inside(eqn)))


def _has_end(check: Eqn) -> bool:
    """Returns whether the axis has an element 0, checked in place of an empty range, and a length in the dtype."""
    return 0 < int(check.params["size"]) < 1 << (check.invars[0].dtype.bits - 1)


def _emit_in_front(builder: Builder, checks: Sequence[Eqn], start: Atom, stop: Atom) -> None:
    zero, one = literal(0, start.dtype), literal(1, start.dtype)
    builder.loc = checks[0].loc
    runs = builder("lt", start, stop)
    first = builder("select", runs, start, zero)
    last = builder("sub", stop, one)
    for check in checks:
        builder.loc = check.loc
        size = literal(check.params["size"], start.dtype)
        end = builder("select", runs, builder("min", last, size), zero)
        for index in (first, end):
            builder.emit(check.primitive, index, **check.params)
