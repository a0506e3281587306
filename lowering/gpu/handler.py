"""The foreign-function handler of a program on a GPU: code of the host that enqueues a list of commands.

As on the CPU, code that all programs share is one *launcher*, and each program adds a table. A call checks the buffers
that XLA passes, then raises what failed in earlier calls (`words`), asks XLA for its stream (another one in each call,
perhaps one that records), and enqueues the commands. It waits for nothing and allocates nothing, so XLA may keep the
commands as a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.gpu.commands import Fill, watches
from lowering.gpu.events import EVENTS_WORD, events_around
from lowering.runtime.abi import COMMAND_BUFFER, INTERNAL, STREAM, c_string, prelude
from lowering.runtime.faults import FAULTS, fault_constants
from lowering.runtime.launch_log import LAUNCH_LOG, LOG_WORD
from lowering.runtime.operands import MESSAGE_SIZE, OPERANDS, TABLE, entry_lines, format_constant, signature_of
from lowering.tables import COMMAND, COMMANDS, FAILURE_BITS, FIELD, PLACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.gpu.commands import Command
    from lowering.gpu.driver import Functions
    from lowering.runtime.layout import Layout, Place

LAUNCHER_EXPORTS = ("qd_run", "qd_api_seen", LOG_WORD, EVENTS_WORD)
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
        taken = (command.place,) if isinstance(command, Fill) else command.arguments
        if taken not in tables:
            tables[taken] = f"@places_{k}"
            rows = [PLACE.constant(slot=place.slot, offset=place.offset) for place in taken]
            lines.append(f"@places_{k} = private constant {PLACE.table(rows)}")
        common = {"places": tables[taken], "count": len(taken)}
        if isinstance(command, Fill):
            rest = {"kernel": "null", "label": "null", "blocks": command.count, "threads": 0, "shared": 0}
            records.append(COMMAND.constant(**common, **rest, width=command.width, number=command.number))
        else:
            lines.append(f"@kernel_label_{k} = private constant {c_string(command.label)}")
            rest = {"kernel": f"@{command.symbol}", "label": f"@kernel_label_{k}"}
            sizes = {"blocks": command.blocks, "threads": command.threads, "shared": command.shared_bytes}
            sizes |= {"width": 0, "number": 0}
            records.append(COMMAND.constant(**common, **rest, **sizes))
    faults: list[str] = []
    for k, texts in enumerate(layout.faults):
        fault_lines, table = fault_constants(k, texts)
        lines += fault_lines
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
    kernels = dict.fromkeys(c.symbol for c in commands if not isinstance(c, Fill))
    return (*kernels, *((WORDS,) if watches(layout) else ()))


def launcher_text(driver: Functions) -> str:
    """Returns LLVM IR of the launcher: exports `qd_run` and `qd_api_seen`, imports the functions of the driver."""
    logs = (LAUNCH_LOG, events_around(driver))
    return "\n".join([prelude(COMMAND_BUFFER), STREAM, OPERANDS, FAULTS, *logs, _commands_of(driver), _RUN])


def _commands_of(driver: Functions) -> str:
    return f"""
{format_constant("say_refused", "qdtrace: program `%s`: the driver refused %s: %s")}
{format_constant("name_fill", "a fill")}
{format_constant("no_name", "an unknown error")}
declare i32 @{driver.launch}(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)
declare i32 @{driver.fill8}(i64, i8 zeroext, i64, ptr)
declare i32 @{driver.fill16}(i64, i16 zeroext, i64, ptr)
declare i32 @{driver.fill32}(i64, i32, i64, ptr)
declare i32 @{driver.error_name}(i32, ptr)

; the error of what the driver refused
define internal ptr @driver_error(ptr %frame, ptr %program, ptr %label, i32 %code) cold noinline {{
entry:
  %message = alloca [{MESSAGE_SIZE} x i8]
  %place = alloca ptr
  store ptr @no_name, ptr %place
  %ignored = call i32 @{driver.error_name}(i32 %code, ptr %place)
  %given = load ptr, ptr %place
  %none = icmp eq ptr %given, null
  %word = select i1 %none, ptr @no_name, ptr %given
  %unnamed = icmp eq ptr %label, null
  %what = select i1 %unnamed, ptr @name_fill, ptr %label
  {COMMANDS.load("%program", "name")}
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {MESSAGE_SIZE}, ptr @say_refused, ptr %name,
       ptr %what, ptr %word)
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {INTERNAL})
  ret ptr %e
}}

; enqueues one command: with a width it fills, else it launches; the driver's code
define internal i32 @enqueue(ptr %command, ptr %values, ptr %pointers, ptr %stream) alwaysinline {{
  {COMMAND.load("%command", "blocks", "threads", "shared", "width", "number", "kernel")}
  switch i64 %width, label %launch [ i64 1, label %fill8 i64 2, label %fill16 i64 4, label %fill32 ]
launch:
  %blocks32 = trunc i64 %blocks to i32
  %threads32 = trunc i64 %threads to i32
  %shared32 = trunc i64 %shared to i32
  %r0 = call i32 @{driver.launch}(ptr %kernel, i32 %blocks32, i32 1, i32 1, i32 %threads32, i32 1, i32 1, i32 %shared32,
                                  ptr %stream, ptr %pointers, ptr null)
  ret i32 %r0
fill8:
  %at8 = load i64, ptr %values
  %number8 = trunc i64 %number to i8
  %r8 = call i32 @{driver.fill8}(i64 %at8, i8 zeroext %number8, i64 %blocks, ptr %stream)
  ret i32 %r8
fill16:
  %at16 = load i64, ptr %values
  %number16 = trunc i64 %number to i16
  %r16 = call i32 @{driver.fill16}(i64 %at16, i16 zeroext %number16, i64 %blocks, ptr %stream)
  ret i32 %r16
fill32:
  %at32 = load i64, ptr %values
  %number32 = trunc i64 %number to i32
  %r32 = call i32 @{driver.fill32}(i64 %at32, i32 %number32, i64 %blocks, ptr %stream)
  ret i32 %r32
}}
"""


_RUN = f"""
; the error of a check that failed in an earlier call, whose words are cleared; null when none did
define internal ptr @earlier_failure(ptr %frame, ptr %program) alwaysinline {{
entry:
  {COMMANDS.load("%program", "words", word_count="count")}
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %body], [%k1, %take]
  %inside = icmp slt i64 %k, %count
  br i1 %inside, label %body, label %none
body:
  %place = getelementptr i64, ptr %words, i64 %k
  %seen = load volatile i64, ptr %place
  %k1 = add i64 %k, 1
  %fine = icmp eq i64 %seen, 0
  br i1 %fine, label %head, label %take
take:
  ; another thread may have taken it
  %word = atomicrmw xchg ptr %place, i64 0 seq_cst
  %gone = icmp eq i64 %word, 0
  br i1 %gone, label %head, label %clear
clear:
  ; later tasks may have failed because of this one
  %j = phi i64 [%k1, %take], [%j1, %next]
  %more = icmp slt i64 %j, %count
  br i1 %more, label %next, label %raise
next:
  %other = getelementptr i64, ptr %words, i64 %j
  store volatile i64 0, ptr %other
  %j1 = add i64 %j, 1
  br label %clear
raise:
  %e = call ptr @word_error(ptr %frame, ptr %program, i64 %k, i64 %word)
  ret ptr %e
none:
  ret ptr null
}}

define internal ptr @word_error(ptr %frame, ptr %program, i64 %task, i64 %word) cold noinline {{
  {COMMANDS.load("%program", faults="tables")}
  %place = getelementptr ptr, ptr %tables, i64 %task
  %faults = load ptr, ptr %place
  %number = lshr i64 %word, {FAILURE_BITS}
  %high = shl i64 %word, {8 * FIELD - FAILURE_BITS}
  %value = ashr i64 %high, {8 * FIELD - FAILURE_BITS}
  %e = call ptr @fault_error(ptr %frame, ptr %faults, i64 %number, i64 %value)
  ret ptr %e
}}

define ptr @qd_run(ptr %frame, ptr %program) {{
entry:
  %stream_place = alloca ptr
  %metadata = call i1 @answer_metadata(ptr %frame)
  br i1 %metadata, label %finished, label %buffers
buffers:
  {COMMANDS.load("%program", "args", "results", "words", "most")}
  %slot_count = add i64 %args, %results
  %all_slots = add i64 %slot_count, 2
  %slots = alloca ptr, i64 %all_slots
  %none = getelementptr ptr, ptr %slots, i64 %slot_count
  store ptr null, ptr %none
  %place_of_words = getelementptr ptr, ptr %none, i64 1
  store ptr %words, ptr %place_of_words
  %e1 = call ptr @collect(ptr %frame, ptr %program, ptr %slots)
  %good = icmp eq ptr %e1, null
  br i1 %good, label %earlier, label %bad
bad:
  ret ptr %e1
earlier:
  %e2 = call ptr @earlier_failure(ptr %frame, ptr %program)
  %fine = icmp eq ptr %e2, null
  br i1 %fine, label %ask, label %faulty
faulty:
  ret ptr %e2
ask:
  %e3 = call ptr @get_stream(ptr %frame, ptr %stream_place)
  %has_stream = icmp eq ptr %e3, null
  br i1 %has_stream, label %prepare, label %no_stream
no_stream:
  ret ptr %e3
prepare:
  %stream = load ptr, ptr %stream_place
  %values = alloca i64, i64 %most
  %pointers = alloca ptr, i64 %most
  br label %point
point:
  %p = phi i64 [0, %prepare], [%p1, %pointed]
  %unset = icmp slt i64 %p, %most
  br i1 %unset, label %pointed, label %launch
pointed:
  %pv = getelementptr i64, ptr %values, i64 %p
  %pp = getelementptr ptr, ptr %pointers, i64 %p
  store ptr %pv, ptr %pp
  %p1 = add i64 %p, 1
  br label %point
launch:
  {COMMANDS.load("%program", "commands", command_count="count")}
  br label %head
head:
  %k = phi i64 [0, %launch], [%k1, %body]
  %inside = icmp slt i64 %k, %count
  br i1 %inside, label %body, label %finished
body:
  %at = mul i64 %k, {COMMAND.size}
  %command = getelementptr i8, ptr %commands, i64 %at
  {COMMAND.load("%command", "places", count="taken")}
  call void @locate(ptr %places, i64 %taken, ptr %slots, ptr %values)
  %record = call ptr @claim()
  call void @mark(ptr %record, i64 0, ptr %stream)
  %code = call i32 @enqueue(ptr %command, ptr %values, ptr %pointers, ptr %stream)
  call void @mark(ptr %record, i64 1, ptr %stream)
  call void @write_down(ptr %record, ptr %command)
  %k1 = add i64 %k, 1
  %done = icmp eq i32 %code, 0
  br i1 %done, label %head, label %refused
refused:
  {COMMAND.load("%command", "label")}
  %e4 = call ptr @driver_error(ptr %frame, ptr %program, ptr %label, i32 %code)
  ret ptr %e4
finished:
  ret ptr null
}}
"""
