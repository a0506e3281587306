"""The foreign-function handler of a program.

Code that all programs share is one LLVM module, the *launcher*: it takes the addresses that XLA passes and runs the
tasks in order. A program adds a *handler* module: a constant table (operands, tasks, places of references) and an
entry that passes the table to the launcher. So the code of a handler costs next to nothing to compile, and the call
does no work that depends on the number of programs. Between the tasks the launcher does the clears of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import Cell, Fields, c_string, function, module_text
from lowering.runtime import abi
from lowering.runtime.clear import clear_table, run_clears
from lowering.runtime.faults import LATE_FAILURES, STOPPED, failed_call, fault_table, qd_drop_late, qd_take_late
from lowering.runtime.interrupt_handler import INTERRUPT_WORDS, guard, qd_ask_to_end
from lowering.runtime.large_pages import advise_results, large_table
from lowering.runtime.launch_log import FILLS, LOG_ADDRESS, TASKS, began, note
from lowering.runtime.operands import TABLE, entry_lines, given_signature, locate, run_given_of, run_of, signature_of
from lowering.runtime.parallel import qd_parallel_for, qd_parallel_reduce, slot_limit
from lowering.runtime.thread_copies import CopyRecord, qd_parallel_update, run_loop
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
)  # fmt: skip
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.frozen import frozen
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.host import I64, Code, Ptr, Value
    from lowering.runtime.layout import Layout

GRAIN_OPERATIONS = 32768
"""The fewest scalar operations of a chunk for a thread: some microseconds of work, as long as waking one takes."""
SLOT_OPERATIONS = 4
"""Scalar operations of a chunk that pay for clearing and combining one byte of its slot."""


FUNCTIONS = {
    "qd_bounds": "ptr, ptr",
    "qd_combine": "ptr, ptr, i64",
    "qd_merge": "ptr, i64, i64, ptr",
    "qd_task": "ptr, i64, i64, ptr",
}
"""Functions of a task that the launcher calls, with the types of their parameters; only `qd_task` is always there."""


@frozen
class TaskShape:
    """Facts about a compiled task that the launcher needs."""

    cost: int
    """Estimated scalar operations of one iteration."""
    lanes: int
    functions: tuple[str, ...] = ("qd_task",)
    """Functions that the task has."""
    slot_bytes: int = 0
    """Bytes for the partial results of a chunk; 0 if the task does not reduce."""
    updates: int = 0
    """Accumulations of one iteration that need locks if other threads see the memory."""
    copies: tuple[CopyRecord, ...] = ()
    """Arrays that a thread may have copies of."""
    pieces: int = 0
    """Largest number of pieces of the loop on any number of threads; 0: that of threads."""

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


def handler_text(layout: Layout, shapes: Sequence[TaskShape], max_threads: int = 0, *, given: bool = False) -> str:
    """Returns LLVM IR of the handler: exports `qd_handler` and `qd_table`, imports `qd_run` and the functions of each
    task, `qd_task_K` and others, by its number. `given`: it runs in memory of the caller, of any size."""
    program = layout.program
    constants, signature = given_signature(layout) if given else signature_of(layout)
    lines = ["declare ptr @qd_run(ptr, ptr)", *constants]
    records: list[str] = []
    for k, (task, shape) in enumerate(zip(program.tasks, shapes, strict=True)):
        lines += [f"declare void @{name}_{k}({FUNCTIONS[name]})" for name in shape.functions]
        functions = {name: f"@{name}_{k}" if name in shape.functions else "null" for name in FUNCTIONS}
        places = layout.task_places[k]
        rows = [PLACE.constant(slot=place.slot, offset=place.offset) for place in places]
        lines += [f"@places_{k} = private constant {PLACE.table(rows)}"]
        lines += [f"@name_{k} = private constant {c_string(task.name)}"]
        declared, faults = fault_table(k)
        lines += [declared]
        if shape.copies:
            lines += [f"@copies_{k} = private constant {COPY.table(c.constant for c in shape.copies)}"]
        start, stop = static_bounds(task) or (0, 0)
        record = TASK.constant(
            code=functions["qd_task"],
            bounds=functions["qd_bounds"],
            places=f"@places_{k}",
            ref_count=len(places),
            start=start,
            stop=stop,
            grain=grain_of(shape),
            lanes=shape.lanes,
            combine=functions["qd_combine"],
            slot_bytes=shape.slot_bytes,
            most_slots=slot_limit(shape.slot_bytes),
            updates=shape.updates,
            merge=functions["qd_merge"],
            copy_bytes=shape.copy_bytes,
            copies=f"@copies_{k}" if shape.copies else "null",
            copy_count=len(shape.copies),
            pieces=shape.pieces,
            faults=faults,
            name=f"@name_{k}",
        )
        records.append(record)
    lines += [f"@clears = private constant {clear_table(layout.clears)}"]
    lines += [f"@large = private constant {large_table(None if given else layout)}"]
    if layout.constants:
        data = "".join(f"\\{byte:02x}" for byte in layout.constants)
        lines += [f'@constants = private constant [{len(layout.constants)} x i8] c"{data}", align {CACHE_LINE}']
    table = PROGRAM.constant(
        **signature,
        task_count=len(program.tasks),
        tasks=f"@{TABLE}",
        threads=max_threads,
        words=max(map(len, layout.task_places), default=0) + WORDS_AFTER_REFS,
        clears="@clears",
        large="@large",
        constants="@constants" if layout.constants else "null",
        loops=int(any(eqn.primitive.loops for task in program.tasks for eqn in walk_eqns(task.body))),
    )
    return "\n".join([*lines, *entry_lines(TASK.table(records), table), ""])


@function()
def run_task(c: Code, frame: Ptr, task_at: Ptr, slots: Ptr, refs: Ptr, threads: I64, failure: Ptr) -> None:
    """Fills the pointers that a task wants and runs it."""
    time, task, found = began(c), Fields(TASK, task_at), c.record(BOUNDS)
    count = task.ref_count
    locate(c, task.places, count, slots, refs)
    refs.word(count + FAILED).store(failure, "ptr")
    refs.word(count + STOP).store(STOPPED, "ptr")
    first, last, bounds = Cell(task.start), Cell(task.stop), task.bounds
    with c.when(bounds.differs(None)):
        c.call(bounds, "void", ["ptr", "ptr"], [refs, found])
        first.value, last.value = found.start, found.stop
    loop = first.value, last.value
    with c.when(loop[0] < loop[1]):
        shares = task.updates.differs(0)
        with c.when(shares):
            qd_parallel_update(c, frame, task, refs, *loop, threads)
        with c.when(shares.equals(0)):
            run_loop(c, frame, task, refs, *loop, threads)
    with c.when(time.differs(0)):
        note(c, task, TASKS, time, *loop)


@function("alwaysinline")
def clear_before(c: Code, frame: Ptr, clear: Ptr, k: I64, slots: Ptr, threads: I64, tasks: Ptr) -> Ptr:
    """Does what is filled before task `k` of a table, and returns the next one."""
    time, following = began(c), run_clears(c, frame, clear, k, slots, threads)
    with c.when(time.differs(0) & following.differs(clear)):
        note(c, tasks, FILLS, time, k, k)
    return following


def _run_tasks(c: Code, frame: Value, program: Fields, slots: Value, further: Value) -> None:
    """Emits the tasks of a program, and before each what is cleared."""
    further.store(program.constants, "ptr")
    guard(c, program)
    advise_results(c, program.large, slots)
    refs, failure, clear = c.array("ptr", program.words), c.record(FAILURE), Cell(program.clears)
    failure.put(number=0, value=0)  # a failing check puts the rest
    tasks, threads, count = Fields(TASK, program.tasks), program.threads, program.task_count
    number = Cell(c.value(0, "i64"))
    with c.loop() as leave:
        k = number.value
        clear.value = clear_before(c, frame, clear.value, k, slots, threads, tasks)
        leave(k >= count)
        number.value = k + 1
        task = tasks.row(k)
        run_task(c, frame, task, slots, refs, threads, failure)
        with c.when(failure.number.differs(0)):
            c.give(failed_call(c, frame, program, slots, task, failure))


_EXPORTS = (
    run_of(PROGRAM, 0, 1, _run_tasks), run_given_of(PROGRAM, _run_tasks),
    qd_parallel_for, qd_parallel_reduce, qd_parallel_update, abi.API_SEEN,
    LATE_FAILURES, qd_take_late, qd_drop_late, qd_ask_to_end, LOG_ADDRESS, *INTERRUPT_WORDS,
)  # fmt: skip
LAUNCHER_EXPORTS = tuple(symbol.name for symbol in _EXPORTS)


def launcher_text(triple: str) -> str:
    """Returns LLVM IR of the launcher, which exports `LAUNCHER_EXPORTS`."""
    return module_text(_EXPORTS, triple)
