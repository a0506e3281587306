"""The foreign-function handler of a program.

What is the same for all programs is one LLVM module, the *launcher*: it checks what XLA passes, collects the data
pointers and runs the tasks in order. A program adds a *handler* module: a constant table (operands, tasks, where each
reference lives) and an entry that hands the table to the launcher. So the code of a handler costs next to nothing to
compile, and the call does no work that depends on the number of programs. Between the tasks the launcher does the
clears of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.runtime import abi
from lowering.runtime.abi import c_string
from lowering.runtime.clear import CLEARS, clear_table
from lowering.runtime.large_pages import large_bytes, large_pages
from lowering.runtime.parallel import parallel_for, slot_limit
from lowering.runtime.thread_copies import COPIES, CopyRecord
from lowering.tables import (
    BOUNDS,
    CACHE_LINE,
    CHECK,
    COPY,
    FAILED,
    FAILURE,
    PLACE,
    PROGRAM,
    TASK,
    WORDS_AFTER_REFS,
    round_up,
)
from qdtrace.ir.program import Literal, Task, Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.runtime.layout import Layout

GRAIN_OPERATIONS = 32768
"""Scalar operations that make a chunk worth handing to a thread: some microseconds, as long as waking one takes."""
SLOT_OPERATIONS = 4
"""Scalar operations that make a byte of a chunk's slot worth clearing and combining."""

ENTRY = "qd_handler"
LAUNCHER_EXPORTS = ("qd_run", "qd_parallel_for", "qd_parallel_reduce", "qd_parallel_update", "qd_api_seen")

MESSAGE_SIZE = 512
FAULT_SIZE = 4096
"""Bytes of the message of a failed check, at most."""


@dataclass(frozen=True)
class TaskShape:
    """What the launcher has to know of a compiled task."""

    cost: int
    """Estimated scalar operations of one iteration."""
    lanes: int
    slot_bytes: int = 0
    """Memory for the partial results of a chunk; 0 when it does not reduce."""
    updates: int = 0
    """Accumulations of one iteration that need locks where other threads see them."""
    copies: tuple[CopyRecord, ...] = ()
    """Arrays of which a thread may have copies."""

    @property
    def copy_bytes(self) -> int:
        """Memory of one thread's copies."""
        end = max((c.offset + c.nbytes for c in self.copies), default=0)
        return round_up(end, CACHE_LINE)


def grain_of(shape: TaskShape) -> int:
    """Iterations of the smallest chunk worth a thread, a multiple of the lanes."""
    operations = GRAIN_OPERATIONS + SLOT_OPERATIONS * shape.slot_bytes
    steps = -(-operations // (max(shape.cost, 1) * shape.lanes))
    return max(steps, 1) * shape.lanes


def handler_text(layout: Layout, shapes: Sequence[TaskShape], max_threads: int = 0) -> str:
    """LLVM IR of the handler: exports `qd_handler`, needs `qd_run` and, of each task, `qd_task_K`, `qd_bounds_K` (not
    with static bounds) and `qd_combine_K` (where it reduces)."""
    program = layout.program
    lines = [
        "declare ptr @qd_run(ptr, ptr)",
        f"@name = private constant {c_string(program.name)}",
        *_checks(layout),
    ]
    records: list[str] = []
    for k, (task, shape) in enumerate(zip(program.tasks, shapes, strict=True)):
        faults = layout.faults[k]
        lines += [f"declare void @{symbol}(ptr, ptr)" for symbol in bounds_symbols(k, task)]
        lines += [f"declare void @{symbol}(ptr, ptr, i64)" for symbol in combine_symbols(k, shape)]
        lines += [f"declare void @{symbol}(ptr, i64, i64, ptr)" for symbol in merge_symbols(k, shape)]
        lines += [f"declare void @qd_task_{k}(ptr, i64, i64, ptr)"]
        places = [layout.places[v] for v in layout.task_refs[k]]
        rows = [PLACE.constant(slot=place.slot, offset=place.offset) for place in places]
        lines += [f"@places_{k} = private constant {PLACE.table(rows)}"]
        lines += [f"@fault_{k}_{n} = private constant {c_string(text)}" for n, text in enumerate(faults)]
        if faults:
            items = ", ".join(f"ptr @fault_{k}_{n}" for n in range(len(faults)))
            lines += [f"@faults_{k} = private constant [{len(faults)} x ptr] [{items}]"]
        if shape.copies:
            lines += [f"@copies_{k} = private constant {COPY.table(c.constant for c in shape.copies)}"]
        start, stop = _static_bounds(task) or (0, 0)
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
            faults=f"@faults_{k}" if faults else "null",
        )
        records.append(record)
    lines += [f"@tasks = private constant {TASK.table(records)}"]
    lines += [f"@clears = private constant {clear_table(layout.clears)}"]
    if layout.constants:
        data = "".join(f"\\{byte:02x}" for byte in layout.constants)
        lines += [f'@constants = private constant [{len(layout.constants)} x i8] c"{data}", align {CACHE_LINE}']
    table = PROGRAM.constant(
        name="@name",
        args=len(program.params),
        results=layout.slot_count - len(program.params),
        checks="@checks",
        task_count=len(program.tasks),
        tasks="@tasks",
        threads=max_threads,
        words=max(map(len, layout.task_refs), default=0) + WORDS_AFTER_REFS,
        clears="@clears",
        constants="@constants" if layout.constants else "null",
    )
    lines += [
        f"@program = private constant {table}",
        f"define ptr @{ENTRY}(ptr %frame) {{",
        "  %error = tail call ptr @qd_run(ptr %frame, ptr @program)",
        "  ret ptr %error",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _first(symbols: tuple[str, ...]) -> str:
    return f"@{symbols[0]}" if symbols else "null"


def bounds_symbols(k: int, task: Task) -> tuple[str, ...]:
    """The bounds function of task number `k` if it has to be called: static bounds stand in the table."""
    return () if _static_bounds(task) else (f"qd_bounds_{k}",)


def combine_symbols(k: int, shape: TaskShape) -> tuple[str, ...]:
    """The function that combines what chunks of task number `k` have reduced, if they do."""
    return (f"qd_combine_{k}",) if shape.slot_bytes else ()


def merge_symbols(k: int, shape: TaskShape) -> tuple[str, ...]:
    """The function that merges copies of task number `k`, if it may have any."""
    return (f"qd_merge_{k}",) if shape.copies else ()


def _static_bounds(task: Task) -> tuple[int, int] | None:
    if task.kind == "serial":
        return 0, 1
    if isinstance(task.start, Literal) and isinstance(task.stop, Literal):
        return int(task.start.value), int(task.stop.value)
    return None


def _label(kind: str, number: int, var: Var | None) -> str:
    return f"{kind} {number}" + (f" (`{var.hint}`)" if var is not None and var.hint else "")


def _checks(layout: Layout) -> list[str]:
    """Constants: what each operand and result must be."""
    expected = [(_label("operand", k, v), v) for k, v in enumerate(layout.program.params)]
    expected += [(_label("result", k, v), v) for k, v in enumerate(layout.written)]
    donated = set(layout.aliases.values())
    rows = [(label, abi.XLA_DTYPES[v.dtype], ref_type(v).size) for label, v in expected]
    fresh = [0] * len(layout.program.params)
    fresh += [0 if k in donated else large_bytes(ref_type(v).nbytes) for k, v in enumerate(layout.written)]
    if layout.scratch_bytes:
        rows.append(("the scratch result", abi.XLA_BYTE, layout.scratch_bytes))
        fresh.append(large_bytes(layout.scratch_bytes))
    lines = [f"@label_{k} = private constant {c_string(label)}" for k, (label, _, _) in enumerate(rows)]
    records = [
        CHECK.constant(dtype=dtype, elements=size, label=f"@label_{k}", fresh=fresh[k])
        for k, (_, dtype, size) in enumerate(rows)
    ]
    return [*lines, f"@checks = private constant {CHECK.table(records)}"]


def launcher_text(triple: str) -> str:
    """LLVM IR of the launcher: exports `qd_run`, the parallel loops and `qd_api_seen`."""
    return "\n".join([abi.PRELUDE, abi.dtype_names(), parallel_for(triple), CLEARS, large_pages(triple), COPIES, _RUN])


def _format(name: str, text: str) -> str:
    return f"@{name} = private constant {c_string(text)}"


_RUN = f"""
{_format("say_counts", "qdtrace: program `%s` needs %lld operands and %lld results, got %lld and %lld")}
{_format("say_dtype", "qdtrace: program `%s` needs dtype %s for %s, got %s")}
{_format("say_elements", "qdtrace: program `%s` needs %lld elements in %s, got %lld")}
{_format("unknown", "an unknown dtype")}
declare i32 @snprintf(ptr, i64, ptr, ...)

define internal i64 @element_count(ptr %buffer) alwaysinline {{
entry:
  %rank = call i64 @load_i64(ptr %buffer, i64 {abi.BUFFER_RANK})
  %dims = call ptr @load_ptr(ptr %buffer, i64 {abi.BUFFER_DIMS})
  br label %head
head:
  %axis = phi i64 [0, %entry], [%axis1, %body]
  %n = phi i64 [1, %entry], [%n1, %body]
  %inside = icmp slt i64 %axis, %rank
  br i1 %inside, label %body, label %done
body:
  %p = getelementptr i64, ptr %dims, i64 %axis
  %d = load i64, ptr %p
  %n1 = mul i64 %n, %d
  %axis1 = add i64 %axis, 1
  br label %head
done:
  ret i64 %n
}}

define internal ptr @dtype_name(i64 %code) cold {{
  %known = icmp ult i64 %code, {max(abi.XLA_DTYPES.values()) + 1}
  br i1 %known, label %look, label %other
look:
  %p = getelementptr ptr, ptr @dtype_names, i64 %code
  %name = load ptr, ptr %p
  ret ptr %name
other:
  ret ptr @unknown
}}

define internal ptr @counts_error(ptr %frame, ptr %program, i64 %got_args, i64 %got_results) cold noinline {{
  %message = alloca [{MESSAGE_SIZE} x i8]
  {PROGRAM.load("%program", "name", "args", "results")}
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {MESSAGE_SIZE}, ptr @say_counts, ptr %name,
       i64 %args, i64 %results, i64 %got_args, i64 %got_results)
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.INVALID_ARGUMENT})
  ret ptr %e
}}

define internal ptr @buffer_error(ptr %frame, ptr %program, ptr %check, i64 %got_dtype,
                                  i64 %got_elements) cold noinline {{
  %message = alloca [{MESSAGE_SIZE} x i8]
  {PROGRAM.load("%program", "name")}
  {CHECK.load("%check", "label", "dtype", "elements")}
  %same = icmp eq i64 %dtype, %got_dtype
  br i1 %same, label %size, label %type
size:
  %n0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {MESSAGE_SIZE}, ptr @say_elements, ptr %name,
        i64 %elements, ptr %label, i64 %got_elements)
  br label %raise
type:
  %want = call ptr @dtype_name(i64 %dtype)
  %got = call ptr @dtype_name(i64 %got_dtype)
  %n1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {MESSAGE_SIZE}, ptr @say_dtype, ptr %name,
        ptr %want, ptr %label, ptr %got)
  br label %raise
raise:
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.INVALID_ARGUMENT})
  ret ptr %e
}}

; checks %count buffers of a list against the table and stores their data pointers; null, or the error
define internal ptr @collect(ptr %frame, ptr %program, i64 %list_offset, i64 %count, ptr %checks,
                             ptr %slots) alwaysinline {{
entry:
  %list = call ptr @load_ptr(ptr %frame, i64 %list_offset)
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %keep], [%i1, %advise]
  %inside = icmp slt i64 %i, %count
  br i1 %inside, label %body, label %done
body:
  %pb = getelementptr ptr, ptr %list, i64 %i
  %buffer = load ptr, ptr %pb
  %check_offset = mul i64 %i, {CHECK.size}
  %check = getelementptr i8, ptr %checks, i64 %check_offset
  %pd = getelementptr i8, ptr %buffer, i64 {abi.BUFFER_DTYPE}
  %dtype32 = load i32, ptr %pd
  %dtype = zext i32 %dtype32 to i64
  %n = call i64 @element_count(ptr %buffer)
  {CHECK.load("%check", "fresh", dtype="want_dtype", elements="want_n")}
  %dtype_ok = icmp eq i64 %dtype, %want_dtype
  %n_ok = icmp eq i64 %n, %want_n
  %ok = and i1 %dtype_ok, %n_ok
  br i1 %ok, label %keep, label %bad
keep:
  %data = call ptr @load_ptr(ptr %buffer, i64 {abi.BUFFER_DATA})
  %ps = getelementptr ptr, ptr %slots, i64 %i
  store ptr %data, ptr %ps
  %i1 = add i64 %i, 1
  %large = icmp ne i64 %fresh, 0
  br i1 %large, label %advise, label %head
advise:
  call void @advise_large(ptr %data, i64 %fresh)
  br label %head
bad:
  %e = call ptr @buffer_error(ptr %frame, ptr %program, ptr %check, i64 %dtype, i64 %n)
  ret ptr %e
done:
  ret ptr null
}}

; the error of the check that failed first
define internal ptr @fault_error(ptr %frame, ptr %task, ptr %failure) cold noinline {{
  %message = alloca [{FAULT_SIZE} x i8]
  {TASK.load("%task", "faults")}
  {FAILURE.load("%failure", "number", "value")}
  %index = sub i64 %number, 1
  %place = getelementptr ptr, ptr %faults, i64 %index
  %format = load ptr, ptr %place
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {FAULT_SIZE}, ptr %format, i64 %value)
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.OUT_OF_RANGE})
  ret ptr %e
}}

; fills the pointers that a task wants and runs it
define internal void @run_task(ptr %frame, ptr %task, ptr %slots, ptr %refs, i64 %threads, ptr %failure) {{
entry:
  %found = alloca [{BOUNDS.size} x i8], align 8
  {TASK.load("%task", "places", ref_count="count")}
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %body]
  %inside = icmp slt i64 %i, %count
  br i1 %inside, label %body, label %ask
body:
  %at = mul i64 %i, {PLACE.size}
  %place = getelementptr i8, ptr %places, i64 %at
  {PLACE.load("%place", "slot", "offset")}
  %ps = getelementptr ptr, ptr %slots, i64 %slot
  %base = load ptr, ptr %ps
  %data = getelementptr i8, ptr %base, i64 %offset
  %pr = getelementptr ptr, ptr %refs, i64 %i
  store ptr %data, ptr %pr
  %i1 = add i64 %i, 1
  br label %head
ask:
  %after = add i64 %count, {FAILED}
  %place_of_failure = getelementptr ptr, ptr %refs, i64 %after
  store ptr %failure, ptr %place_of_failure
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

define ptr @qd_run(ptr %frame, ptr %program) {{
entry:
  %metadata = call i1 @answer_metadata(ptr %frame)
  br i1 %metadata, label %finished, label %counts
counts:
  {PROGRAM.load("%program", "args", "results")}
  %got_args = call i64 @load_i64(ptr %frame, i64 {abi.FRAME_ARG_COUNT})
  %got_results = call i64 @load_i64(ptr %frame, i64 {abi.FRAME_RESULT_COUNT})
  %args_ok = icmp eq i64 %args, %got_args
  %results_ok = icmp eq i64 %results, %got_results
  %ok = and i1 %args_ok, %results_ok
  br i1 %ok, label %buffers, label %wrong
wrong:
  %e0 = call ptr @counts_error(ptr %frame, ptr %program, i64 %got_args, i64 %got_results)
  ret ptr %e0
buffers:
  %slot_count = add i64 %args, %results
  %all_slots = add i64 %slot_count, 1
  %slots = alloca ptr, i64 %all_slots
  {PROGRAM.load("%program", "constants", "checks")}
  %last_slot = getelementptr ptr, ptr %slots, i64 %slot_count
  store ptr %constants, ptr %last_slot
  %e1 = call ptr @collect(ptr %frame, ptr %program, i64 {abi.FRAME_ARGS}, i64 %args, ptr %checks, ptr %slots)
  %args_good = icmp eq ptr %e1, null
  br i1 %args_good, label %more, label %bad_args
bad_args:
  ret ptr %e1
more:
  %skip = mul i64 %args, {CHECK.size}
  %result_checks = getelementptr i8, ptr %checks, i64 %skip
  %result_slots = getelementptr ptr, ptr %slots, i64 %args
  %e2 = call ptr @collect(ptr %frame, ptr %program, i64 {abi.FRAME_RESULTS}, i64 %results, ptr %result_checks,
                          ptr %result_slots)
  %results_good = icmp eq ptr %e2, null
  br i1 %results_good, label %launch, label %bad_results
bad_results:
  ret ptr %e2
launch:
  {PROGRAM.load("%program", "words", "tasks", "threads", "clears", task_count="count")}
  %refs = alloca ptr, i64 %words
  %failure = alloca [{FAILURE.size} x i8], align 8
  {FAILURE.store("%failure", number="0", value="0")}
  br label %head
head:
  %k = phi i64 [0, %launch], [%k1, %body]
  %clear = phi ptr [%clears, %launch], [%next_clear, %body]
  %next_clear = call ptr @run_clears(ptr %frame, ptr %clear, i64 %k, ptr %slots, i64 %threads)
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
  %e3 = call ptr @fault_error(ptr %frame, ptr %task, ptr %failure)
  ret ptr %e3
finished:
  ret ptr null
}}
"""
