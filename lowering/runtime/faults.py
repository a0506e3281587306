"""Calls that fail: the texts of a program's checks, and the report of a failure that a task has recorded.

In a program of one device the call returns XLA's error. In a program of several devices the others may wait for this
one, in a reduction over all of them, and XLA ends the process if one does not come. So there the text goes into a list
of the process, the results are zeros, and the program goes on; `late` finds the text.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from lowering.llvm.host import MEMCPY, Cell, External, Fields, Symbol, function
from lowering.runtime import abi
from lowering.runtime.operands import SNPRINTF, clear_results
from lowering.tables import FAILURE, INTERRUPTED, LATE, NO_MEMORY, SIGNATURE, TASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.host import I1, I32, I64, Code, Ptr

FAULT_SIZE = 1 << 16
"""The most bytes of the message of a failure."""
SHARED = "qdtrace_shared"
"""The attribute of a call in a program of several devices; calls have no other attribute."""


_tables: list[object] = []
"""The texts that handlers of this process have addresses of."""


def fault_table(k: int) -> tuple[str, str]:
    """Returns the declaration of the texts of task number `k`, and their symbol."""
    return f"@qd_faults_{k} = external constant ptr", f"@qd_faults_{k}"


def fault_imports(texts: Sequence[Sequence[str]]) -> dict[str, int]:
    """Returns the addresses of new tables with the texts of each task (`Layout.texts`), by their symbols.

    A handler imports them, so that its code, its name and XLA's do not change with the lines that the texts name.
    """
    tables = [(ctypes.c_char_p * len(of_task))(*(text.encode() for text in of_task)) for of_task in texts]
    _tables.extend(tables)
    return {f"qd_faults_{k}": ctypes.addressof(table) for k, table in enumerate(tables)}


STOPPED = Symbol("qd_stop", "global i64 0")
"""A word that ends kernels while it is not 0."""
LATE_FAILURES = Symbol("qd_late", "global ptr null")
"""The list of failures that are told later."""
MALLOC = External("ptr malloc(i64)")
FREE = External("void free(ptr)")


@function("cold noinline")
def fault_error(c: Code, frame: Ptr, faults: Ptr, number: I64, value: I64) -> Ptr:
    """Returns the error of a check, by its number counted from 1 in a table of texts, which refused a value."""
    text = faults.word(number).load("ptr")
    size = SNPRINTF(c, None, 0, text, value).to("i64", "sext") + 1
    message = c.array("i8", size, 1)
    SNPRINTF(c, message, size, text, value)
    return abi.new_error(c, frame, message, abi.OUT_OF_RANGE)


# Note [Told values]
# A call of C passes integers and floats in registers of their own, so a text takes the next integer at `%lld` and the
# next float at `%g`, however the two follow each other. More integers than there are registers for lie in memory, in
# order; there are never more floats than that.


@function()
def failure_text(c: Code, program: Ptr, task: Ptr, failure: Ptr, message: Ptr) -> I32:
    """Puts the text of the failure of a task into a message; returns the code of the error."""
    failed, failing, name = Fields(FAILURE, failure), Fields(TASK, task), Fields(SIGNATURE, program).name
    with c.when(failed.number.equals(INTERRUPTED)):
        SNPRINTF(c, message, FAULT_SIZE, c.string("interrupted: `%s` was ended by Ctrl-C"), name)
        c.give(abi.ABORTED)
    with c.when(failed.number.equals(NO_MEMORY)):
        text = "task `%s` of `%s` needs %lld bytes of its own in each thread that runs it, which the system refused%s"
        largest = failing.faults.load("ptr")
        SNPRINTF(c, message, FAULT_SIZE, c.string(text), failing.name, name, failed.value, largest)
        c.give(abi.RESOURCE_EXHAUSTED)
    told = [getattr(failed, field) for field in list(FAILURE.types)[1:]]
    SNPRINTF(c, message, FAULT_SIZE, failing.faults.word(failed.number).load("ptr"), *told)  # see Note [Told values]
    return c.value(abi.OUT_OF_RANGE, "i32")


@function()
def keep_late(c: Code, message: Ptr) -> I1:
    """Puts a text into the list of failures that are told later; returns false if there is no memory for it."""
    late, head = Fields(LATE, MALLOC(c, LATE.size + FAULT_SIZE)), c.value(LATE_FAILURES, "ptr")
    c.give_if(late.pointer.equals(None), 0)
    MEMCPY(c, late.pointer.at(LATE.size), message, FAULT_SIZE, 0)
    following = Cell(head.load("ptr"))
    with c.loop() as leave:
        first = following.value
        late.put(next=first)
        pair = f"cmpxchg {head}, {first}, {late.pointer} release monotonic"
        found = c.op("{ptr, i1}", pair)
        following.value = c.op("ptr", f"extractvalue {found}, 0")
        leave(c.op("i1", f"extractvalue {found}, 1"))
    return c.value(1, "i1")


@function("cold noinline")
def failed_call(c: Code, frame: Ptr, program: Ptr, slots: Ptr, task: Ptr, failure: Ptr) -> Ptr:
    """Returns what a call gives whose task has failed: XLA's error, or null where the text is told later."""
    message = c.memory(f"[{FAULT_SIZE} x i8]")
    code = failure_text(c, program, task, failure, message)
    asked = Fields(FAILURE, failure).number.equals(INTERRUPTED)
    with c.when(frame.load("i64", abi.FRAME_ATTRIBUTE_COUNT).differs(0)):  # see SHARED
        told = Cell(asked)  # whoever is interrupted never sees these results
        with c.when(asked.equals(0)):
            told.value = keep_late(c, message)
        with c.when(told.value):
            clear_results(c, program, slots)
            c.give()
    with c.when(asked):  # the program ends: nobody else needs to
        c.do(f"store atomic i64 0, {c.value(STOPPED, 'ptr')} monotonic, align 8")
    return abi.new_error(c, frame, message, code)


@function()
def qd_take_late(c: Code) -> Ptr:
    """Returns the texts that nobody has taken yet, the last one first."""
    return c.op("ptr", f"atomicrmw xchg {c.value(LATE_FAILURES, 'ptr')}, ptr null acquire")


@function()
def qd_drop_late(c: Code, late: Ptr) -> None:
    """Frees a text."""
    FREE(c, late)
