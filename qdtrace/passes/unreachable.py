"""Unreachable code: removes code that cannot run, and turns loops and branches that surely run once into their body.

Before:  if false                        After:  a: f32 = load x i
           store x 0.0:f32 i                     store y a i
         a: f32 = if true
           b: f32 = load x i
           yield b
         else
           yield 0.0:f32
         store y a i

Also a `for` with constant bounds that runs never or once, a `while` whose condition is false, and, inside the branches
of an `if`, its condition as a known value. Tasks with constant empty ranges are removed, but for checks in their heads.

Relies on constants being literals (constant folding). Never evaluates anything itself but loop bounds.
"""

from __future__ import annotations

from typing import ClassVar

from qdtrace.analysis.index.trips import trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_all
from qdtrace.passes.rewrite import RewriteOptions, RewritePass, Rewriter
from qdtrace.rules.table import RuleSet, RuleTable

TABLE = RuleTable()


def task_is_empty(task: Task) -> bool:
    """Returns whether a task is a `range_for` with an empty constant range."""
    return task.kind == "range_for" and trip_count(task.start, task.stop) == 0


@TABLE.rule("if", stage="before")
def if_constant(w: Rewriter, eqn: Eqn) -> tuple[Atom, ...] | None:
    """`if true` is its first branch, `if false` its second."""
    condition = eqn.invars[0]
    if not isinstance(condition, Literal):
        return None
    return w.inline(eqn.blocks[0 if condition.value else 1])


@TABLE.rule("for", stage="before")
def for_never(w: Rewriter, eqn: Eqn) -> tuple[Atom, ...] | None:
    """A loop over nothing gives the initial carries."""
    start, stop, step = eqn.bounds
    stands = isinstance(step, Literal) and not step.value
    empty = start is stop or stands or trip_count(start, stop, step) == 0
    return eqn.initials if empty else None


@TABLE.rule("for", stage="before")
def for_once(w: Rewriter, eqn: Eqn) -> tuple[Atom, ...] | None:
    """A loop that runs once is its body."""
    start, stop, step = eqn.bounds
    if trip_count(start, stop, step) != 1:
        return None
    (body,) = eqn.blocks
    return w.inline(body, zip(body.params, (start, *eqn.initials), strict=True))


@TABLE.rule("while", stage="before")
def while_never(w: Rewriter, eqn: Eqn) -> tuple[Atom, ...] | None:
    """`while false` gives the initial carries, after what its condition does."""
    test = eqn.blocks[0]
    (condition,) = test.results
    if not isinstance(condition, Literal) or condition.value:
        return None
    w.inline(test, zip(test.params, eqn.invars, strict=True))
    return eqn.invars


@frozen
class Unreachable(RewritePass):
    """Removes code that cannot run."""

    name: ClassVar[str] = "unreachable"

    def options(self) -> RewriteOptions:
        """Returns the rules of this file, with known conditions."""
        return RewriteOptions(_RULES, assume=True)

    def __call__(self, program: Program) -> Program:
        """Returns the program without unreachable code and empty tasks."""
        return without_empty_tasks(super().__call__(program))


def without_empty_tasks(program: Program) -> Program:
    """Returns the program without tasks with an empty constant range; if the head of one has checks, it is kept."""
    return program.map_tasks(lambda task: _head_alone(task) if task_is_empty(task) else task)


def _head_alone(task: Task) -> Task | None:
    if not any(Effect.CHECK in e.primitive.effects for e in walk_all(task.head)):
        return None
    zero, one = literal(0, DType.i32), literal(1, DType.i32)
    return Task("serial", None, zero, one, Block((), task.head), name=task.name, loc=task.loc)


_RULES = RuleSet.of(TABLE.rules, fast_math=False)
