"""Tasks that differ in constants only share one piece of code.

Before:  range_for i in 0:i32 : 8:i32           After:  range_for i in 0:i32 : 8:i32
           a: f32 = load x i                              head
           b: f32 = mul a 2.0:f32                           c: f32 = load literals 0:i32
           store y b 0:i32 i                                d: i32 = load literals_1 0:i32
         range_for i in 0:i32 : 8:i32                     a: f32 = load x i
           a: f32 = load y 0:i32 i                        b: f32 = mul a c
           b: f32 = mul a 3.0:f32                         store y b d i
           store y b 1:i32 i                            ...

A Python loop around `qd.range` makes such tasks. What differs becomes a value in constant memory of the program, read
once a launch, so the tasks are equal and compiled once. Constants stay where the code depends on them: bounds of loops,
factors and divisors of integers, shifts, and indices other than those of slow axes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.memory import first_index
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.printer import Printer
from qdtrace.ir.program import Block, Eqn, Literal, Program, Task, Var, is_global, literal
from qdtrace.ir.types import DType, RefType, ScalarType
from qdtrace.ir.walk import task_refs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qdtrace.ir.program import Atom

LIFT_LIMIT = 64
"""Constants that a task reads from memory at most: each is a register or a reload."""

_ANY_NUMBER = frozenset({"add", "sub", "min", "max", "lt", "le", "gt", "ge", "eq", "ne", "select", "store", "accum"})
_FLOATS = frozenset({"mul", "div", "quotient", "fma", "pow", "atan2"})


@dataclass(frozen=True, slots=True)
class SharedCode:
    """A program whose tasks are equal wherever they can be, and the memory of its constants."""

    program: Program
    literals: Mapping[Var, np.ndarray] = field(default_factory=dict[Var, np.ndarray])
    """References that only heads of tasks read, with their content."""
    equal: Mapping[int, int] = field(default_factory=dict[int, int])
    """Number of a task to that of the first one that is equal to it."""


def share_code(program: Program) -> SharedCode:
    """Moves differing constants of otherwise equal tasks into memory; the same program where there are none."""
    if len(program.tasks) < 2:
        return SharedCode(program)
    groups: dict[str, list[int]] = {}
    found: list[list[Literal]] = []
    for number, task in enumerate(program.tasks):
        text, literals = _skeleton(task)
        groups.setdefault(text, []).append(number)
        found.append(literals)
    tasks, memory, equal = list(program.tasks), dict[Var, np.ndarray](), dict[int, int]()
    for members in groups.values():
        differ = _differing([found[n] for n in members])
        if len(differ) > LIFT_LIMIT:
            continue
        equal |= dict.fromkeys(members, members[0])
        for n in members if differ else ():
            tasks[n] = _lifted(tasks[n], differ, [found[n][k] for k in differ], memory)
    return SharedCode(replace(program, tasks=tuple(tasks)) if memory else program, memory, equal)


def liftable(eqn: Eqn) -> tuple[int, ...]:
    """Positions of operands that may be a variable as well as a literal without other code around them."""
    name, invars = eqn.primitive.name, eqn.invars
    if eqn.primitive.values is not None:
        if name == "atomic" or not is_global(invars[0]):
            return ()
        # An index in front of one that varies: on the last axis it may say which part of a record is meant.
        first = first_index(eqn)
        slow = range(first, len(invars) - 1) if len(invars) > first and isinstance(invars[-1], Var) else ()
        return tuple([k for k in (*range(1, first), *slow) if isinstance(invars[k], Literal)])
    if name in _ANY_NUMBER or (name in _FLOATS and invars[0].dtype.is_float):
        found = [k for k, a in enumerate(invars) if isinstance(a, Literal) and a.dtype is not DType.bool]
        return tuple(found) if len(found) < len(invars) else ()
    return ()


class _Skeleton(Printer):
    """The canonical text of a task with holes for liftable literals, and those literals in order."""

    def __init__(self) -> None:
        super().__init__(canonical=True)
        self.literals: list[Literal] = []

    def eqn(self, eqn: Eqn, depth: int, inner: bool = True) -> None:
        positions = liftable(eqn)
        if positions:
            invars = list(eqn.invars)
            for k in positions:
                atom = invars[k]
                assert isinstance(atom, Literal)
                self.literals.append(atom)
                invars[k] = _HOLES[atom.dtype]
            eqn = Eqn(eqn.primitive, tuple(invars), eqn.outvars, eqn.params, eqn.blocks, eqn.loc)
        super().eqn(eqn, depth, inner)


_HOLES: dict[DType, Literal] = {d: literal(0, d) for d in DType}


def _skeleton(task: Task) -> tuple[str, list[Literal]]:
    printer = _Skeleton()
    for ref in task_refs(task):
        printer.line(0, printer.binder(ref, prefix="r"))
    printer.task(task, 0)
    return printer.text(), printer.literals


def _differing(members: Sequence[Sequence[Literal]]) -> list[int]:
    """Numbers of the literals that are not the same in all members."""
    first = members[0]
    return [k for k, a in enumerate(first) if any(other[k] != a for other in members[1:])]


def _lifted(task: Task, numbers: Sequence[int], values: Sequence[Literal], memory: dict[Var, np.ndarray]) -> Task:
    """The task with the literals of those numbers read from memory, which is added to."""
    by_dtype: dict[DType, list[int]] = {}
    for position, value in enumerate(values):
        by_dtype.setdefault(value.dtype, []).append(position)
    loads: list[Eqn] = []
    replacement: dict[int, Var] = {}
    for dtype, positions in by_dtype.items():
        ref = Var(RefType(dtype, (len(positions),)), "literals")
        memory[ref] = np.asarray([values[p].value for p in positions], dtype.numpy)
        for k, position in enumerate(positions):
            out = Var(ScalarType(dtype), "c")
            loads.append(Eqn(PRIMITIVES["load"], (ref, literal(k, DType.i32)), (out,), {}, (), task.loc))
            replacement[numbers[position]] = out
    counter = iter(range(1 << 62))
    head = tuple([_with_variables(e, counter, replacement) for e in task.head])
    return replace(task, head=(*loads, *head), body=_in_block(task.body, counter, replacement))


def _in_block(block: Block, counter: Iterator[int], replacement: Mapping[int, Var]) -> Block:
    return replace(block, eqns=tuple([_with_variables(e, counter, replacement) for e in block.eqns]))


def _with_variables(eqn: Eqn, counter: Iterator[int], replacement: Mapping[int, Var]) -> Eqn:
    """Counts literals in the order of the skeleton."""
    invars: list[Atom] = list(eqn.invars)
    changed = False
    for k in liftable(eqn):
        var = replacement.get(next(counter))
        if var is not None:
            invars[k] = var
            changed = True
    blocks = tuple([_in_block(b, counter, replacement) for b in eqn.blocks])
    return replace(eqn, invars=tuple(invars), blocks=blocks) if changed or eqn.blocks else eqn
