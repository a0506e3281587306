"""Tasks that accumulate into large arrays: the choice between threads' copies and locks.

On one thread neither is needed. On more, the loop is cut into one piece per thread if clearing and merging copies costs
less than locks: the first piece accumulates into the arrays themselves, each other one into copies of its own, which
are merged in the order of the pieces. Otherwise threads use locked instructions. The code of a task has both variants;
the word after its references selects one.

A task whose sums must not depend on threads (`TASK.pieces`) has as many pieces as its bounds and copies say, which any
number of threads runs, or one, without locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import MEMCPY, Fields, function
from lowering.runtime.clear import clear_bytes, pattern_of
from lowering.runtime.faults import FREE, MALLOC
from lowering.runtime.large_pages import LARGE_BYTES, advise_large
from lowering.runtime.parallel import (
    COMBINE,
    after_cache_line,
    ceil_div,
    chunk_runner,
    chunk_size,
    interruptible,
    qd_parallel_for,
    qd_parallel_reduce,
    run_shared,
    usable_threads,
)
from lowering.tables import (
    CACHE_LINE,
    COPY,
    FAILED,
    FAILURE,
    FIELD,
    FILL,
    JOB,
    MERGE,
    NO_MEMORY,
    TASK,
    WORDS_AFTER_REFS,
)
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from lowering.llvm.host import I64, Code, Ptr

MOST_PIECES = 16
MOST_COPY_BYTES = 1 << 26
"""The most bytes of all copies, where there are several."""
MOST_ONE_COPY_BYTES = 1 << 29
"""The most bytes of the copy where one is enough: the second of two threads has it."""
UPDATE_BYTES = 16
"""Bytes of copies that one accumulation without a lock pays for."""
PIECE_BYTES = 4
"""The same where pieces are more than threads: two of them share the work, and all have copies."""
MERGE_GRAIN = 1 << 11
"""The fewest cache lines of a chunk of the merge for another thread."""


@frozen
class CopyRecord:
    """One array among the copies of a piece."""

    ref: int
    """Number among the references of the task."""
    offset: int
    nbytes: int
    neutral: bytes
    """Bytes of the operation's identity."""

    @property
    def constant(self) -> str:
        """The array's record in the handler's table."""
        return COPY.constant(ref=self.ref, offset=self.offset, bytes=self.nbytes, pattern=pattern_of(self.neutral))


@function()
def run_piece(c: Code, job_at: Ptr, piece: I64, end: I64, unused: Ptr) -> None:
    """Runs a piece: its chunks one after another, accumulated into the arrays (piece 0) or into its own copies."""
    job, fill = Fields(JOB, job_at), c.record(FILL)
    words = job.ref_count + WORDS_AFTER_REFS
    refs = c.array("ptr", words)
    MEMCPY(c, refs, job.shared_refs, words * FIELD, 0)
    own = job.copies.at((piece - 1) * job.copy_bytes)
    with c.each(0, c.select(piece.equals(0), 0, job.copied)) as k:
        copy = Fields(COPY, job.table).row(k)
        data = own.at(copy.offset)
        refs.word(copy.ref).store(data, "ptr")
        fill.put(data=data, pattern=copy.pattern)
        clear_bytes(c, fill, 0, copy.bytes, None)
    run, chunks, pieces = chunk_runner(c, job, job.task, refs), job.chunks, job.pieces
    first = piece * chunks
    with c.each(first // pieces, (first + chunks) // pieces) as k:
        run(k)


@function()
def pieces_of(c: Code, frame: Ptr, task_at: Ptr, n: I64, threads: I64) -> I64:
    """Returns how many pieces a loop of `n` iterations has: 1 without locks on this thread, 0 when locks cost less than
    copies."""
    task = Fields(TASK, task_at)
    grains, fixed = n // task.grain, task.pieces
    c.give_if(grains.below(2), 1)
    room = c.smaller(n * task.updates * PIECE_BYTES, MOST_COPY_BYTES) // c.larger(task.copy_bytes, 1)
    c.give_if(fixed > 0, c.smaller(c.smaller(fixed, grains), room + 1))
    pieces = c.smaller(usable_threads(c, frame, threads), grains)
    c.give_if(pieces < 2, 1)
    copy_bytes, most = task.copy_bytes, c.select(pieces.equals(2), MOST_ONE_COPY_BYTES, MOST_COPY_BYTES)
    cheap = (pieces - 1) * copy_bytes <= c.smaller(n * task.updates * UPDATE_BYTES, most)
    return c.select(cheap & (pieces <= MOST_PIECES) & copy_bytes.differs(0), pieces, 0)


@function()
def run_loop(c: Code, frame: Ptr, task_at: Ptr, refs: Ptr, start: I64, stop: I64, threads: I64) -> None:
    """Runs the loop of a task in chunks."""
    task = Fields(TASK, task_at)
    loop, combine = (task.code, refs, start, stop, task.grain, task.lanes, threads), task.combine
    with c.when(combine.differs(None)):
        qd_parallel_reduce(c, frame, *loop, combine, task.slot_bytes, task.most_slots)
        c.give()
    qd_parallel_for(c, frame, *loop)


@function()
def qd_parallel_update(c: Code, frame: Ptr, task_at: Ptr, refs: Ptr, start: I64, stop: I64, threads: I64) -> None:
    """Runs the loop of a task that accumulates into arrays that others may see."""
    task, n = Fields(TASK, task_at), stop - start
    unlocked = refs.word(task.ref_count)
    thought = pieces_of(c, frame, task, n, threads)
    unlocked.store(thought.differs(0).to("i64"))
    with c.when(thought < 2):
        run_loop(c, frame, task, refs, start, stop, c.select(thought.equals(1), 1, threads))
        c.give()
    job, merge_job = c.record(JOB), c.record(MERGE)
    combine, slot_bytes, copy_bytes = task.combine, task.slot_bytes, task.copy_bytes
    # with slots the chunks are those of any number of threads
    grains, reduces = n // task.grain, combine.differs(None)
    wanted = c.select(reduces, c.smaller(grains, task.most_slots), interruptible(c, grains, thought))
    chunk = chunk_size(n, wanted, task.lanes)
    chunks = ceil_div(n, chunk)
    pieces = c.smaller(thought, chunks)
    others = pieces - 1
    size = others * copy_bytes
    memory = MALLOC(c, size + chunks * slot_bytes + CACHE_LINE)
    with c.when(memory.equals(None)):
        with c.when(task.pieces > 0):
            failure = Fields(FAILURE, refs.word(task.ref_count + FAILED).load("ptr"))
            failure.put(number=NO_MEMORY, value=size)
            c.give()
        unlocked.store(0)
        run_loop(c, frame, task, refs, start, stop, threads)
        c.give()
    copies = after_cache_line(c, memory)
    slots = copies.at(size)
    with c.when(size >= LARGE_BYTES):
        advise_large(c, copies, size)
    cut = {"start": start, "stop": stop, "chunk": chunk, "chunks": chunks, "pieces": pieces}
    made = {"slots": slots, "slot_bytes": slot_bytes, "copies": copies, "copy_bytes": copy_bytes}
    given = {"task": task.code, "shared_refs": refs, "ref_count": task.ref_count, "table": task.copies}
    job.put(**given, **cut, **made, copied=task.copy_count)
    run_shared(c, frame, run_piece, job, 0, pieces, 1, pieces, usable_threads(c, frame, threads), None, 0)
    merge_job.put(refs=refs, copies=copies, others=others)
    qd_parallel_for(c, frame, task.merge, merge_job, 0, copy_bytes // CACHE_LINE, MERGE_GRAIN, 1, threads)
    with c.when(reduces):
        c.call(combine, "void", COMBINE, [refs, slots, chunks])
    FREE(c, memory)
