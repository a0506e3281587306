"""Values of an iteration for Python: the primitive `tell`, made of prints and callbacks.

    tell[site=3, number=0] v w                  as imported, and what the interpreter runs at once
    tell[site=3, number=0] told ring i v w      with memory for its records: `given_memory`

A site has the function that is called with the values. It is in a table of the process; graphs refer to its position
there, machine code does not: `with_records` turns the second form into a count in `told`, and a record in `ring`:

    number | the index of the iteration, lower and upper half | values, of 64 bits as two words

so batching, passes, emitters and caches see accesses to memory only. A record without room is only counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.frozen import frozen
from qdtrace.ir.builder import ref_var
from qdtrace.ir.primitives import TELL
from qdtrace.ir.program import literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType, RefType

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn, Program, Task, Var

I32, I64, U32, U64 = DType.i32, DType.i64, DType.u32, DType.u64
HEAD = 3
"""Number of words of a record before its values."""
MOST_TOLD = 1 << 30
"""Approximate limit of the count of records."""


@frozen(eq=False)
class Site:
    """A print or a callback in the user's program."""

    call: Callable[[Sequence[np.ndarray]], None]
    """Function of the user that takes an array for each operand."""
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    is_print: bool = True
    needs_debug: bool = False
    """True if it waits for somebody at the keyboard, so that it cannot run after the call."""

    def run(self, scalars: Iterable[Any]) -> None:
        """Calls `call` with the values of one iteration, given element by element."""
        left = iter(scalars)
        arrays: list[np.ndarray] = []
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            array = np.empty(shape, dtype.numpy)
            for at in np.ndindex(*shape):
                array[at] = next(left)
            arrays.append(array)
        self.call(arrays)

    def elements(self) -> Iterator[DType]:
        """Yields the dtype of each value of a record, in order."""
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            yield from [dtype] * int(np.prod(shape, dtype=np.int64))

    def run_record(self, words: np.ndarray) -> None:
        """Calls `call` with the values of a record, given its words after the head."""
        values: list[Any] = []
        at = 0
        for dtype in self.elements():
            count = _words_of(dtype)
            raw = np.ascontiguousarray(words[at : at + count])
            values.append(raw.view(_kept_as(dtype).numpy)[0].astype(dtype.numpy))
            at += count
        self.run(values)


sites: list[Site] = []
"""All sites of the process; graphs refer to one by its position here."""
_places: dict[Hashable, int] = {}


def place_of(key: Hashable, make: Callable[[], Site]) -> int:
    """Returns the position of the site with that key, which is made if there is none."""
    place = _places.get(key)
    if place is None:
        sites.append(make())
        place = _places[key] = len(sites) - 1
    return place


def tells_in(program: Program) -> list[Eqn]:
    """Returns the `tell` equations of a program, in order."""
    return [e for e in program.all_eqns if e.primitive is TELL]


@frozen
class Records:
    """The memory of a task's records: their count and a ring of their words."""

    told: Var
    ring: Var
    sites: tuple[int, ...]
    """Sites of the task; records refer to one by its position here."""


def given_memory(program: Program, lines: int) -> tuple[Program, list[Records]]:
    """Returns the program with memory for `lines` records of each task that tells, among its results, and a list."""
    found: list[Records] = []

    def changed(task: Task) -> Task:
        places = dict.fromkeys(int(e.params["site"]) for e in task.all_eqns if e.primitive is TELL)
        if not places:
            return task
        width = HEAD + max(sum(map(_words_of, sites[k].elements())) for k in places)
        made = Records(ref_var(I32, (), "told"), ref_var(U32, (max(lines, 1), width), "ring"), tuple(places))
        found.append(made)
        return _GivesMemory(made, literal(0, I32) if task.index is None else task.index).rebuild_task(task)

    program = program.map_tasks(changed)
    memory = [v for r in found for v in (r.told, r.ring)]
    initial = {**program.initial, **{r.told: literal(0, I32) for r in found}}
    made = replace(
        program, buffers=(*program.buffers, *memory), results=(*program.results, *memory), initial=initial
    )
    return (made if found else program), found


class _GivesMemory(Rebuilder):
    def __init__(self, records: Records, index: Atom) -> None:
        super().__init__()
        self.records = records
        self.index = index

    def visit(self, eqn: Eqn) -> None:
        if eqn.primitive is not TELL:
            super().visit(eqn)
            return
        r = self.records
        number = r.sites.index(int(eqn.params["site"]))
        invars = (r.told, r.ring, self.index, *self.atoms(eqn.invars))
        self.append(replace(eqn, invars=invars, params={**eqn.params, "number": number}))


def of_iteration(eqn: Eqn, index: Atom) -> Eqn:
    """Returns the equation as told by another iteration; one without memory for records has no index to replace."""
    return replace(eqn, invars=(*eqn.invars[:2], index, *eqn.invars[3:])) if _has_memory(eqn) else eqn


def without_tells(program: Program) -> Program:
    """Returns the program without `tell` equations: code that is run again for a derivative has told already."""
    return _rebuilt(program, records=False)


def with_records(program: Program) -> Program:
    """Returns the program with each `tell` as stores of its record, or dropped if it has no memory for records."""
    return _rebuilt(program, records=True)


def without_memory(program: Program) -> Eqn | None:
    """Returns the first `tell` equation without memory for records, or None if all have it."""
    return next((e for e in tells_in(program) if not _has_memory(e)), None)


def _rebuilt(program: Program, *, records: bool) -> Program:
    if not tells_in(program):
        return program
    return program.map_tasks(lambda task: _Records(records).rebuild_task(task))


def _has_memory(eqn: Eqn) -> bool:
    return bool(eqn.invars) and isinstance(eqn.invars[0].type, RefType)


class _Records(Rebuilder):
    def __init__(self, records: bool) -> None:
        super().__init__()
        self.records = records

    def visit(self, eqn: Eqn) -> None:
        if eqn.primitive is not TELL:
            super().visit(eqn)
        elif self.records and _has_memory(eqn):
            told, ring, index, *values = self.atoms(eqn.invars)
            _record(self, eqn, told, ring, index, values)


def _record(b: Builder, eqn: Eqn, told: Any, ring: Any, index: Atom, values: Sequence[Atom]) -> None:
    """Emits code that counts a record, and stores it if there is room."""
    b.loc = eqn.loc
    with b.block() as counted:
        place = b("atomic", told, literal(1, I32), op="add")
        with b.block() as kept:
            words = [literal(int(eqn.params["number"]), U32), *_index_words(b, index)]
            for value in values:
                words += _words(b, value)
            for k, word in enumerate(words):
                b.store(ring, word, place, literal(k, I32))
        with b.block() as full:
            pass
        lines = ref_type(ring).shape[0]
        b.emit("if", b("lt", place, literal(lines, I32)), blocks=(kept.close(), full.close()))
    with b.block() as many:
        pass
    room = b("lt", b.load(told), literal(MOST_TOLD, I32))
    b.emit("if", room, blocks=(counted.close(), many.close()), rare=True)


def _index_words(b: Builder, index: Atom) -> list[Atom]:
    """Emits the index as two words; an index of 32 bits is extended without a value of 64 bits."""
    if index.dtype is I64:
        return _words(b, index)
    return [*_words(b, index), *_words(b, b("shift_right_arithmetic", index, literal(31, I32)))]


def _kept_as(dtype: DType) -> DType:
    """Returns the dtype of 32 or 64 bits that records keep a value in."""
    if dtype.bits >= 32:
        return dtype
    return DType.f32 if dtype.is_float else I32 if dtype.is_signed else U32


def _words_of(dtype: DType) -> int:
    return 2 if dtype.bits == 64 else 1


def _words(b: Builder, value: Atom) -> list[Atom]:
    """Emits a value as words, the lower half first, and returns them."""
    value = b.convert(value, _kept_as(value.dtype))
    bits = U64 if value.dtype.bits == 64 else U32
    value = value if value.dtype is bits else b("bitcast", value, dtype=bits)
    if bits is U32:
        return [value]
    upper = b("shift_right_logical", value, literal(32, U64))
    return [b("convert", value, dtype=U32), b("convert", upper, dtype=U32)]
