"""Tasks that accumulate into large arrays: the choice between threads' copies and locks.

On one thread neither is needed. On more, the loop is cut into one piece per thread if clearing and merging copies costs
less than locks: the first piece accumulates into the arrays themselves, each other one into copies of its own, which
are merged in the order of the pieces. Otherwise threads use locked instructions. The code of a task has both variants;
the word after its references selects one.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowering.runtime.clear import pattern_of
from lowering.runtime.large_pages import LARGE_BYTES
from lowering.runtime.parallel import RUN_CHUNK
from lowering.tables import CACHE_LINE, COPY, FILL, JOB, MERGE, TASK, WORDS_AFTER_REFS

MOST_PIECES = 16
MOST_COPY_BYTES = 1 << 26
"""The most bytes of all copies."""
UPDATE_BYTES = 16
"""Bytes of copies that one accumulation without a lock pays for."""
MERGE_GRAIN = 1 << 11
"""The fewest cache lines of a chunk of the merge for another thread."""


@dataclass(frozen=True)
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


COPIES = f"""
; one piece: its chunks one after another, accumulated into the arrays (piece 0) or into its own copies
define internal void @run_piece(ptr %job, i64 %piece, i64 %end, ptr %unused) {{
entry:
  %fill = alloca [{FILL.size} x i8], align 8
  {JOB.load("%job", *JOB.types)}
  %words = add i64 %ref_count, {WORDS_AFTER_REFS}
  %refs = alloca ptr, i64 %words
  %size = mul i64 %words, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %refs, ptr %shared_refs, i64 %size, i1 false)
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
  %record_at = mul i64 %r, {COPY.size}
  %copy = getelementptr i8, ptr %table, i64 %record_at
  {COPY.load("%copy", "offset", "bytes", "pattern", ref="number")}
  %data_at = add i64 %own_offset, %offset
  %data = getelementptr i8, ptr %copies, i64 %data_at
  %ref = getelementptr ptr, ptr %refs, i64 %number
  store ptr %data, ptr %ref
  {FILL.store("%fill", "data", "pattern")}
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
  {RUN_CHUNK}
  %k1 = add i64 %k, 1
  br label %head
out:
  ret void
}}

; how many pieces a loop of %n iterations has: 1 without locks on this thread, 0 when locks cost less than copies
define internal i64 @pieces_of(ptr %frame, ptr %task, i64 %n, i64 %threads) {{
entry:
  {TASK.load("%task", "grain")}
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
  {TASK.load("%task", "updates", "copy_bytes")}
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
  {TASK.load("%task", "ref_count")}
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
  %job = alloca [{JOB.size} x i8], align 8
  %merge_job = alloca [{MERGE.size} x i8], align 8
  {TASK.load("%task", "code", "grain", "lanes", "combine", "slot_bytes", "most_slots", "copy_bytes")}
  ; with slots the chunks are those of any number of threads
  %grains = udiv i64 %n, %grain
  %fixed = call i64 @llvm.smin.i64(i64 %grains, i64 %most_slots)
  %reduces = icmp ne ptr %combine, null
  %short = call i64 @interruptible(i64 %grains, i64 %thought)
  %wanted = select i1 %reduces, i64 %fixed, i64 %short
  %chunk = call i64 @chunk_size(i64 %n, i64 %wanted, i64 %lanes)
  %chunks = call i64 @ceil_div(i64 %n, i64 %chunk)
  %pieces = call i64 @llvm.smin.i64(i64 %thought, i64 %chunks)
  %others = sub i64 %pieces, 1
  %bytes = mul i64 %others, %copy_bytes
  %all_slots = mul i64 %chunks, %slot_bytes
  %used = add i64 %bytes, %all_slots
  %room = add i64 %used, {CACHE_LINE}
  %memory = call ptr @malloc(i64 %room)
  %failed = icmp eq ptr %memory, null
  br i1 %failed, label %locked, label %share
locked:
  store i64 0, ptr %word
  call void @run_loop(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %threads)
  ret void
share:
  %address = ptrtoint ptr %memory to i64
  %over = and i64 %address, {CACHE_LINE - 1}
  %skip = sub i64 {CACHE_LINE}, %over
  %copies = getelementptr i8, ptr %memory, i64 %skip
  %slots = getelementptr i8, ptr %copies, i64 %bytes
  %large = icmp sge i64 %bytes, {LARGE_BYTES}
  br i1 %large, label %advise, label %run
advise:
  call void @advise_large(ptr %copies, i64 %bytes)
  br label %run
run:
  {TASK.load("%task", "merge", copies="table", copy_count="copied")}
  {JOB.store("%job", *list(JOB.types)[2:], task="code", shared_refs="refs")}
  call void @run_shared(ptr %frame, ptr @run_piece, ptr %job, i64 0, i64 %pieces, i64 1, i64 %pieces, i64 %pieces,
                        ptr null, i64 0)
  %lines = udiv i64 %copy_bytes, {CACHE_LINE}
  {MERGE.store("%merge_job", *MERGE.types)}
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
