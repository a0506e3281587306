"""The layout of a call: a program's references are operands, results, or scratch.

A parameter that no task writes is read in place. One that is written is a result aliased to its operand: XLA gives
both the same memory if the operand is dead or donated, and copies it first if it is not. A call need not alias one that
a task renews (`plan.renewal`): until that task has run, its content is in the operand. Buffers that are not returned
share one scratch result; two whose live ranges do not overlap share memory, which saves page faults too. So a buffer
with an initial value is cleared right before the first task that uses it, when the memory is its own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from lowering.plan.renewal import large, renewals, sources_of
from lowering.tables import CACHE_LINE, round_up
from qdtrace.frozen import frozen
from qdtrace.ir.faults import checks_of, fault_of, largest_private, must_run, told_in_a_word
from qdtrace.ir.memory import written
from qdtrace.ir.primitives import BOUND, CHECK
from qdtrace.ir.program import Program, Var, ref_type
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from qdtrace.ir.program import Eqn, Literal


@frozen
class Place:
    """A piece of memory of the call: a slot (operands, then results), and a byte offset into it."""

    slot: int
    offset: int = 0


@frozen
class Clear:
    """Memory to fill with one value, before a task."""

    before: int
    """Number of the task; the number of tasks for memory that no task uses."""
    place: Place
    nbytes: int
    value: bytes
    """Bytes of one element."""


@frozen
class Layout:
    """The places of a program's references among operands and results of the XLA call."""

    program: Program
    written: tuple[Var, ...]
    """References that are XLA results, in order (the scratch result, if any, comes after them)."""
    aliases: Mapping[int, int]
    """Maps the number of an operand to that of the result in its memory."""
    places: Mapping[Var, Place]
    scratch_bytes: int
    task_refs: tuple[tuple[Var, ...], ...]
    """References of each task, in the order in which its code takes them."""
    clears: tuple[Clear, ...] = ()
    """The fills, in the order of the tasks that they precede."""
    constants: bytes = b""
    """Content of the program's constant memory, which is the slot after all others, or the last operand."""
    passes_constants: bool = False
    """True if the constants are an operand, as on devices, which cannot read the handler's memory."""
    faults: tuple[tuple[str, ...], ...] = ()
    """The messages of each task's checks, as C formats with `%lld`, `%llu` and `%g` for what they tell."""
    largest: tuple[str, ...] = ()
    """Texts that name, for each task, the line whose private arrays take most, for errors of allocation."""
    renewed: frozenset[int] = frozenset()
    """Numbers of operands that a call may leave as they are: until a task renews them, tasks read them there."""
    task_places: tuple[tuple[Place, ...], ...] = ()
    """Places of the references of each task, then those of what it loads of references that it renews."""
    must_run: bool = False
    """True if the call has checks for which XLA must not drop it (`ir.faults.must_run`)."""

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The texts of each task's errors: of a failed allocation, then of its checks, which count from 1."""
        return tuple((largest, *faults) for largest, faults in zip(self.largest, self.faults, strict=True))

    @property
    def operand_count(self) -> int:
        """The number of operands of the XLA call."""
        return len(self.program.params) + self.passes_constants

    @property
    def slot_count(self) -> int:
        """The number of operands and results of the XLA call."""
        return self.scratch_slot + bool(self.scratch_bytes)

    @property
    def scratch_slot(self) -> int:
        """The slot of the scratch result, which is the last."""
        return self.operand_count + len(self.written)


def plan_layout(
    program: Program,
    constants: Mapping[Var, np.ndarray] | None = None,
    *,
    pass_constants: bool = False,
    elsewhere: Mapping[Var, Place] | None = None,
    renews: bool = False,
) -> Layout:
    """Assigns a place to every reference of the program.

    `constants` are references with known content, in memory of the program or passed as an operand, as on devices,
    whose checks tell one number; `elsewhere` has the places of buffers that need no scratch. `renews`: the code of
    tasks takes two pointers of references that it loads and renews.
    """
    elsewhere = dict(elsewhere or {})
    content, inside = _constants(constants or {})
    passes = pass_constants and bool(content)
    operands = len(program.params) + passes
    eqns = [[*task.all_eqns] for task in program.tasks]
    stored = set(written(chain.from_iterable(eqns)))
    params = {v: k for k, v in enumerate(program.params)}
    returned = [v for v in dict.fromkeys(program.results) if v not in params or v in stored]
    copied = [v for v in program.params if v in stored and v not in returned]
    made = (*returned, *copied)
    results = {v: k for k, v in enumerate(made)}
    aliases = {params[v]: k for v, k in results.items() if v in params}
    places = {v: Place(k) for v, k in params.items()}
    places |= {v: Place(operands + k) for v, k in results.items()}
    refs = tuple(tuple(task.refs) for task in program.tasks)
    kept = [b for b in program.buffers if b not in results and b not in elsewhere]
    offsets, scratch_bytes = pack_buffers(refs, kept)
    places |= {v: Place(operands + len(made), offset) for v, offset in offsets.items()} | elsewhere
    faults = tuple(tuple(_fault_text(e, pass_constants) for e in checks_of(each)) for each in eqns)
    bare = aliases and len(made) > 1  # see Note [Never a bare tuple]
    if bare or (any(faults) and not made):  # XLA drops a call without results
        scratch_bytes = max(scratch_bytes, 1)
    own = len(params) if passes else operands + len(made) + bool(scratch_bytes)
    places |= {v: Place(own, offset) for v, offset in inside.items()}
    clears = _clears(program.initial, refs, places)
    runs = any(faults) and must_run(program, stored)
    largest = tuple([largest_private(walk_eqns(task.body)) for task in program.tasks])
    worth = [large(used) if renews else [] for used in refs]
    first = renewals(program) if any(worth) else {}
    sources = [sources_of(task, some) if some else () for task, some in zip(program.tasks, worth, strict=True)]
    renewed = frozenset(params[v] for v in first)

    def places_of(k: int) -> tuple[Place, ...]:
        old = {v: Place(params[v]) for v, number in first.items() if k <= number}
        now = {**places, **{v: old[v] for v in old if k < first[v]}}
        return (*(now[v] for v in refs[k]), *(old.get(v, places[v]) for v in sources[k]))

    tasks = tuple(map(places_of, range(len(program.tasks))))
    return Layout(
        program, made, aliases, places, scratch_bytes, refs, clears, content, passes, faults, largest,
        renewed, tasks, runs,
    )  # fmt: skip


def with_kernel_scratch(layout: Layout, nbytes: int) -> tuple[Layout, Place]:
    """Returns the layout with more scratch, and its place: memory that the kernels of one task share, and those of the
    next reuse. The constants must be an operand."""
    offset = round_up(layout.scratch_bytes, CACHE_LINE)
    place = Place(layout.scratch_slot, offset)
    return (replace(layout, scratch_bytes=offset + nbytes) if nbytes else layout), place


def _fault_text(eqn: Eqn, in_a_word: bool) -> str:
    told = eqn.invars[eqn.primitive is not BOUND :]
    if in_a_word and eqn.primitive is CHECK:
        number = told_in_a_word(eqn)
        told = () if number is None else told[number : number + 1]
    holes = [chr(0xD800 + k) for k in range(len(told))]  # no message has halves of a surrogate pair
    text = str(fault_of(eqn, *holes, in_a_word=in_a_word)).replace("%", "%%")
    for hole, atom in zip(holes, told, strict=True):
        text = text.replace(hole, "%g" if atom.dtype.is_float else "%lld" if atom.dtype.is_signed else "%llu")
    return text


def _constants(constants: Mapping[Var, np.ndarray]) -> tuple[bytes, dict[Var, int]]:
    """Returns the contents of the constants, concatenated, and the offset of each."""
    offsets, memory = dict[Var, int](), bytearray()
    for var, content in constants.items():
        memory += bytes(-len(memory) % CACHE_LINE)
        offsets[var] = len(memory)
        memory += content.tobytes()
    return bytes(memory), offsets


def _clears(
    initial: Mapping[Var, Literal], refs: Sequence[Sequence[Var]], places: Mapping[Var, Place]
) -> tuple[Clear, ...]:
    """Returns a clear for each buffer with an initial value that some task uses or that is returned."""
    first: dict[Var, int] = {}
    for k, used in enumerate(refs):
        for var in used:
            first.setdefault(var, k)
    clears = [
        Clear(first.get(var, len(refs)), places[var], ref_type(var).nbytes, value.value.tobytes())
        for var, value in initial.items()
        if var in places and ref_type(var).nbytes
    ]
    return tuple(sorted(clears, key=lambda clear: clear.before))


def _lifetimes(refs: Sequence[Sequence[Var]], buffers: Iterable[Var]) -> dict[Var, tuple[int, int]]:
    """Returns the first and last task that uses each buffer; unused ones are absent."""
    wanted = set(buffers)
    spans: dict[Var, tuple[int, int]] = {}
    for k, used in enumerate(refs):
        for var in used:
            if var in wanted:
                spans[var] = (spans.get(var, (k, k))[0], k)
    return spans


def pack_buffers(refs: Sequence[Sequence[Var]], buffers: Iterable[Var]) -> tuple[dict[Var, int], int]:
    """Returns byte offsets for buffers that tasks with these references use, and the bytes needed.

    Buffers whose lifetimes do not overlap share memory; they are placed largest first, by first fit.
    """
    spans = _lifetimes(refs, buffers)
    placed: list[tuple[int, int, tuple[int, int]]] = []
    offsets: dict[Var, int] = {}
    for var in sorted(spans, key=lambda v: -ref_type(v).nbytes):
        first, last = spans[var]
        size = round_up(ref_type(var).nbytes, CACHE_LINE)
        offset = 0
        for low, high, (other_first, other_last) in sorted(placed):
            overlaps = first <= other_last and other_first <= last
            if overlaps and low < offset + size and offset < high:
                offset = high
        offsets[var] = offset
        placed.append((offset, offset + size, spans[var]))
    return offsets, max((high for _, high, _ in placed), default=0)


# Note [Never a bare tuple]
#
# If a `lax.while_loop` body is nothing but one call, XLA makes the call itself, not a tuple of its results, the root of
# the loop's body. Its search for loop invariants then compares operand k of that root with carry k, finds them equal,
# and hoists the call out of the loop: the loop never ends, or returns the result of one iteration. One more result, of
# one byte, keeps the call from being the root.
