"""The parallel loop over XLA's thread pool, in LLVM IR.

The pool offers "run this" but no "wait", and may have a single thread which may be ours. So the caller takes part: it
schedules helpers, all threads claim chunks from a shared counter, and the caller waits only for chunks that someone is
already running. This cannot deadlock, balances chunks of unequal work, and a helper that comes late finds nothing
left. The shared state is reference-counted, because such a helper may run after the caller has returned.
"""

from __future__ import annotations

CHUNKS_PER_THREAD = 16
"""Chunks a thread, where there is enough work: what is idle at the end is at most a sixteenth of the loop."""

PAUSES_BEFORE_YIELD = 2000
"""Polls of the counter before the waiting caller gives its core away; about 50 microseconds on x86."""

STATE_SIZE = 192
NEXT, DONE, USERS = 0, 64, 128  # a cache line each: all threads write them
TASK, REFS, START, STOP, CHUNK, COUNT = 136, 144, 152, 160, 168, 176


def relax(triple: str) -> tuple[str, str]:
    """Declaration and call of the instruction that tells a core that it is waiting in a loop."""
    arch = triple.split("-")[0]
    if arch == "x86_64":
        return "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    if arch in ("aarch64", "arm64"):
        return "declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"
    return "", ""


def parallel_for(triple: str) -> str:
    """IR of `qd_parallel_for(frame, task, refs, start, stop, grain, lanes, max_threads)`.

    Runs `task(refs, lo, hi)` over chunks that cover `start:stop` once. Below two grains of iterations, or with one
    thread, that is one call on this thread. Chunks are multiples of `lanes`; `max_threads` 0 means all.
    """
    declare_relax, call_relax = relax(triple)
    return f"""
{declare_relax}
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i64 @llvm.smin.i64(i64, i64)

define internal i64 @ceil_div(i64 %a, i64 %b) alwaysinline {{
  %s = add i64 %a, %b
  %s1 = sub i64 %s, 1
  %q = udiv i64 %s1, %b
  ret i64 %q
}}

; claims and runs chunks until none is left
define internal void @run_chunks(ptr %state) noinline {{
entry:
  %task = call ptr @load_ptr(ptr %state, i64 {TASK})
  %refs = call ptr @load_ptr(ptr %state, i64 {REFS})
  %start = call i64 @load_i64(ptr %state, i64 {START})
  %stop = call i64 @load_i64(ptr %state, i64 {STOP})
  %chunk = call i64 @load_i64(ptr %state, i64 {CHUNK})
  %count = call i64 @load_i64(ptr %state, i64 {COUNT})
  %done = getelementptr i8, ptr %state, i64 {DONE}
  br label %claim
claim:
  %k = atomicrmw add ptr %state, i64 1 monotonic
  %more = icmp slt i64 %k, %count
  br i1 %more, label %run, label %out
run:
  %offset = mul i64 %k, %chunk
  %lo = add i64 %start, %offset
  %end = add i64 %lo, %chunk
  %hi = call i64 @llvm.smin.i64(i64 %end, i64 %stop)
  call void %task(ptr %refs, i64 %lo, i64 %hi)
  %d = atomicrmw add ptr %done, i64 1 release
  br label %claim
out:
  ret void
}}

define internal void @leave(ptr %state) {{
  %users = getelementptr i8, ptr %state, i64 {USERS}
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

define void @qd_parallel_for(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %grain, i64 %lanes,
                             i64 %max_threads) {{
entry:
  %n = sub i64 %stop, %start
  %grains = udiv i64 %n, %grain
  %small = icmp ult i64 %grains, 2
  br i1 %small, label %serial, label %ask
ask:
  %pool = call i64 @pool_threads(ptr %frame)
  %limited = icmp sgt i64 %max_threads, 0
  %cap = select i1 %limited, i64 %max_threads, i64 %pool
  %threads = call i64 @llvm.smin.i64(i64 %pool, i64 %cap)
  %single = icmp slt i64 %threads, 2
  br i1 %single, label %serial, label %prepare
serial:
  call void %task(ptr %refs, i64 %start, i64 %stop)
  ret void
prepare:
  %fair = mul i64 %threads, {CHUNKS_PER_THREAD}
  %wanted = call i64 @llvm.smin.i64(i64 %grains, i64 %fair)
  %even = call i64 @ceil_div(i64 %n, i64 %wanted)
  %steps = call i64 @ceil_div(i64 %even, i64 %lanes)
  %chunk = mul i64 %steps, %lanes
  %count = call i64 @ceil_div(i64 %n, i64 %chunk)
  %others = sub i64 %threads, 1
  %rest = sub i64 %count, 1
  %helpers = call i64 @llvm.smin.i64(i64 %others, i64 %rest)
  %state = call ptr @malloc(i64 {STATE_SIZE})
  %failed = icmp eq ptr %state, null
  br i1 %failed, label %serial, label %share
share:
  call void @store_i64(ptr %state, i64 {NEXT}, i64 0)
  call void @store_i64(ptr %state, i64 {DONE}, i64 0)
  %users = add i64 %helpers, 1
  call void @store_i64(ptr %state, i64 {USERS}, i64 %users)
  call void @store_ptr(ptr %state, i64 {TASK}, ptr %task)
  call void @store_ptr(ptr %state, i64 {REFS}, ptr %refs)
  call void @store_i64(ptr %state, i64 {START}, i64 %start)
  call void @store_i64(ptr %state, i64 {STOP}, i64 %stop)
  call void @store_i64(ptr %state, i64 {CHUNK}, i64 %chunk)
  call void @store_i64(ptr %state, i64 {COUNT}, i64 %count)
  br label %schedule
schedule:
  %i = phi i64 [0, %share], [%i1, %scheduled]
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
  %done = getelementptr i8, ptr %state, i64 {DONE}
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
  call void @leave(ptr %state)
  ret void
}}
"""
