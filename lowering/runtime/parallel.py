"""The parallel loop over XLA's thread pool, in the launcher.

The pool offers "run this" but no "wait", and may have a single thread which may be ours. So the caller takes part: it
schedules helpers, all threads claim chunks from a shared counter, and the caller waits only for chunks that someone is
already running. This cannot deadlock, balances chunks of unequal work, and a helper that comes late finds nothing
left. The shared state is reference-counted, because such a helper may run after the caller has returned.

A task that reduces gets a slot of memory for each chunk, and its slots are combined in the order of the chunks when all
have run. The chunks depend on the loop and not on the threads, so sums of floats have the same bits every time, on any
number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import Cell, External, Fields, function
from lowering.runtime.abi import pool_schedule, pool_threads
from lowering.runtime.faults import FREE, MALLOC
from lowering.runtime.launch_log import PARTS, began, note
from lowering.tables import CACHE_LINE, LOOP

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.host import I64, Code, Ptr, Value

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


_TASK = ("ptr", "i64", "i64", "ptr")
"""Parameters of a task: references, the range of its iterations, and its slot."""
COMBINE = ("ptr", "ptr", "i64")
_YIELD = External("i32 sched_yield()")


def relax(c: Code) -> None:
    """Tells a core that it is waiting in a loop."""
    arch = c.module.triple.split("-")[0]
    if arch == "x86_64":
        External("void llvm.x86.sse2.pause()")(c)
    if arch in ("aarch64", "arm64"):
        External("void llvm.aarch64.hint(i32)")(c, 1)


def chunk_runner(c: Code, loop: Fields, task: Value, refs: Value) -> Callable[[Value], None]:
    """Returns a function that emits a chunk of a loop, by its number, with its slot."""
    start, stop, chunk, slots, slot_bytes = loop.start, loop.stop, loop.chunk, loop.slots, loop.slot_bytes

    def run(k: Value) -> None:
        low = start + k * chunk
        high = low + c.smaller(chunk, stop - low)
        c.call(task, "void", _TASK, [refs, low, high, slots.at(k * slot_bytes)])

    return run


def ceil_div(a: Value, b: Value) -> Value:
    """Returns a quotient, rounded up."""
    return (a + b - 1) // b


def chunk_size(n: Value, wanted: Value, lanes: Value) -> Value:
    """Returns the size of at most `wanted` chunks of `n` iterations, a multiple of the lanes."""
    return ceil_div(ceil_div(n, wanted), lanes) * lanes


def interruptible(c: Code, grains: Value, wanted: Value) -> Value:
    """Returns the number of chunks of so many grains such that none takes long."""
    return c.larger(wanted, grains // MOST_GRAINS)


def after_cache_line(c: Code, memory: Value) -> Value:
    """Returns the first address behind this one that begins a cache line."""
    over = memory.to("i64", "ptrtoint") & (CACHE_LINE - 1)
    return memory.at(c.value(CACHE_LINE, "i64") - over)


@function("noinline")
def run_chunks(c: Code, state: Ptr) -> None:
    """Claims and runs chunks until none is left."""
    time, ran, loop = began(c), Cell(c.value(0, "i1")), Fields(LOOP, state)
    task, count = loop.task, loop.count
    run = chunk_runner(c, loop, task, loop.refs)
    with c.loop() as leave:
        k = c.op("i64", f"atomicrmw add {state}, i64 1 monotonic")
        leave(k >= count)
        run(k)
        c.op("i64", f"atomicrmw add {loop.place('done')}, i64 1 release")
        ran.value = 1
    with c.when(ran.value & time.differs(0)):
        note(c, task, PARTS, time, loop.start, loop.stop)


@function()
def leave_loop(c: Code, state: Ptr) -> None:
    """Gives up a loop, whose last user frees it."""
    before = c.op("i64", f"atomicrmw sub {Fields(LOOP, state).place('users')}, i64 1 acq_rel")
    with c.when(before.equals(1)):
        FREE(c, state)


@function()
def helper(c: Code, state: Ptr) -> None:
    """Takes part in a loop, as a thread of the pool."""
    run_chunks(c, state)
    leave_loop(c, state)


@function()
def usable_threads(c: Code, frame: Ptr, most: I64) -> I64:
    """Returns the threads that may work, at most `most` of them where that is not 0."""
    pool = pool_threads(c, frame)
    return c.smaller(pool, c.select(most > 0, most, pool))


@function("noinline")
def run_shared(
    c: Code, frame: Ptr, task: Ptr, refs: Ptr, start: I64, stop: I64, chunk: I64, count: I64, threads: I64,
    slots: Ptr, slot_bytes: I64,
) -> None:  # fmt: skip
    """Runs `count` chunks on up to `threads` threads, and waits for the last."""
    own = c.memory(f"[{LOOP.size} x i8]", CACHE_LINE)
    wanted = c.smaller(threads - 1, count - 1)
    memory, helpers = Cell(own), Cell(c.value(0, "i64"))
    with c.when(wanted > 0):
        heap = MALLOC(c, LOOP.size)
        with c.when(heap.differs(None)):
            memory.value, helpers.value = heap, wanted
    state, others = memory.value, helpers.value
    loop = Fields(LOOP, state)
    parts = {"start": start, "stop": stop, "chunk": chunk, "count": count, "slots": slots, "slot_bytes": slot_bytes}
    loop.put(next=0, done=0, users=others + 1, task=task, refs=refs, **parts)
    with c.each(0, others), c.when(pool_schedule(c, frame, helper, state).equals(0)):
        leave_loop(c, state)
    run_chunks(c, state)
    polls, done = Cell(c.value(0, "i64")), loop.place("done")
    with c.loop() as leave:
        leave(c.op("i64", f"load atomic i64, {done} acquire, align 8").equals(count))
        long = polls.value > PAUSES_BEFORE_YIELD
        polls.value = polls.value + 1
        with c.when(long):
            _YIELD(c)
        with c.when(long.equals(0)):
            relax(c)
    with c.when(state.differs(own)):
        leave_loop(c, state)


@function()
def qd_parallel_for(
    c: Code, frame: Ptr, task: Ptr, refs: Ptr, start: I64, stop: I64, grain: I64, lanes: I64, max_threads: I64
) -> None:
    """Runs `task(refs, low, high, null)` over chunks that cover `start:stop` once.

    Below two grains of iterations that is one call on this thread; with one thread the calls are made there too. Chunks
    are multiples of `lanes`; `max_threads` 0 means all.
    """
    n = stop - start
    grains, threads = n // grain, Cell(c.value(1, "i64"))
    with c.when(grains.below(2).equals(0)):
        threads.value = usable_threads(c, frame, max_threads)
    usable = threads.value
    with c.when(usable < 2):
        most, begin = grain * MOST_GRAINS, Cell(start)
        with c.loop() as leave:
            low = begin.value
            high = low + c.smaller(stop - low, most)
            c.call(task, "void", _TASK, [refs, low, high, None])
            begin.value = high
            leave(high >= stop)
        c.give()
    wanted = interruptible(c, grains, c.smaller(grains, usable * CHUNKS_PER_THREAD))
    chunk = chunk_size(n, wanted, lanes)
    run_shared(c, frame, task, refs, start, stop, chunk, ceil_div(n, chunk), usable, None, 0)


@function()
def qd_parallel_reduce(
    c: Code, frame: Ptr, task: Ptr, refs: Ptr, start: I64, stop: I64, grain: I64, lanes: I64, max_threads: I64,
    combine: Ptr, slot_bytes: I64, most: I64,
) -> None:  # fmt: skip
    """Runs a loop like `qd_parallel_for` in at most `most` chunks, gives each a slot and runs `combine(refs, slots,
    count)` in the end; `slot_bytes` is a multiple of the alignment."""
    n = stop - start
    grains = n // grain
    short = grains.below(2)
    with c.when((short & (slot_bytes <= SLOT_ON_STACK)).equals(0)):
        chunk = chunk_size(n, c.smaller(c.select(short, 1, grains), most), lanes)
        count = ceil_div(n, chunk)
        memory = MALLOC(c, count * slot_bytes + CACHE_LINE)
        with c.when(memory.differs(None)):
            slots, threads = after_cache_line(c, memory), usable_threads(c, frame, max_threads)
            run_shared(c, frame, task, refs, start, stop, chunk, count, threads, slots, slot_bytes)
            c.call(combine, "void", COMBINE, [refs, slots, count])
            FREE(c, memory)
            c.give()
    slot = c.array("i8", slot_bytes, CACHE_LINE)
    c.call(task, "void", _TASK, [refs, start, stop, slot])
    c.call(combine, "void", COMBINE, [refs, slot, 1])
