"""Tasks that differ in constants only share one piece of code.

Before:  range_for i in 0:i32 : 8:i32           After:  range_for i in 0:i32 : 8:i32
           a: f32 = load x i                              head
           b: f32 = mul a 2.0:f32                           c: f32 = load literals 0:i32
           store y b 0:i32 i                                d: i32 = load literals_1 0:i32
         range_for i in 0:i32 : 8:i32                     a: f32 = load x i
           a: f32 = load y 0:i32 i                        b: f32 = mul a c
           b: f32 = mul a 3.0:f32                         store y b d i
           store y b 1:i32 i                            ...

A Python loop around `qd.range` makes such tasks. Each differing constant becomes a value in constant memory of the
program, loaded once per launch, so the tasks are equal and compiled once. Constants that the code depends on stay:
bounds of loops, factors and divisors of integers, shifts, and indices other than those of slow axes.
"""

from __future__ import annotations

from dataclasses import field, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.frozen import frozen
from qdtrace.ir.memory import first_index
from qdtrace.ir.primitives import ATOMIC, LOAD
from qdtrace.ir.printer import Printer
from qdtrace.ir.program import Eqn, Literal, Program, Task, Var, is_global, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import SCALARS, DType, RefType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIFT_LIMIT = 64
"""The most constants that a task may read from memory: each costs a register or a reload."""


@frozen(slots=True)
class SharedCode:
    """A program whose tasks are equal wherever they can be, and the memory of its constants."""

    program: Program
    literals: Mapping[Var, np.ndarray] = field(default_factory=dict[Var, np.ndarray])
    """The references to constant memory, which only heads of tasks read, with their content."""
    equal: Mapping[int, int] = field(default_factory=dict[int, int])
    """Maps the number of a task to that of the first task equal to it."""


def share_code(program: Program) -> SharedCode:
    """Moves differing constants of otherwise equal tasks into memory; returns the same program if there are none."""
    if len(program.tasks) < 2:
        return SharedCode(program)
    groups: dict[str, list[int]] = {}
    found: list[_Skeleton] = []
    for number, task in enumerate(program.tasks):
        found.append(_Skeleton(task))
        groups.setdefault(found[-1].text(), []).append(number)
    tasks, memory, equal = list(program.tasks), dict[Var, np.ndarray](), dict[int, int]()
    for members in groups.values():
        differ = _differing([found[n].literals for n in members])
        if len(differ) > LIFT_LIMIT:
            continue
        equal |= dict.fromkeys(members, members[0])
        for n in members if differ else ():
            tasks[n] = _lifted(tasks[n], found[n], differ, memory)
    return SharedCode(replace(program, tasks=tuple(tasks)) if memory else program, memory, equal)


def liftable(eqn: Eqn) -> tuple[int, ...]:
    """Returns the positions of literal operands that could be variables without changing the code around them."""
    prim, invars = eqn.primitive, eqn.invars
    if prim.is_access:
        if prim is ATOMIC or not is_global(invars[0]):
            return ()
        # An index in front of one that varies: on the last axis it may say which part of a record is meant.
        first = first_index(eqn)
        slow = range(first, len(invars) - 1) if len(invars) > first and isinstance(invars[-1], Var) else ()
        return tuple([k for k in (*range(1, first), *slow) if isinstance(invars[k], Literal)])
    if invars and prim.any_number(invars[0].dtype):
        found = [k for k, a in enumerate(invars) if isinstance(a, Literal) and a.dtype is not DType.bool]
        return tuple(found) if len(found) < len(invars) else ()
    return ()


class _Skeleton(Printer):
    """The canonical text of a task with holes for liftable literals, and those literals in order."""

    def __init__(self, task: Task) -> None:
        super().__init__(canonical=True)
        self.literals: list[Literal] = []
        self.positions: dict[Eqn, tuple[int, ...]] = {}
        """Positions of the lifted literals among each equation's operands."""
        for ref in task.refs:
            self.line(0, self.binder(ref, prefix="r"))
        self.task(task, 0)

    def eqn(self, eqn: Eqn, depth: int, inner: bool = True) -> None:
        positions = liftable(eqn)
        if positions:
            self.positions[eqn] = positions
            invars = list(eqn.invars)
            for k in positions:
                atom = invars[k]
                assert isinstance(atom, Literal)
                self.literals.append(atom)
                invars[k] = _HOLES[atom.dtype]
            eqn = Eqn(eqn.primitive, tuple(invars), eqn.outvars, eqn.params, eqn.blocks, eqn.loc)
        super().eqn(eqn, depth, inner)


_HOLES: dict[DType, Literal] = {d: literal(0, d) for d in DType}


def _differing(members: Sequence[Sequence[Literal]]) -> list[int]:
    """Returns the numbers of the literals that differ between members."""
    first = members[0]
    return [k for k, a in enumerate(first) if any(other[k] != a for other in members[1:])]


def _lifted(task: Task, skeleton: _Skeleton, numbers: Sequence[int], memory: dict[Var, np.ndarray]) -> Task:
    """Returns the task with the literals of those numbers loaded from new references, which are added to `memory`."""
    values = [skeleton.literals[k] for k in numbers]
    by_dtype: dict[DType, list[int]] = {}
    for position, value in enumerate(values):
        by_dtype.setdefault(value.dtype, []).append(position)
    loads: list[Eqn] = []
    replacement: dict[int, Var] = {}
    for dtype, positions in by_dtype.items():
        ref = Var(RefType(dtype, (len(positions),)), "literals")
        memory[ref] = np.asarray([values[p].value for p in positions], dtype.numpy)
        for k, position in enumerate(positions):
            out = Var(SCALARS[dtype], "c")
            loads.append(Eqn(LOAD, (ref, literal(k, DType.i32)), (out,), {}, (), task.loc))
            replacement[numbers[position]] = out
    lifter = _Lifter(skeleton, replacement)
    return lifter.rebuild_task(replace(task, head=(*loads, *task.head)))


class _Lifter(Rebuilder):
    """Replaces literals by variables; `replacement` is keyed by the literals' numbers in the skeleton."""

    def __init__(self, skeleton: _Skeleton, replacement: Mapping[int, Var]) -> None:
        super().__init__()
        self.changed: dict[Eqn, Eqn] = {}
        numbers = count()
        for eqn, positions in skeleton.positions.items():
            found = {k: replacement.get(next(numbers)) for k in positions}
            if any(found.values()):
                self.changed[eqn] = replace(eqn, invars=tuple([found.get(k) or a for k, a in enumerate(eqn.invars)]))

    def visit(self, eqn: Eqn) -> None:
        """Appends the equation, changed or not."""
        if eqn.blocks:
            super().visit(eqn)
        else:
            self.append(self.changed.get(eqn, eqn))
