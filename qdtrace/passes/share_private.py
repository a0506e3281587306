"""Gives private arrays that are never live at the same time the same memory.

Before:  a: cell[f32,100] = cell[...]          After:  s: cell[f32,120] = cell[...]
         ... a is written, then read ...               ... s is written, then read ...
         b: cell[f32,10x12] = cell[...]                ... s is written and read, at 12 * j + k for j k ...
         ... b is written, then read ...

A private array is undefined until it is stored to, so between its last use and the next store to memory nobody can tell
what it holds. The live range of an array reaches from its first to its last use in the order of equations. A use in
a loop that does not contain the allocation counts for the whole loop. Arrays of one dtype with disjoint live ranges
share a slot as large as the largest; if their shapes differ, the slot has one axis, and indices are flattened.

The last of the passes, when loops are unrolled and values are in registers: it also refuses tasks whose iterations need
more private memory than the machine has. Small arrays stay, as LLVM keeps many of them in registers.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.machine import CPU
from qdtrace.errors import UnsupportedError
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.builder import Builder
from qdtrace.ir.memory import first_index
from qdtrace.ir.primitives import CELL
from qdtrace.ir.program import Eqn, Literal, Var, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.walk import private_bytes, walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.builder import BlockBuilder
    from qdtrace.ir.program import Atom, Block, Program, Task

LARGE = 256
"""Smallest array, in bytes, that may share its memory."""


@frozen
class SharePrivate(TaskPass):
    """Gives private arrays with disjoint live ranges the same memory.

    Raises UnsupportedError if an iteration needs more private memory than the machine allows.
    """

    name: ClassVar[str] = "share_private"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        """Returns the task with shared arrays, or the same object if none can share."""
        slots = _slots(_spans(task.body))
        shared = [slot for slot in slots if len(slot.arrays) > 1]
        made = _Sharing(shared).rebuild_task(task) if shared else task
        self._check(made)
        return made

    def _check(self, task: Task) -> None:
        held, limit = private_bytes(task.body.eqns), self.machine.reverse.lane_bytes
        if held <= limit:
            return
        largest = max((e for e in walk_eqns(task.body) if e.primitive is CELL), key=_nbytes)
        raise UnsupportedError(
            f"needs at most {limit} bytes of arrays private to an iteration at a time, got {held}, the largest of them "
            f"{ref_type(largest.outvar)}",
            loc=largest.loc or task.loc,
            help="keep the array in a buffer outside of the loop (qd.empty) and index it with the loop index",
        )


def _nbytes(cell: Eqn) -> int:
    return ref_type(cell.outvar).nbytes


@mutable(slots=True)
class _Span:
    """The live range of a private array, in positions of equations."""

    cell: Eqn
    depth: int
    """Number of loops around its allocation."""
    first: int = -1
    last: int = -1

    def add(self, first: int, last: int) -> None:
        """Widens the live range."""
        self.first = first if self.first < 0 else min(self.first, first)
        self.last = max(self.last, last)


def _spans(body: Block) -> list[_Span]:
    """Returns the live ranges of all large private arrays, in order of their first use."""
    spans: dict[Var, _Span] = {}
    for eqn, position, loops in _positions(body):
        if eqn.primitive is CELL:
            if _nbytes(eqn) >= LARGE:
                spans[eqn.outvar] = _Span(eqn, len(loops))
            continue
        for atom in eqn.invars:
            span = spans.get(atom) if isinstance(atom, Var) else None
            if span is not None:
                span.add(*(loops[span.depth] if len(loops) > span.depth else (position, position)))
    used = [s for s in spans.values() if s.first >= 0]
    return sorted(used, key=lambda s: s.first)


def _positions(body: Block) -> Iterator[tuple[Eqn, int, list[tuple[int, int]]]]:
    """Yields each equation with its position and the first and last position of each loop around it."""
    count = 0

    def walk(block: Block, loops: list[tuple[int, int]]) -> Iterator[tuple[Eqn, int, list[tuple[int, int]]]]:
        nonlocal count
        for eqn in block.eqns:
            count += 1
            yield eqn, count, loops
            if eqn.blocks:
                size = sum(1 for b in eqn.blocks for _ in walk_eqns(b))
                inside = [*loops, (count, count + size)] if eqn.primitive.loops else loops
                for inner in eqn.blocks:
                    yield from walk(inner, inside)

    yield from walk(body, [])


@mutable(slots=True)
class _Slot:
    """Memory that several arrays use one after the other."""

    dtype: DType
    size: int
    end: int
    """Last position in the live range of its latest array."""
    arrays: list[Eqn] = field(default_factory=list[Eqn])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all arrays if it is the same, else one axis."""
        shapes = {ref_type(a.outvar).shape for a in self.arrays}
        return shapes.pop() if len(shapes) == 1 else (self.size,)


def _slots(spans: list[_Span]) -> list[_Slot]:
    """Returns slots for all arrays; each array gets the free slot nearest to its size, or a new one."""
    slots: list[_Slot] = []
    for span in spans:
        kind = ref_type(span.cell.outvar)
        free = [s for s in slots if s.dtype is kind.dtype and s.end < span.first]
        slot = min(free, key=lambda s: abs(s.size - kind.size), default=None)
        if slot is None:
            slot = _Slot(kind.dtype, kind.size, 0)
            slots.append(slot)
        slot.size, slot.end = max(slot.size, kind.size), span.last
        slot.arrays.append(span.cell)
    return slots


class _Sharing(Rebuilder):
    def __init__(self, slots: list[_Slot]) -> None:
        super().__init__()
        self.slots = slots
        self.of = {cell.outvar: slot for slot in slots for cell in slot.arrays}
        self.memory: dict[int, Var] = {}
        self.places: dict[tuple[str, Atom, Atom], tuple[BlockBuilder, Var]] = {}
        """Parts of indices, with the block where each is: accesses of a block share them."""

    def rebuild_task(self, task: Task) -> Task:
        """Returns the task with the slots allocated first in its body."""
        front = Builder()
        for slot in self.slots:
            front.loc = slot.arrays[0].loc
            self.memory[id(slot)] = front.cell(slot.dtype, slot.shape, "shared")
        body = self.rebuild_block(task.body)
        return task.rebuilt(body.rebuilt((*front.current.eqns, *body.eqns), body.results, body.params))

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; allocations of shared arrays are dropped, and accesses to them go to the slot."""
        ref = eqn.invars[0] if eqn.invars else None
        slot = self.of.get(ref) if isinstance(ref, Var) else None
        if eqn.outvars and eqn.outvars[0] in self.of:
            return
        if slot is None or not isinstance(ref, Var):
            super().visit(eqn)
            return
        self.loc = eqn.loc
        place, operands = first_index(eqn), self.atoms(eqn.invars)
        indices = operands[place:]
        shape = ref_type(ref).shape
        if shape != slot.shape:
            indices = (self._flat(indices, shape),)
        self.append(eqn.rebuilt((self.memory[id(slot)], *operands[1:place], *indices), (), self.bind(eqn.outvars)))

    def _flat(self, indices: tuple[Atom, ...], shape: tuple[int, ...]) -> Atom:
        """Emits the row-major position of an element."""
        known, flat, stride = 0, None, prod(shape)
        for index, extent in zip(indices, shape, strict=True):
            stride //= extent
            if isinstance(index, Literal):
                known += int(index.value) * stride
                continue
            part = self.convert(index, DType.i32)
            part = part if stride == 1 else self._place("mul", part, literal(stride, DType.i32))
            flat = part if flat is None else self._place("add", flat, part)
        if flat is None or known:
            constant = literal(known, DType.i32)
            return constant if flat is None else self._place("add", flat, constant)
        return flat

    def _place(self, name: str, a: Atom, b: Atom) -> Atom:
        """Emits a part of an index, unless a block that is still open has it."""
        block, found = self.places.get((name, a, b), (None, None))
        if found is None or not any(block is opened for opened in self.stack):
            found = self(name, a, b)
            self.places[name, a, b] = self.current, found
        return found
