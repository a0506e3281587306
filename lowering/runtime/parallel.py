"""The parallel loop over XLA's thread pool, in LLVM IR.

The pool offers "run this" but no "wait", and may have a single thread which may be ours. So the caller takes part: it
schedules helpers, all threads claim chunks from a shared counter, and the caller waits only for chunks that someone is
already running. This cannot deadlock, balances chunks of unequal work, and a helper that comes late finds nothing
left. The shared state is reference-counted, because such a helper may run after the caller has returned.

A task that reduces gets a slot of memory for each chunk, and its slots are combined in the order of the chunks when all
have run. The chunks depend on the loop and not on the threads, so sums of floats have the same bits every time, on any
number of threads.
"""

from __future__ import annotations

from lowering.runtime.launch_log import PARTS
from lowering.tables import CACHE_LINE, LOOP

RUN_CHUNK = """%chunk_at = mul i64 %k, %chunk
  %lo = add i64 %start, %chunk_at
  %left = sub i64 %stop, %lo
  %span = call i64 @llvm.smin.i64(i64 %chunk, i64 %left)
  %hi = add i64 %lo, %span
  %slot_at = mul i64 %k, %slot_bytes
  %slot = getelementptr i8, ptr %slots, i64 %slot_at
  call void %task(ptr %refs, i64 %lo, i64 %hi, ptr %slot)"""
"""IR that runs chunk `%k` of a loop, with its slot."""

CHUNKS_PER_THREAD = 16
"""Chunks per thread, if there is enough work: threads are then idle at the end for at most a sixteenth of the loop."""

MOST_SLOTS, FEWEST_SLOTS, SLOTS_BUDGET = 256, 16, 1 << 20
"""Limits on chunks of a loop that reduces, which balance the load of threads against the work of combining."""

MOST_GRAINS = 512
"""The most grains of a chunk: some ten milliseconds of work, after which a task without loops may be interrupted."""

PAUSES_BEFORE_YIELD = 2000
"""Polls of the counter before the waiting caller yields its core; about 50 microseconds on x86."""

SLOT_ON_STACK = 1 << 15
"""Largest slot that a loop on this thread alone has on its stack."""


def slot_limit(slot_bytes: int) -> int:
    """Returns the most chunks of a loop whose chunks have slots of that size."""
    return max(FEWEST_SLOTS, min(MOST_SLOTS, SLOTS_BUDGET // max(1, slot_bytes)))


def relax(triple: str) -> tuple[str, str]:
    """Returns declaration and call of the instruction that tells a core that it is waiting in a loop."""
    arch = triple.split("-")[0]
    if arch == "x86_64":
        return "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    if arch in ("aarch64", "arm64"):
        return "declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"
    return "", ""


def parallel_for(triple: str) -> str:
    """Returns IR of `qd_parallel_for(frame, task, refs, start, stop, grain, lanes, max_threads)` and of
    `qd_parallel_reduce(..., combine, slot_bytes, most)`.

    Both run `task(refs, lo, hi, slot)` over chunks that cover `start:stop` once. Below two grains of iterations that
    is one call on this thread; with one thread `qd_parallel_for` makes its calls there too. Chunks are multiples of
    `lanes`; `max_threads` 0 means all. `qd_parallel_reduce` makes at most `most` chunks, gives each a slot and runs
    `combine(refs, slots, count)` in the end; `slot_bytes` is a multiple of the alignment.
    """
    declare_relax, call_relax = relax(triple)
    return f"""
{declare_relax}
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal i64 @ceil_div(i64 %a, i64 %b) alwaysinline {{
  %s = add i64 %a, %b
  %s1 = sub i64 %s, 1
  %q = udiv i64 %s1, %b
  ret i64 %q
}}

; claims and runs chunks until none is left
define internal void @run_chunks(ptr %state) noinline {{
entry:
  %began = call i64 @began()
  {LOOP.load("%state", "task", "refs", "start", "stop", "chunk", "count", "slots", "slot_bytes")}
  %done = getelementptr i8, ptr %state, i64 {LOOP.offsets["done"]}
  br label %claim
claim:
  %any = phi i1 [false, %entry], [true, %run]
  %k = atomicrmw add ptr %state, i64 1 monotonic
  %more = icmp slt i64 %k, %count
  br i1 %more, label %run, label %out
run:
  {RUN_CHUNK}
  %d = atomicrmw add ptr %done, i64 1 release
  br label %claim
out:
  %listens = icmp ne i64 %began, 0
  %asked = and i1 %any, %listens
  br i1 %asked, label %tell, label %leave
tell:
  call void @note(ptr %task, i64 {PARTS}, i64 %began, i64 %start, i64 %stop)
  br label %leave
leave:
  ret void
}}

define internal void @leave(ptr %state) {{
  %users = getelementptr i8, ptr %state, i64 {LOOP.offsets["users"]}
  %before = atomicrmw sub ptr %users, i64 1 acq_rel
  %last = icmp eq i64 %before, 1
  br i1 %last, label %drop, label %out
drop:
  call void @free(ptr %state)
  br label %out
out:
  ret void
}}

define internal void @helper(ptr %state) {{
  call void @run_chunks(ptr %state)
  call void @leave(ptr %state)
  ret void
}}

; threads that may work, at most %most of them where that is not 0
define internal i64 @usable_threads(ptr %frame, i64 %most) {{
  %pool = call i64 @pool_threads(ptr %frame)
  %limited = icmp sgt i64 %most, 0
  %cap = select i1 %limited, i64 %most, i64 %pool
  %threads = call i64 @llvm.smin.i64(i64 %pool, i64 %cap)
  ret i64 %threads
}}

; the number of chunks of so many grains that none takes long
define internal i64 @interruptible(i64 %grains, i64 %wanted) alwaysinline {{
  %least = udiv i64 %grains, {MOST_GRAINS}
  %count = call i64 @llvm.smax.i64(i64 %wanted, i64 %least)
  ret i64 %count
}}

; the size of chunks that are multiples of %lanes and at most %wanted
define internal i64 @chunk_size(i64 %n, i64 %wanted, i64 %lanes) alwaysinline {{
  %even = call i64 @ceil_div(i64 %n, i64 %wanted)
  %steps = call i64 @ceil_div(i64 %even, i64 %lanes)
  %chunk = mul i64 %steps, %lanes
  ret i64 %chunk
}}

; runs %count chunks on up to %threads threads, and waits for the last
define internal void @run_shared(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %chunk, i64 %count,
                                 i64 %threads, ptr %slots, i64 %slot_bytes) noinline {{
entry:
  %own = alloca i8, i64 {LOOP.size}, align {CACHE_LINE}
  %others = sub i64 %threads, 1
  %rest = sub i64 %count, 1
  %wanted = call i64 @llvm.smin.i64(i64 %others, i64 %rest)
  %alone = icmp slt i64 %wanted, 1
  br i1 %alone, label %prepare, label %allocate
allocate:
  %heap = call ptr @malloc(i64 {LOOP.size})
  %failed = icmp eq ptr %heap, null
  %kept = select i1 %failed, ptr %own, ptr %heap
  %found = select i1 %failed, i64 0, i64 %wanted
  br label %prepare
prepare:
  %state = phi ptr [%own, %entry], [%kept, %allocate]
  %helpers = phi i64 [0, %entry], [%found, %allocate]
  %users = add i64 %helpers, 1
  {LOOP.store("%state", *list(LOOP.types)[2:], next="0", done="0")}
  br label %schedule
schedule:
  %i = phi i64 [0, %prepare], [%i1, %scheduled]
  %enough = icmp sge i64 %i, %helpers
  br i1 %enough, label %work, label %one
one:
  %accepted = call i1 @pool_schedule(ptr %frame, ptr @helper, ptr %state)
  br i1 %accepted, label %scheduled, label %refused
refused:
  call void @leave(ptr %state)
  br label %scheduled
scheduled:
  %i1 = add i64 %i, 1
  br label %schedule
work:
  call void @run_chunks(ptr %state)
  %done = getelementptr i8, ptr %state, i64 {LOOP.offsets["done"]}
  br label %wait
wait:
  %polls = phi i64 [0, %work], [%polls1, %again]
  %d = load atomic i64, ptr %done acquire, align 8
  %all = icmp eq i64 %d, %count
  br i1 %all, label %finish, label %pause
pause:
  %polls1 = add i64 %polls, 1
  %long = icmp sgt i64 %polls, {PAUSES_BEFORE_YIELD}
  br i1 %long, label %yield, label %spin
yield:
  %y = call i32 @sched_yield()
  br label %again
spin:
  {call_relax}
  br label %again
again:
  br label %wait
finish:
  %on_stack = icmp eq ptr %state, %own
  br i1 %on_stack, label %out, label %drop
drop:
  call void @leave(ptr %state)
  br label %out
out:
  ret void
}}

define void @qd_parallel_for(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %grain, i64 %lanes,
                             i64 %max_threads) {{
entry:
  %n = sub i64 %stop, %start
  %grains = udiv i64 %n, %grain
  %small = icmp ult i64 %grains, 2
  br i1 %small, label %serial, label %ask
ask:
  %threads = call i64 @usable_threads(ptr %frame, i64 %max_threads)
  %single = icmp slt i64 %threads, 2
  br i1 %single, label %serial, label %share
serial:
  %most = mul i64 %grain, {MOST_GRAINS}
  br label %piece
piece:
  %lo = phi i64 [%start, %serial], [%hi, %piece]
  %left = sub i64 %stop, %lo
  %span = call i64 @llvm.smin.i64(i64 %left, i64 %most)
  %hi = add i64 %lo, %span
  call void %task(ptr %refs, i64 %lo, i64 %hi, ptr null)
  %more = icmp slt i64 %hi, %stop
  br i1 %more, label %piece, label %done
done:
  ret void
share:
  %fair = mul i64 %threads, {CHUNKS_PER_THREAD}
  %some = call i64 @llvm.smin.i64(i64 %grains, i64 %fair)
  %wanted = call i64 @interruptible(i64 %grains, i64 %some)
  %chunk = call i64 @chunk_size(i64 %n, i64 %wanted, i64 %lanes)
  %count = call i64 @ceil_div(i64 %n, i64 %chunk)
  call void @run_shared(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %chunk, i64 %count,
                        i64 %threads, ptr null, i64 0)
  ret void
}}

define void @qd_parallel_reduce(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %grain, i64 %lanes,
                                i64 %max_threads, ptr %combine, i64 %slot_bytes, i64 %most) {{
entry:
  %n = sub i64 %stop, %start
  %grains = udiv i64 %n, %grain
  %short = icmp ult i64 %grains, 2
  %little = icmp ule i64 %slot_bytes, {SLOT_ON_STACK}
  %small = and i1 %short, %little
  br i1 %small, label %whole, label %cut
cut:
  %some = select i1 %short, i64 1, i64 %grains
  %wanted = call i64 @llvm.smin.i64(i64 %some, i64 %most)
  %chunk = call i64 @chunk_size(i64 %n, i64 %wanted, i64 %lanes)
  %count = call i64 @ceil_div(i64 %n, i64 %chunk)
  %bytes = mul i64 %count, %slot_bytes
  %room = add i64 %bytes, {CACHE_LINE}
  %memory = call ptr @malloc(i64 %room)
  %failed = icmp eq ptr %memory, null
  br i1 %failed, label %whole, label %share
share:
  %threads = call i64 @usable_threads(ptr %frame, i64 %max_threads)
  %address = ptrtoint ptr %memory to i64
  %over = and i64 %address, {CACHE_LINE - 1}
  %skip = sub i64 {CACHE_LINE}, %over
  %slots = getelementptr i8, ptr %memory, i64 %skip
  call void @run_shared(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %chunk, i64 %count,
                        i64 %threads, ptr %slots, i64 %slot_bytes)
  call void %combine(ptr %refs, ptr %slots, i64 %count)
  call void @free(ptr %memory)
  ret void
whole:
  %slot = alloca i8, i64 %slot_bytes, align {CACHE_LINE}
  call void %task(ptr %refs, i64 %start, i64 %stop, ptr %slot)
  call void %combine(ptr %refs, ptr %slot, i64 1)
  ret void
}}
"""
