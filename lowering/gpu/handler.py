"""The foreign-function handler of a program on a GPU: code of the host that enqueues a list of commands.

As on the CPU, code that all programs share is one *launcher*, and each program adds a table. A call checks the buffers
that XLA passes, then raises what failed in earlier calls (`words`), asks XLA for its stream (another one in each call,
perhaps one that records), and enqueues the commands. It waits for nothing and allocates nothing, so XLA may keep the
commands as a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.gpu.commands import watches
from lowering.gpu.driver import LAUNCH_PARAMETERS
from lowering.gpu.events import EVENTS, mark, write_down
from lowering.llvm.host import Cell, External, Fields, Function, c_string, function, module_text
from lowering.runtime import abi
from lowering.runtime.abi import COMMAND_BUFFER, get_stream
from lowering.runtime.faults import fault_error, fault_table
from lowering.runtime.launch_log import LOG_ADDRESS, claim
from lowering.runtime.operands import TABLE, entry_lines, error_of, locate, run_of, signature_of
from lowering.tables import COMMAND, COMMANDS, FAILURE_BITS, FIELD, PLACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.gpu.commands import Command
    from lowering.gpu.driver import Functions
    from lowering.llvm.host import I32, I64, Code, Ptr, Value
    from lowering.runtime.layout import Layout, Place

WORDS = "qd_words"


def handler_text(layout: Layout, commands: Sequence[Command]) -> str:
    """Returns LLVM IR of the handler: exports `qd_handler` and `qd_table`, imports `qd_run`, the kernels of the
    commands and, if a check may fail, `qd_words`."""
    constants, signature = signature_of(layout)
    lines = ["declare ptr @qd_run(ptr, ptr)", *constants]
    lines += [f"@{symbol} = external global i8" for symbol in imported(layout, commands)]
    tables: dict[tuple[Place, ...], str] = {}
    records: list[str] = []
    for k, command in enumerate(commands):
        if command.places not in tables:
            tables[command.places] = f"@places_{k}"
            rows = [PLACE.constant(slot=place.slot, offset=place.offset) for place in command.places]
            lines.append(f"@places_{k} = private constant {PLACE.table(rows)}")
        if command.label:
            lines.append(f"@kernel_label_{k} = private constant {c_string(command.label)}")
        record = COMMAND.constant(
            places=tables[command.places],
            count=len(command.places),
            kernel=f"@{command.symbol}" if command.symbol else "null",
            label=f"@kernel_label_{k}" if command.label else "null",
            blocks=command.blocks,
            threads=command.threads,
            shared=command.shared_bytes,
            width=command.width,
            number=command.number,
        )
        records.append(record)
    faults: list[str] = []
    for k in range(len(layout.faults)):
        declared, table = fault_table(k)
        lines.append(declared)
        faults.append(f"ptr {table}")
    watched = watches(layout)
    table = COMMANDS.constant(
        **signature,
        commands=f"@{TABLE}",
        command_count=len(records),
        most=max((len(places) for places in tables), default=0),
        words=f"@{WORDS}" if watched else "null",
        word_count=len(faults) if watched else 0,
        faults="@faults",
    )
    lines.append(f"@faults = private constant [{len(faults)} x ptr] [{', '.join(faults)}]")
    return "\n".join([*lines, *entry_lines(COMMAND.table(records), table), ""])


def imported(layout: Layout, commands: Sequence[Command]) -> tuple[str, ...]:
    """Returns the symbols of the handler whose addresses only this process knows: kernels, words of failures."""
    kernels = dict.fromkeys(c.symbol for c in commands if c.symbol)
    return (*kernels, *((WORDS,) if watches(layout) else ()))


def launcher_text(driver: Functions, triple: str) -> str:
    """Returns LLVM IR of the launcher: exports `LAUNCHER_EXPORTS`, imports the functions of the driver."""

    def run_commands(c: Code, frame: Value, program: Fields, slots: Value, further: Value) -> None:
        _run_commands(c, driver, frame, program, slots, further)

    return module_text((run_of(COMMANDS, COMMAND_BUFFER, 2, run_commands), *_WORDS), triple)


_WORDS = (abi.API_SEEN, LOG_ADDRESS, EVENTS)
LAUNCHER_EXPORTS = ("qd_run", *(word.name for word in _WORDS))


def _run_commands(c: Code, driver: Functions, frame: Value, program: Fields, slots: Value, further: Value) -> None:
    """Emits what a call does: it raises what failed earlier, and enqueues the commands on XLA's stream."""
    further.store(None, "ptr")
    further.word(1).store(program.words, "ptr")
    failure = earlier_failure(c, frame, program)
    c.give_if(failure.differs(None), failure)
    place = c.memory("ptr")
    error = get_stream(c, frame, place)
    c.give_if(error.differs(None), error)
    stream, most = place.load("ptr"), program.most
    values, pointers = c.array("i64", most), c.array("ptr", most)
    with c.each(0, most) as k:
        pointers.word(k).store(values.word(k), "ptr")
    commands = Fields(COMMAND, program.commands)
    with c.each(0, program.command_count) as k:
        command = commands.row(k)
        locate(c, command.places, command.count, slots, values)
        record = claim(c)
        mark(c, driver, record, 0, stream)
        code = Cell(c.value(0, "i32"))
        _enqueue(c, driver, command, values, pointers, stream, code)
        mark(c, driver, record, 1, stream)
        write_down(c, record, command)
        with c.when(code.value.differs(0)):
            c.give(_refusal(driver)(c, frame, program, command.label, code.value))


def _enqueue(
    c: Code, driver: Functions, command: Fields, values: Value, pointers: Value, stream: Value, code: Cell
) -> None:
    """Emits one command: with a width it fills, else it launches. The cell gets the driver's code."""
    width = command.width
    with c.when(width <= 0):
        launch = External(f"i32 {driver.launch}{LAUNCH_PARAMETERS}")
        blocks, threads, shared = (n.to("i32", "trunc") for n in (command.blocks, command.threads, command.shared))
        code.value = launch(c, command.kernel, blocks, 1, 1, threads, 1, 1, shared, stream, pointers, None)
    with c.when(width > 0):  # not one of four cases, for which LLVM makes a table of jumps
        for size, fill in (1, driver.fill8), (2, driver.fill16), (4, driver.fill32):
            kind = f"i{8 * size}"
            with c.when(width.equals(size)):
                fills = External(f"i32 {fill}(i64, {kind}{' zeroext' if size < 4 else ''}, i64, ptr)")
                code.value = fills(c, values.load("i64"), command.number.to(kind, "trunc"), command.blocks, stream)


def _refusal(driver: Functions) -> Function:
    @function("cold noinline")
    def driver_error(c: Code, frame: Ptr, program: Ptr, label: Ptr, code: I32) -> Ptr:
        """Returns the error of what the driver refused."""
        place, unknown = c.memory("ptr"), c.string("an unknown error")
        place.store(unknown, "ptr")
        External(f"i32 {driver.error_name}(i32, ptr)")(c, code, place)
        given = place.load("ptr")
        word = c.select(given.equals(None), unknown, given, "ptr")
        what = c.select(label.equals(None), c.string("a fill"), label, "ptr")
        text = "qdtrace: program `%s`: the driver refused %s: %s"
        return error_of(c, frame, abi.INTERNAL, text, Fields(COMMANDS, program).name, what, word)

    return driver_error


@function("alwaysinline")
def earlier_failure(c: Code, frame: Ptr, program: Ptr) -> Ptr:
    """Returns the error of a check that failed in an earlier call, whose words are cleared; null when none did."""
    p = Fields(COMMANDS, program)
    words, count = p.words, p.word_count
    with c.each(0, count) as k:
        place = words.word(k)
        with c.when(place.load("i64", how="volatile ").differs(0)):
            word = c.op("i64", f"atomicrmw xchg {place}, i64 0 seq_cst")
            with c.when(word.differs(0)):  # another thread may have taken it
                with c.each(k + 1, count) as j:  # later tasks may have failed because of this one
                    words.word(j).store(0, how="volatile ")
                c.give(word_error(c, frame, program, k, word))
    return c.value(None, "ptr")


@function("cold noinline")
def word_error(c: Code, frame: Ptr, program: Ptr, task: I64, word: I64) -> Ptr:
    """Returns the error that a word of failure describes."""
    faults, unused = Fields(COMMANDS, program).faults.word(task).load("ptr"), 8 * FIELD - FAILURE_BITS
    value = c.op("i64", f"ashr {word << unused}, {unused}")
    return fault_error(c, frame, faults, word >> FAILURE_BITS, value)
