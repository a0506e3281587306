"""Checks of counted loops in front of them: both ends of the range in the place of every index.

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

The index of a loop of step 1, checked in each iteration that runs. A range that leaves the axis leaves it at its end,
so the index in the message is the first one that fails: `min`. Where the loop does not run nothing is checked, and what
stands behind a condition of the user (`check`) stays there, as it is executed only where that holds. The same
for the index of a task whose bounds are known only when it runs: its checks go to the head.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.ir.builder import Builder
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.walk import substitute_block, walk_task
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class HoistBounds(TaskPass):
    """Moves checks of loop indices in front of the loops."""

    name: ClassVar[str] = "hoist_bounds"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.name == "bound" for e in walk_task(task)):
            return task
        body = _block(task.body)
        if task.kind == "range_for" and task.index is not None:
            checks, body = _taken(body, task.index)
            if checks:
                return replace(task, head=(*task.head, *_in_front(checks, task.start, task.stop)), body=body)
        return task if body is task.body else replace(task, body=body)


def _block(block: Block) -> Block:
    out: list[Eqn] = []
    for eqn in block.eqns:
        if not eqn.blocks:
            out.append(eqn)
            continue
        blocks = tuple([_block(b) for b in eqn.blocks])
        made = eqn if all(a is b for a, b in zip(blocks, eqn.blocks, strict=True)) else replace(eqn, blocks=blocks)
        if eqn.primitive.name == "for" and isinstance(eqn.invars[2], Literal) and eqn.invars[2].value == 1:
            checks, body = _taken(made.blocks[0], made.blocks[0].params[0])
            if checks:
                out += _in_front(checks, *eqn.invars[:2])
                made = replace(made, blocks=(body,))
        out.append(made)
    same = len(out) == len(block.eqns) and all(a is b for a, b in zip(out, block.eqns, strict=True))
    return block if same else Block(block.params, tuple(out), block.results)


def _taken(body: Block, index: Var) -> tuple[list[Eqn], Block]:
    """The checks of the index that every iteration makes, and the body without them."""
    before = itertools.takewhile(lambda e: not _has_condition(e), body.eqns)
    checks = [e for e in before if e.primitive.name == "bound" and e.invars[0] is index and _has_end(e)]
    if not checks:
        return [], body
    gone = set(checks)
    kept = Block(body.params, tuple([e for e in body.eqns if e not in gone]), body.results)
    return checks, substitute_block(kept, {e.outvars[0]: index for e in checks})


def _has_condition(eqn: Eqn) -> bool:
    return eqn.primitive.name == "check" or any(_has_condition(e) for b in eqn.blocks for e in b.eqns)


def _has_end(check: Eqn) -> bool:
    """The axis has an element that may stand for "none", and its length is a number of the index's dtype."""
    return 0 < int(check.params["size"]) < 1 << (check.invars[0].dtype.bits - 1)


def _in_front(checks: Sequence[Eqn], start: Atom, stop: Atom) -> list[Eqn]:
    builder = Builder()
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
    return builder.current.eqns
