"""Calls that fail: the texts of a program's checks, and the report of a failure that a task has recorded.

In a program of one device the call returns XLA's error. In a program of several devices the others may wait for this
one, in a reduction over all of them, and XLA ends the process if one does not come. So there the text goes into a list
of the process, the results are zeros, and the program goes on; `late` finds the text.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from lowering.runtime import abi
from lowering.runtime.abi import c_string
from lowering.tables import FAILURE, INTERRUPTED, LATE, NO_MEMORY, SIGNATURE, TASK

if TYPE_CHECKING:
    from collections.abc import Sequence

FAULT_SIZE = 1 << 16
"""The most bytes of the message of a failure."""
SHARED = "qdtrace_shared"
"""The attribute of a call in a program of several devices; calls have no other attribute."""


_tables: list[object] = []
"""The texts that handlers of this process have addresses of."""


def fault_constants(k: int, texts: Sequence[str]) -> tuple[list[str], str]:
    """Returns the declaration of the texts of checks of task number `k`, and the symbol of their table, or `null`."""
    symbol = f"qd_faults_{k}"
    return ([f"@{symbol} = external constant [{len(texts)} x ptr]"], f"@{symbol}") if texts else ([], "null")


def fault_imports(faults: Sequence[Sequence[str]]) -> dict[str, int]:
    """Returns the addresses of new tables with the texts of the checks of each task, by their symbols.

    A handler imports them, so that its code, its name and XLA's do not change with the lines that the texts name.
    """
    tables = {
        f"qd_faults_{k}": (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
        for k, texts in enumerate(faults)
        if texts
    }
    _tables.extend(tables.values())
    return {symbol: ctypes.addressof(table) for symbol, table in tables.items()}


FAULTS = f"""
; puts what check %number (counted from 1) of a table of texts says into %message, when it has refused %value
define internal void @fault_text(ptr %faults, i64 %number, i64 %value, ptr %message) {{
  %index = sub i64 %number, 1
  %place = getelementptr ptr, ptr %faults, i64 %index
  %format = load ptr, ptr %place
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {FAULT_SIZE}, ptr %format, i64 %value)
  ret void
}}

; the error of check %number (counted from 1) of a table of texts, which refused %value
define internal ptr @fault_error(ptr %frame, ptr %faults, i64 %number, i64 %value) cold noinline {{
  %index = sub i64 %number, 1
  %place = getelementptr ptr, ptr %faults, i64 %index
  %format = load ptr, ptr %place
  %length = call i32 (ptr, i64, ptr, ...) @snprintf(ptr null, i64 0, ptr %format, i64 %value)
  %wide = sext i32 %length to i64
  %size = add i64 %wide, 1
  %message = alloca i8, i64 %size
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 %size, ptr %format, i64 %value)
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.OUT_OF_RANGE})
  ret ptr %e
}}
"""

FAILED_CALLS = f"""
@say_interrupted = private constant {c_string("interrupted: `%s` was ended by Ctrl-C")}
@say_memory = private constant {
    c_string("task `%s` of `%s` needs %lld bytes of its own in each thread that runs it, which the system refused")
}
@qd_late = global ptr null

; puts the text of the failure of a task into %message; the code of the error
define internal i32 @failure_text(ptr %program, ptr %task, ptr %failure, ptr %message) {{
entry:
  {FAILURE.load("%failure", "number", "value")}
  {SIGNATURE.load("%program", name="program_name")}
  {TASK.load("%task", "name", "faults")}
  switch i64 %number, label %check [i64 {INTERRUPTED}, label %interrupted
                                    i64 {NO_MEMORY}, label %memory]
check:
  call void @fault_text(ptr %faults, i64 %number, i64 %value, ptr %message)
  ret i32 {abi.OUT_OF_RANGE}
interrupted:
  %n1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {FAULT_SIZE}, ptr @say_interrupted,
        ptr %program_name)
  ret i32 {abi.ABORTED}
memory:
  %n2 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {FAULT_SIZE}, ptr @say_memory, ptr %name,
        ptr %program_name, i64 %value)
  ret i32 {abi.RESOURCE_EXHAUSTED}
}}

; what a call gives whose task has failed: XLA's error, or null where the text is told later
define internal ptr @failed_call(ptr %frame, ptr %program, ptr %slots, ptr %task, ptr %failure) cold noinline {{
entry:
  %message = alloca [{FAULT_SIZE} x i8]
  %number = call i64 @load_i64(ptr %failure, i64 {FAILURE.offsets["number"]})
  %asked = icmp eq i64 %number, {INTERRUPTED}
  %code = call i32 @failure_text(ptr %program, ptr %task, ptr %failure, ptr %message)
  %attributes = call i64 @load_i64(ptr %frame, i64 {abi.FRAME_ATTRIBUTE_COUNT})
  %shared = icmp ne i64 %attributes, 0
  br i1 %shared, label %others, label %tell
others:
  ; whoever is interrupted never sees these results
  br i1 %asked, label %clear, label %keep
tell:
  br i1 %asked, label %taken, label %raise
taken:
  ; the program ends: nobody else needs to
  store atomic i64 0, ptr @qd_stop monotonic, align 8
  br label %raise
raise:
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 %code)
  ret ptr %e
keep:
  %late = call ptr @malloc(i64 {LATE.size + FAULT_SIZE})
  %none = icmp eq ptr %late, null
  br i1 %none, label %tell, label %fill
fill:
  %text = getelementptr i8, ptr %late, i64 {LATE.size}
  call void @llvm.memcpy.p0.p0.i64(ptr %text, ptr %message, i64 {FAULT_SIZE}, i1 false)
  %old = load ptr, ptr @qd_late
  br label %push
push:
  %next = phi ptr [%old, %fill], [%found, %push]
  {LATE.store("%late", "next")}
  %pair = cmpxchg ptr @qd_late, ptr %next, ptr %late release monotonic
  %found = extractvalue {{ptr, i1}} %pair, 0
  %done = extractvalue {{ptr, i1}} %pair, 1
  br i1 %done, label %clear, label %push
clear:
  call void @clear_results(ptr %program, ptr %slots)
  ret ptr null
}}

; the texts that nobody has taken yet, the last one first
define ptr @qd_take_late() {{
  %all = atomicrmw xchg ptr @qd_late, ptr null acquire
  ret ptr %all
}}

define void @qd_drop_late(ptr %late) {{
  call void @free(ptr %late)
  ret void
}}
"""
"""IR that reports a failed call, and of the list of failures that are reported later."""
