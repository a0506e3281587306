"""Tasks that accumulate into large arrays: who needs locks.

On one thread nobody does. On more, the loop is cut into a piece a thread where clearing and adding up copies costs less
than locks: the first piece accumulates into the arrays themselves, each other one into copies of its own, which are
merged in the order of the pieces. Where copies would cost more, threads use locked instructions. The code of a task has
both ways; the word after its references says which.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowering.runtime.clear import pattern_of
from lowering.runtime.large_pages import LARGE_BYTES
from lowering.runtime.tables import (
    TASK_CODE,
    TASK_COMBINE,
    TASK_COPIES,
    TASK_COPY_BYTES,
    TASK_COPY_COUNT,
    TASK_GRAIN,
    TASK_LANES,
    TASK_MERGE,
    TASK_MOST_SLOTS,
    TASK_REF_COUNT,
    TASK_SLOT,
    TASK_UPDATES,
)

MOST_PIECES = 16
MOST_COPY_BYTES = 1 << 26
"""Memory of all copies."""
UPDATE_BYTES = 16
"""Bytes of copies that an accumulation without a lock pays for."""
MERGE_GRAIN = 1 << 11
"""Lines that make a chunk of the merge worth handing to a thread."""
LINE = 64
"""Bytes of the unit in which copies are merged."""

COPY_REF, COPY_OFFSET, COPY_BYTES, COPY_PATTERN, COPY_SIZE = 0, 8, 16, 24, 32
MERGE_REFS, MERGE_COPIES, MERGE_COUNT, MERGE_SIZE = 0, 8, 16, 24
(
    JOB_TASK, JOB_REFS, JOB_REF_COUNT, JOB_START, JOB_STOP, JOB_CHUNK, JOB_CHUNKS, JOB_PIECES, JOB_SLOTS,
    JOB_SLOT_BYTES, JOB_COPIES, JOB_COPY_BYTES, JOB_TABLE, JOB_TABLE_COUNT, JOB_SIZE,
) = range(0, 120, 8)  # fmt: skip


@dataclass(frozen=True)
class CopyRecord:
    """One array in the copies of a piece."""

    ref: int
    """Number among the references of the task."""
    offset: int
    nbytes: int
    neutral: bytes
    """An element that changes nothing."""

    @property
    def fields(self) -> list[str]:
        """Fields of the handler's table."""
        return [f"i64 {n}" for n in (self.ref, self.offset, self.nbytes, pattern_of(self.neutral))]


COPIES = f"""
; one piece: its chunks one after another, accumulated into the arrays (piece 0) or into its own copies
define internal void @run_piece(ptr %job, i64 %piece, i64 %end, ptr %unused) {{
entry:
  %fill = alloca [2 x i64], align 8
  %task = call ptr @load_ptr(ptr %job, i64 {JOB_TASK})
  %shared_refs = call ptr @load_ptr(ptr %job, i64 {JOB_REFS})
  %ref_count = call i64 @load_i64(ptr %job, i64 {JOB_REF_COUNT})
  %words = add i64 %ref_count, 2
  %refs = alloca ptr, i64 %words
  %size = mul i64 %words, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %refs, ptr %shared_refs, i64 %size, i1 false)
  %start = call i64 @load_i64(ptr %job, i64 {JOB_START})
  %stop = call i64 @load_i64(ptr %job, i64 {JOB_STOP})
  %chunk = call i64 @load_i64(ptr %job, i64 {JOB_CHUNK})
  %chunks = call i64 @load_i64(ptr %job, i64 {JOB_CHUNKS})
  %pieces = call i64 @load_i64(ptr %job, i64 {JOB_PIECES})
  %slots = call ptr @load_ptr(ptr %job, i64 {JOB_SLOTS})
  %slot_bytes = call i64 @load_i64(ptr %job, i64 {JOB_SLOT_BYTES})
  %copies = call ptr @load_ptr(ptr %job, i64 {JOB_COPIES})
  %copy_bytes = call i64 @load_i64(ptr %job, i64 {JOB_COPY_BYTES})
  %table = call ptr @load_ptr(ptr %job, i64 {JOB_TABLE})
  %copied = call i64 @load_i64(ptr %job, i64 {JOB_TABLE_COUNT})
  %first = icmp eq i64 %piece, 0
  %wanted = select i1 %first, i64 0, i64 %copied
  %before = sub i64 %piece, 1
  %own_offset = mul i64 %before, %copy_bytes
  br label %records
records:
  %r = phi i64 [0, %entry], [%r1, %record]
  %more_records = icmp slt i64 %r, %wanted
  br i1 %more_records, label %record, label %cut
record:
  %record_at = mul i64 %r, {COPY_SIZE}
  %copy = getelementptr i8, ptr %table, i64 %record_at
  %number = call i64 @load_i64(ptr %copy, i64 {COPY_REF})
  %offset = call i64 @load_i64(ptr %copy, i64 {COPY_OFFSET})
  %bytes = call i64 @load_i64(ptr %copy, i64 {COPY_BYTES})
  %pattern = call i64 @load_i64(ptr %copy, i64 {COPY_PATTERN})
  %data_at = add i64 %own_offset, %offset
  %data = getelementptr i8, ptr %copies, i64 %data_at
  %ref = getelementptr ptr, ptr %refs, i64 %number
  store ptr %data, ptr %ref
  store ptr %data, ptr %fill
  call void @store_i64(ptr %fill, i64 8, i64 %pattern)
  call void @clear_bytes(ptr %fill, i64 0, i64 %bytes, ptr null)
  %r1 = add i64 %r, 1
  br label %records
cut:
  %k_low = mul i64 %piece, %chunks
  %k_first = udiv i64 %k_low, %pieces
  %k_high = add i64 %k_low, %chunks
  %k_end = udiv i64 %k_high, %pieces
  br label %head
head:
  %k = phi i64 [%k_first, %cut], [%k1, %body]
  %inside = icmp slt i64 %k, %k_end
  br i1 %inside, label %body, label %out
body:
  %before_lo = mul i64 %k, %chunk
  %lo = add i64 %start, %before_lo
  %left = sub i64 %stop, %lo
  %span = call i64 @llvm.smin.i64(i64 %chunk, i64 %left)
  %hi = add i64 %lo, %span
  %slot_at = mul i64 %k, %slot_bytes
  %slot = getelementptr i8, ptr %slots, i64 %slot_at
  call void %task(ptr %refs, i64 %lo, i64 %hi, ptr %slot)
  %k1 = add i64 %k, 1
  br label %head
out:
  ret void
}}

; how many pieces a loop of %n iterations has: 1 without locks on this thread, 0 when locks cost less than copies
define internal i64 @pieces_of(ptr %frame, ptr %task, i64 %n, i64 %threads) {{
entry:
  %grain = call i64 @load_i64(ptr %task, i64 {TASK_GRAIN})
  %grains = udiv i64 %n, %grain
  %small = icmp ult i64 %grains, 2
  br i1 %small, label %alone, label %ask
ask:
  %usable = call i64 @usable_threads(ptr %frame, i64 %threads)
  %pieces = call i64 @llvm.smin.i64(i64 %usable, i64 %grains)
  %single = icmp slt i64 %pieces, 2
  br i1 %single, label %alone, label %weigh
alone:
  ret i64 1
weigh:
  %updates = call i64 @load_i64(ptr %task, i64 {TASK_UPDATES})
  %copy_bytes = call i64 @load_i64(ptr %task, i64 {TASK_COPY_BYTES})
  %all_updates = mul i64 %n, %updates
  %paid = mul i64 %all_updates, {UPDATE_BYTES}
  %limit = call i64 @llvm.smin.i64(i64 %paid, i64 {MOST_COPY_BYTES})
  %others = sub i64 %pieces, 1
  %bytes = mul i64 %others, %copy_bytes
  %copied = icmp ne i64 %copy_bytes, 0
  %cheap = icmp sle i64 %bytes, %limit
  %few = icmp sle i64 %pieces, {MOST_PIECES}
  %both = and i1 %cheap, %few
  %all = and i1 %both, %copied
  %chosen = select i1 %all, i64 %pieces, i64 0
  ret i64 %chosen
}}

; runs the loop of a task that accumulates into arrays that others may see
define void @qd_parallel_update(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %threads) {{
entry:
  %n = sub i64 %stop, %start
  %ref_count = call i64 @load_i64(ptr %task, i64 {TASK_REF_COUNT})
  %word = getelementptr i64, ptr %refs, i64 %ref_count
  %thought = call i64 @pieces_of(ptr %frame, ptr %task, i64 %n, i64 %threads)
  %without = icmp ne i64 %thought, 0
  %flag = zext i1 %without to i64
  store i64 %flag, ptr %word
  %simple = icmp slt i64 %thought, 2
  br i1 %simple, label %plain, label %allocate
plain:
  %alone = icmp eq i64 %thought, 1
  %allowed = select i1 %alone, i64 1, i64 %threads
  call void @run_loop(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %allowed)
  ret void
allocate:
  %job = alloca [{JOB_SIZE} x i8], align 8
  %merge_job = alloca [{MERGE_SIZE} x i8], align 8
  %code = call ptr @load_ptr(ptr %task, i64 {TASK_CODE})
  %grain = call i64 @load_i64(ptr %task, i64 {TASK_GRAIN})
  %lanes = call i64 @load_i64(ptr %task, i64 {TASK_LANES})
  %combine = call ptr @load_ptr(ptr %task, i64 {TASK_COMBINE})
  %slot_bytes = call i64 @load_i64(ptr %task, i64 {TASK_SLOT})
  %most = call i64 @load_i64(ptr %task, i64 {TASK_MOST_SLOTS})
  %copy_bytes = call i64 @load_i64(ptr %task, i64 {TASK_COPY_BYTES})
  ; with slots the chunks are those of any number of threads
  %grains = udiv i64 %n, %grain
  %fixed = call i64 @llvm.smin.i64(i64 %grains, i64 %most)
  %reduces = icmp ne ptr %combine, null
  %wanted = select i1 %reduces, i64 %fixed, i64 %thought
  %chunk = call i64 @chunk_size(i64 %n, i64 %wanted, i64 %lanes)
  %chunks = call i64 @ceil_div(i64 %n, i64 %chunk)
  %pieces = call i64 @llvm.smin.i64(i64 %thought, i64 %chunks)
  %others = sub i64 %pieces, 1
  %bytes = mul i64 %others, %copy_bytes
  %all_slots = mul i64 %chunks, %slot_bytes
  %used = add i64 %bytes, %all_slots
  %room = add i64 %used, {LINE}
  %memory = call ptr @malloc(i64 %room)
  %failed = icmp eq ptr %memory, null
  br i1 %failed, label %locked, label %share
locked:
  store i64 0, ptr %word
  call void @run_loop(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %threads)
  ret void
share:
  %address = ptrtoint ptr %memory to i64
  %over = and i64 %address, {LINE - 1}
  %skip = sub i64 {LINE}, %over
  %copies = getelementptr i8, ptr %memory, i64 %skip
  %slots = getelementptr i8, ptr %copies, i64 %bytes
  %large = icmp sge i64 %bytes, {LARGE_BYTES}
  br i1 %large, label %advise, label %run
advise:
  call void @advise_large(ptr %copies, i64 %bytes)
  br label %run
run:
  %table = call ptr @load_ptr(ptr %task, i64 {TASK_COPIES})
  %copied = call i64 @load_i64(ptr %task, i64 {TASK_COPY_COUNT})
  call void @store_ptr(ptr %job, i64 {JOB_TASK}, ptr %code)
  call void @store_ptr(ptr %job, i64 {JOB_REFS}, ptr %refs)
  call void @store_i64(ptr %job, i64 {JOB_REF_COUNT}, i64 %ref_count)
  call void @store_i64(ptr %job, i64 {JOB_START}, i64 %start)
  call void @store_i64(ptr %job, i64 {JOB_STOP}, i64 %stop)
  call void @store_i64(ptr %job, i64 {JOB_CHUNK}, i64 %chunk)
  call void @store_i64(ptr %job, i64 {JOB_CHUNKS}, i64 %chunks)
  call void @store_i64(ptr %job, i64 {JOB_PIECES}, i64 %pieces)
  call void @store_ptr(ptr %job, i64 {JOB_SLOTS}, ptr %slots)
  call void @store_i64(ptr %job, i64 {JOB_SLOT_BYTES}, i64 %slot_bytes)
  call void @store_ptr(ptr %job, i64 {JOB_COPIES}, ptr %copies)
  call void @store_i64(ptr %job, i64 {JOB_COPY_BYTES}, i64 %copy_bytes)
  call void @store_ptr(ptr %job, i64 {JOB_TABLE}, ptr %table)
  call void @store_i64(ptr %job, i64 {JOB_TABLE_COUNT}, i64 %copied)
  call void @run_shared(ptr %frame, ptr @run_piece, ptr %job, i64 0, i64 %pieces, i64 1, i64 %pieces, i64 %pieces,
                        ptr null, i64 0)
  %merge = call ptr @load_ptr(ptr %task, i64 {TASK_MERGE})
  %lines = udiv i64 %copy_bytes, {LINE}
  call void @store_ptr(ptr %merge_job, i64 {MERGE_REFS}, ptr %refs)
  call void @store_ptr(ptr %merge_job, i64 {MERGE_COPIES}, ptr %copies)
  call void @store_i64(ptr %merge_job, i64 {MERGE_COUNT}, i64 %others)
  call void @qd_parallel_for(ptr %frame, ptr %merge, ptr %merge_job, i64 0, i64 %lines, i64 {MERGE_GRAIN}, i64 1,
                             i64 %threads)
  br i1 %reduces, label %reduce, label %done
reduce:
  call void %combine(ptr %refs, ptr %slots, i64 %chunks)
  br label %done
done:
  call void @free(ptr %memory)
  ret void
}}
"""
