"""The foreign-function handler of a program.

Code that all programs share is one LLVM module, the *launcher*: it takes the addresses that XLA passes and runs the
tasks in order. A program adds a *handler* module: a constant table (operands, tasks, places of references) and an
entry that passes the table to the launcher. So the code of a handler costs next to nothing to compile, and the call
does no work that depends on the number of programs. Between the tasks the launcher does the clears of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.runtime.abi import POOL, c_string, prelude
from lowering.runtime.clear import CLEARS, clear_table
from lowering.runtime.faults import FAILED_CALLS, FAULTS, fault_constants
from lowering.runtime.interrupt_handler import INTERRUPT_WORDS, interrupt_handler
from lowering.runtime.large_pages import large_pages, large_table
from lowering.runtime.launch_log import FILLS, LAUNCH_LOG, LOG_WORD, TASKS
from lowering.runtime.operands import CLEAR_RESULTS, OPERANDS, TABLE, entry_lines, signature_of
from lowering.runtime.parallel import parallel_for, slot_limit
from lowering.runtime.thread_copies import COPIES, CopyRecord
from lowering.tables import (
    BOUNDS,
    CACHE_LINE,
    COPY,
    FAILED,
    FAILURE,
    PLACE,
    PROGRAM,
    STOP,
    TASK,
    WORDS_AFTER_REFS,
    round_up,
)
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.runtime.layout import Layout
    from qdtrace.ir.program import Task

GRAIN_OPERATIONS = 32768
"""The fewest scalar operations of a chunk for a thread: some microseconds of work, as long as waking one takes."""
SLOT_OPERATIONS = 4
"""Scalar operations of a chunk that pay for clearing and combining one byte of its slot."""

LAUNCHER_EXPORTS = (
    "qd_run", "qd_parallel_for", "qd_parallel_reduce", "qd_parallel_update", "qd_api_seen", "qd_late", "qd_take_late",
    "qd_drop_late", "qd_ask_to_end", LOG_WORD, *INTERRUPT_WORDS,
)  # fmt: skip


@dataclass(frozen=True)
class TaskShape:
    """Facts about a compiled task that the launcher needs."""

    cost: int
    """Estimated scalar operations of one iteration."""
    lanes: int
    slot_bytes: int = 0
    """Bytes for the partial results of a chunk; 0 if the task does not reduce."""
    updates: int = 0
    """Accumulations of one iteration that need locks if other threads see the memory."""
    copies: tuple[CopyRecord, ...] = ()
    """Arrays that a thread may have copies of."""

    @property
    def copy_bytes(self) -> int:
        """The bytes of one thread's copies."""
        end = max((c.offset + c.nbytes for c in self.copies), default=0)
        return round_up(end, CACHE_LINE)


def grain_of(shape: TaskShape) -> int:
    """Returns the iterations of the smallest chunk worth a thread, a multiple of the lanes."""
    operations = GRAIN_OPERATIONS + SLOT_OPERATIONS * shape.slot_bytes
    steps = -(-operations // (max(shape.cost, 1) * shape.lanes))
    return max(steps, 1) * shape.lanes


def handler_text(layout: Layout, shapes: Sequence[TaskShape], max_threads: int = 0) -> str:
    """Returns LLVM IR of the handler: exports `qd_handler` and `qd_table`, imports `qd_run` and, for each task,
    `qd_task_K`, `qd_bounds_K` (dynamic bounds), `qd_combine_K` (if it reduces) and `qd_merge_K` (if it has copies)."""
    program = layout.program
    constants, signature = signature_of(layout)
    lines = ["declare ptr @qd_run(ptr, ptr)", *constants]
    records: list[str] = []
    for k, (task, shape) in enumerate(zip(program.tasks, shapes, strict=True)):
        lines += [f"declare void @{symbol}(ptr, ptr)" for symbol in bounds_symbols(k, task)]
        lines += [f"declare void @{symbol}(ptr, ptr, i64)" for symbol in combine_symbols(k, shape)]
        lines += [f"declare void @{symbol}(ptr, i64, i64, ptr)" for symbol in merge_symbols(k, shape)]
        lines += [f"declare void @qd_task_{k}(ptr, i64, i64, ptr)"]
        places = [layout.places[v] for v in layout.task_refs[k]]
        rows = [PLACE.constant(slot=place.slot, offset=place.offset) for place in places]
        lines += [f"@places_{k} = private constant {PLACE.table(rows)}"]
        lines += [f"@name_{k} = private constant {c_string(task.name)}"]
        texts, faults = fault_constants(k, layout.faults[k])
        lines += texts
        if shape.copies:
            lines += [f"@copies_{k} = private constant {COPY.table(c.constant for c in shape.copies)}"]
        start, stop = static_bounds(task) or (0, 0)
        record = TASK.constant(
            code=f"@qd_task_{k}",
            bounds=_first(bounds_symbols(k, task)),
            places=f"@places_{k}",
            ref_count=len(places),
            start=start,
            stop=stop,
            grain=grain_of(shape),
            lanes=shape.lanes,
            combine=_first(combine_symbols(k, shape)),
            slot_bytes=shape.slot_bytes,
            most_slots=slot_limit(shape.slot_bytes),
            updates=shape.updates,
            merge=_first(merge_symbols(k, shape)),
            copy_bytes=shape.copy_bytes,
            copies=f"@copies_{k}" if shape.copies else "null",
            copy_count=len(shape.copies),
            faults=faults,
            name=f"@name_{k}",
        )
        records.append(record)
    lines += [f"@clears = private constant {clear_table(layout.clears)}"]
    lines += [f"@large = private constant {large_table(layout)}"]
    if layout.constants:
        data = "".join(f"\\{byte:02x}" for byte in layout.constants)
        lines += [f'@constants = private constant [{len(layout.constants)} x i8] c"{data}", align {CACHE_LINE}']
    table = PROGRAM.constant(
        **signature,
        task_count=len(program.tasks),
        tasks=f"@{TABLE}",
        threads=max_threads,
        words=max(map(len, layout.task_refs), default=0) + WORDS_AFTER_REFS,
        clears="@clears",
        large="@large",
        constants="@constants" if layout.constants else "null",
        loops=int(any(eqn.primitive.loops for task in program.tasks for eqn in walk_eqns(task.body))),
    )
    return "\n".join([*lines, *entry_lines(TASK.table(records), table), ""])


def _first(symbols: tuple[str, ...]) -> str:
    return f"@{symbols[0]}" if symbols else "null"


def bounds_symbols(k: int, task: Task) -> tuple[str, ...]:
    """Returns the symbol of the bounds function of task number `k`, or none if its bounds are static."""
    return () if static_bounds(task) else (f"qd_bounds_{k}",)


def combine_symbols(k: int, shape: TaskShape) -> tuple[str, ...]:
    """Returns the symbol that combines the slots of chunks of task number `k`, or none if it does not reduce."""
    return (f"qd_combine_{k}",) if shape.slot_bytes else ()


def merge_symbols(k: int, shape: TaskShape) -> tuple[str, ...]:
    """Returns the symbol that merges threads' copies of task number `k`, or none if it has no copies."""
    return (f"qd_merge_{k}",) if shape.copies else ()


def launcher_text(triple: str) -> str:
    """Returns LLVM IR of the launcher, which exports `LAUNCHER_EXPORTS`."""
    return "\n".join((
        prelude(), LAUNCH_LOG, POOL, OPERANDS, CLEAR_RESULTS, FAULTS, FAILED_CALLS, parallel_for(triple), CLEARS,
        large_pages(triple), COPIES, interrupt_handler(triple), _RUN,
    ))  # fmt: skip


_RUN = f"""
; fills the pointers that a task wants and runs it
define internal void @run_task(ptr %frame, ptr %task, ptr %slots, ptr %refs, i64 %threads, ptr %failure) {{
entry:
  %found = alloca [{BOUNDS.size} x i8], align 8
  %began = call i64 @began()
  {TASK.load("%task", "places", ref_count="count")}
  call void @locate(ptr %places, i64 %count, ptr %slots, ptr %refs)
  %after = add i64 %count, {FAILED}
  %place_of_failure = getelementptr ptr, ptr %refs, i64 %after
  store ptr %failure, ptr %place_of_failure
  %before_stop = add i64 %count, {STOP}
  %place_of_stop = getelementptr ptr, ptr %refs, i64 %before_stop
  store ptr @qd_stop, ptr %place_of_stop
  {TASK.load("%task", "bounds")}
  %static = icmp eq ptr %bounds, null
  br i1 %static, label %known, label %find
known:
  {TASK.load("%task", start="start0", stop="stop0")}
  br label %run
find:
  call void %bounds(ptr %refs, ptr %found)
  {BOUNDS.load("%found", start="start1", stop="stop1")}
  br label %run
run:
  %start = phi i64 [%start0, %known], [%start1, %find]
  %stop = phi i64 [%stop0, %known], [%stop1, %find]
  %any = icmp slt i64 %start, %stop
  br i1 %any, label %go, label %done
go:
  {TASK.load("%task", "updates")}
  %apart = icmp eq i64 %updates, 0
  br i1 %apart, label %loop, label %update
loop:
  call void @run_loop(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %threads)
  br label %done
update:
  call void @qd_parallel_update(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %threads)
  br label %done
done:
  %asked = icmp ne i64 %began, 0
  br i1 %asked, label %tell, label %out
tell:
  call void @note(ptr %task, i64 {TASKS}, i64 %began, i64 %start, i64 %stop)
  ret void
out:
  ret void
}}

; runs the loop of a task in chunks
define internal void @run_loop(ptr %frame, ptr %task, ptr %refs, i64 %start, i64 %stop, i64 %threads) {{
entry:
  {TASK.load("%task", "code", "grain", "lanes", "combine")}
  %plain = icmp eq ptr %combine, null
  br i1 %plain, label %loop, label %reduce
loop:
  call void @qd_parallel_for(ptr %frame, ptr %code, ptr %refs, i64 %start, i64 %stop, i64 %grain, i64 %lanes,
                             i64 %threads)
  ret void
reduce:
  {TASK.load("%task", "slot_bytes", "most_slots")}
  call void @qd_parallel_reduce(ptr %frame, ptr %code, ptr %refs, i64 %start, i64 %stop, i64 %grain, i64 %lanes,
                                i64 %threads, ptr %combine, i64 %slot_bytes, i64 %most_slots)
  ret void
}}

; does what is filled before task %k of a table, and gives the next one
define internal ptr @clear_before(ptr %frame, ptr %clear, i64 %k, ptr %slots, i64 %threads, ptr %tasks) alwaysinline {{
  %began = call i64 @began()
  %next = call ptr @run_clears(ptr %frame, ptr %clear, i64 %k, ptr %slots, i64 %threads)
  %asked = icmp ne i64 %began, 0
  %any = icmp ne ptr %next, %clear
  %both = and i1 %asked, %any
  br i1 %both, label %tell, label %out
tell:
  call void @note(ptr %tasks, i64 {FILLS}, i64 %began, i64 %k, i64 %k)
  br label %out
out:
  ret ptr %next
}}

define ptr @qd_run(ptr %frame, ptr %program) {{
entry:
  %metadata = call i1 @answer_metadata(ptr %frame)
  br i1 %metadata, label %finished, label %buffers
buffers:
  {PROGRAM.load("%program", "args", "results", "constants", "large")}
  %slot_count = add i64 %args, %results
  %all_slots = add i64 %slot_count, 1
  %slots = alloca ptr, i64 %all_slots
  %last_slot = getelementptr ptr, ptr %slots, i64 %slot_count
  store ptr %constants, ptr %last_slot
  %e1 = call ptr @collect(ptr %frame, ptr %program, ptr %slots)
  %good = icmp eq ptr %e1, null
  br i1 %good, label %launch, label %bad
bad:
  ret ptr %e1
launch:
  call void @guard(ptr %program)
  call void @advise_results(ptr %large, ptr %slots)
  {PROGRAM.load("%program", "words", "tasks", "threads", "clears", task_count="count")}
  %refs = alloca ptr, i64 %words
  %failure = alloca [{FAILURE.size} x i8], align 8
  {FAILURE.store("%failure", number="0", value="0")}
  br label %head
head:
  %k = phi i64 [0, %launch], [%k1, %body]
  %clear = phi ptr [%clears, %launch], [%next_clear, %body]
  %next_clear = call ptr @clear_before(ptr %frame, ptr %clear, i64 %k, ptr %slots, i64 %threads, ptr %tasks)
  %inside = icmp slt i64 %k, %count
  br i1 %inside, label %body, label %finished
body:
  %at = mul i64 %k, {TASK.size}
  %task = getelementptr i8, ptr %tasks, i64 %at
  call void @run_task(ptr %frame, ptr %task, ptr %slots, ptr %refs, i64 %threads, ptr %failure)
  %k1 = add i64 %k, 1
  {FAILURE.load("%failure", number="failed")}
  %fine = icmp eq i64 %failed, 0
  br i1 %fine, label %head, label %faulty
faulty:
  %e2 = call ptr @failed_call(ptr %frame, ptr %program, ptr %slots, ptr %task, ptr %failure)
  ret ptr %e2
finished:
  ret ptr null
}}
"""
