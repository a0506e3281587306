"""Finds the axes of a program's arrays that are lanes, so that several devices may each run a share of them.

    range_for i in 0:n          the lane is `i`              load x i 2        `x` has the lanes along its axis 0
    range_for f in 0:n*m        the lane is `f / m`          store y v 2 i     `y` has them along its axis 1
                                                             accum[add] s v    `s` has a share of the sum

A share of the lanes is the same program over arrays that are shorter along these axes. It is right where nothing asks
which lane it is: the number of a lane is the index of an array along its axis of lanes, and nothing else. What is read
elsewhere is whole on every device; what lanes accumulate elsewhere is combined afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.batching.digits import Digit, Lanes, digits_of, tells_iteration
from qdtrace.frozen import frozen
from qdtrace.ir.faults import ITERATION, OF_SHARE
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, DIV, REM
from qdtrace.ir.program import Literal, Var, is_global, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType, RefType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.ir.program import Eqn, Program, Task


@frozen(eq=False)
class Shares:
    """The lanes of a program."""

    program: Program
    count: int
    """Number of lanes."""
    axes: Mapping[Var, int]
    """Axis of the lanes, for each reference that has one."""
    sums: Mapping[Var, str]
    """Operation by which shares of a reference are combined."""
    lanes: Mapping[int, Lanes]
    """The tasks that run lanes, by number; each device runs all of the others."""

    def share(self, parts: int) -> Program:
        """Returns the program for the lanes of one of so many equal parts."""
        program = self.program
        assert self.count % parts == 0
        new: dict[Var, Var] = {}
        for v, axis in self.axes.items():
            shape = ref_type(v).shape
            new[v] = Var(RefType(v.dtype, (*shape[:axis], self.count // parts, *shape[axis + 1 :])), v.hint)
        tasks = list(program.tasks)
        for k, task in enumerate(tasks):
            own = self.lanes.get(k)
            tasks[k] = Rebuilder(dict(new)).rebuild_task(task) if own is None else Sharer(new, own, parts).task(task)
        changed = {new.get(v, v): new.get(p, p) for v, p in program.donated_from.items()}
        return replace(
            program,
            params=tuple(new.get(v, v) for v in program.params),
            buffers=tuple(new.get(v, v) for v in program.buffers),
            tasks=tuple(tasks),
            results=tuple(new.get(v, v) for v in program.results),
            initial={new.get(v, v): value for v, value in program.initial.items()},
            donated_from={v: p for v, p in changed.items() if v.type == p.type},
            limits={},
        )


class Sharer(Rebuilder):
    """Rebuilds a task for one of equal parts of its lanes."""

    def __init__(self, new: Mapping[Var, Var], lanes: Lanes, parts: int) -> None:
        super().__init__(dict(new))
        self.lanes = lanes
        self.parts = parts

    def task(self, task: Task) -> Task:
        """Returns the task with fewer iterations."""
        assert isinstance(task.stop, Literal)
        made = self.rebuild_task(task)
        return replace(made, stop=literal(int(task.stop.value) // self.parts, task.stop.dtype))

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; one that takes a digit of the index does so for fewer lanes."""
        digits = self.lanes.digits
        if eqn.primitive in (DIV, REM) and eqn.outvar in digits:
            whole, by = eqn.invars
            assert isinstance(whole, Var)
            before, after = (digits[v].shared(self.lanes.lane, self.parts) for v in (whole, eqn.outvar))
            count = after.stride // before.stride if eqn.primitive is DIV else after.extent
            eqn = eqn.rebuilt((whole, literal(count, by.dtype)))
        elif tells_iteration(eqn) and self.lanes.is_tied(eqn.invars[1]):
            told = str(eqn.params["told"]).replace(ITERATION, ITERATION + OF_SHARE, 1)
            eqn = replace(eqn, params={**eqn.params, "told": told})
        super().visit(eqn)


def shares_of(program: Program) -> tuple[Shares, ...]:
    """Returns the ways to share out a program's lanes, each along other axes than all before it; first those lanes that
    most parameters and results have."""
    digits = [digits_of(task) for task in program.tasks]
    choices = {(d.extent, outer): None for found in digits for d in found.values() for outer in (True, False)}
    made = [_shares(program, digits, count, outer) for count, outer in choices if count > 1]
    ends = (*program.params, *program.results)
    taken: set[tuple[Var, int]] = set()
    found: list[Shares] = []
    for one in sorted(filter(None, made), key=lambda s: -sum(v in s.axes for v in ends)):
        if taken.isdisjoint(one.axes.items()):
            taken.update(one.axes.items())
            found.append(one)
    return tuple(found)


def _shares(program: Program, digits: Sequence[Mapping[Var, Digit]], count: int, outer: bool) -> Shares | None:
    """Returns so many lanes of a program, or None if they are not to be shared out.

    Where two digits of a task's index have so many values, the lane is the outer or the inner one.
    """
    lanes: dict[int, Lanes] = {}
    for number, (task, found) in enumerate(zip(program.tasks, digits, strict=True)):
        strides = [d.stride for d in found.values() if d.extent == count]
        if strides:
            own = Lanes(Digit(max(strides) if outer else min(strides), count), found)
            if own.are_shared_by(task):
                lanes[number] = own
    accesses: dict[Var, list[tuple[bool, Eqn, list[int]]]] = {}
    for number, task in enumerate(program.tasks):
        for eqn in task.all_eqns:
            if eqn.primitive.is_access and is_global(eqn.invars[0]):
                own = lanes.get(number)
                along = [] if own is None else [k for k, v in enumerate(indices_of(eqn)) if own.is_lane(v)]
                accesses.setdefault(reference(eqn), []).append((own is not None, eqn, along))
    axes: dict[Var, int] = {}
    sums: dict[Var, str] = {}
    for v in dict.fromkeys((*program.params, *program.buffers)):
        shape = ref_type(v).shape
        found = accesses.get(v, [])
        if not found:
            if count in shape:
                axes[v] = shape.index(count)
        elif any(along for _, _, along in found):
            axis = found[0][2][:1]
            if any(along != axis for _, _, along in found) or shape[axis[0]] != count:
                return None
            axes[v] = axis[0]
        elif any(shared and eqn.primitive.writes for shared, eqn, _ in found):
            op = _combination(program, v, [eqn for _, eqn, _ in found])
            if op is None or not all(shared for shared, _, _ in found):
                return None
            sums[v] = op
    if not lanes or not any(v in axes for v in (*program.params, *program.results)):
        return None
    return Shares(program, count, axes, sums, lanes)


def _combination(program: Program, v: Var, accesses: list[Eqn]) -> str | None:
    """Returns the operation that combines shares of a reference; None if the shares are not the whole."""
    ops = {eqn.params["op"] if eqn.primitive is ACCUM else None for eqn in accesses}
    op = ops.pop()
    if ops:
        return None
    if op == "add" and v.dtype is not DType.bool:  # each device begins with the initial value
        initial = program.initial.get(v)
        return op if initial is not None and initial.value == 0 else None
    return op if op in ("max", "min") and v.dtype.is_integer else None  # collectives may lose a NaN
