"""Memory traffic: the bytes that a task must move between memory and the core, counted from the graph.

Each element of a reference that a task loads is read once and each that it stores is written once, however often it
does so: this is what a cache that holds everything of a task would move, and the least that any code for the task can.
A load of what the same iteration has stored is free. An accumulation reads and writes. Private memory counts nothing.

    range_for i in 0:i32 : 1000:i32
      a: f32 = load x i              -- 4000 bytes read
      b: f32 = load y 0:i32          -- 4 bytes read
      c: f32 = mul a b
      store x c i                    -- 4000 bytes written
      d: f32 = load x i              -- nothing

What is conditional or depends on data (`load x k` with `k` loaded) counts as often as it may happen, with each element
of the reference once: then the count is the most, and `exact` is False.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.footprint import Elements, IndexSets
from qdtrace.analysis.index.trips import task_values, trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import FOR, LOAD, WHILE
from qdtrace.ir.program import Var, is_local, ref_type
from qdtrace.ir.types import RefType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.ir.program import Block, Eqn, Program, Task

    Key = tuple[object, ...]


@frozen(slots=True)
class Traffic:
    """Bytes read from and written to memory."""

    read: int = 0
    written: int = 0
    exact: bool = True
    """False if an access is conditional or data-dependent: then the bytes are upper bounds."""

    @property
    def total(self) -> int:
        """The sum of bytes read and written."""
        return self.read + self.written

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.written + other.written, self.exact and other.exact)

    def __str__(self) -> str:
        return f"{'' if self.exact else 'at most '}{self.read} bytes read, {self.written} written"


NOTHING = Traffic()


def program_traffic(program: Program) -> Traffic:
    """Returns the bytes that all tasks of a program move one by one, and those of buffers cleared before them."""
    cleared = sum(ref_type(v).nbytes for v in program.initial)
    return sum(map(task_traffic, program.tasks), Traffic(0, cleared))


def task_traffic(task: Task) -> Traffic:
    """Returns the bytes that a task moves."""
    return sum(reference_traffic(task).values(), NOTHING)


def reference_traffic(task: Task) -> dict[Var, Traffic]:
    """Returns the bytes that a task moves, by reference."""
    count = _Count(task)
    found: dict[Var, Traffic] = {}
    for ref in dict.fromkeys((*count.read, *count.written)):
        low, high = count.read[ref].count() if ref in count.read else (0, 0)
        least, most = count.written[ref].count() if ref in count.written else (0, 0)
        size = ref.dtype.itemsize
        found[ref] = Traffic(high * size, most * size, low == high and least == most)
    return found


class _Count:
    """One walk over a task that collects what it touches."""

    def __init__(self, task: Task) -> None:
        self.forms = AffineForms(task)
        self.sets = IndexSets(task, self.forms)
        self.read: dict[Var, Elements] = {}
        self.written: dict[Var, Elements] = {}
        self.stored: dict[Key, None] = {}
        """Elements that the iteration has surely stored before the current place of the walk."""
        self.eqns(task.head, True, 1)
        values = task_values(task)
        self.block(task.body, values is not None, None if values is None else values.count)

    def block(self, block: Block, sure: bool, times: int | None) -> None:
        """Counts a block that runs `times` times (None: unknown); `sure` if it runs whenever its task does."""
        if times == 0:
            return
        before = len(self.stored)
        self.eqns(block.eqns, sure, times)
        while len(self.stored) > before:
            self.stored.popitem()

    def eqns(self, eqns: Iterable[Eqn], sure: bool, times: int | None) -> None:
        for eqn in eqns:
            prim = eqn.primitive
            if prim is FOR:
                count = trip_count(*eqn.bounds)
                inner = None if count is None or times is None else count * times
                self.block(eqn.blocks[0], sure and count is not None, 0 if count == 0 else inner)
            elif prim is WHILE:
                self.block(eqn.blocks[0], sure, None)
                self.block(eqn.blocks[1], False, None)
            elif eqn.blocks:
                for block in eqn.blocks:
                    self.block(block, False, times)
            elif eqn.primitive.values is not None:
                self.access(eqn, sure, times)

    def access(self, eqn: Eqn, sure: bool, times: int | None) -> None:
        ref = eqn.invars[0]
        if not isinstance(ref, Var) or not isinstance(ref.type, RefType) or is_local(ref):
            return
        indices = indices_of(eqn)
        key = (ref, *(self.forms.of(i).key for i in indices))
        writes = eqn.primitive is not LOAD
        known = key in self.stored
        if known and not writes:
            return
        box = self.sets.box(ref.type, indices, times)
        if eqn.primitive.reads and not known:
            self.read.setdefault(ref, Elements(ref.type)).add(box, sure)
        if writes:
            self.written.setdefault(ref, Elements(ref.type)).add(box, sure)
            self.stored.setdefault(key)
