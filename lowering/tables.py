"""What tasks, handlers and the launcher agree on: records in memory, each described once.

The description gives offsets for code that reads and writes a record, and constants for tables that hold one. All
fields have eight bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELD = 8
CACHE_LINE = 64
"""Bytes; what threads write side by side begins at a multiple of it."""


class Record:
    """A record: its fields are given as `type name, ...`, with `*` before one that begins a cache line."""

    def __init__(self, fields: str) -> None:
        self.types: dict[str, str] = {}
        self.offsets: dict[str, int] = {}
        end = 0
        for field in fields.split(", "):
            kind, name = field.removeprefix("*").split()
            if field.startswith("*"):
                end = round_up(end, CACHE_LINE)
            self.types[name], self.offsets[name] = kind, end
            end += FIELD
        self.size = round_up(end, CACHE_LINE) if "*" in fields else end

    def constant(self, **values: object) -> str:
        """A constant with these values: `{ptr, i64} {ptr @name, i64 1}`."""
        fields = ", ".join(f"{kind} {values[name]}" for name, kind in self.types.items())
        return f"{{{', '.join(self.types.values())}}} {{{fields}}}"

    def table(self, constants: Iterable[str]) -> str:
        """A constant of several, one behind another."""
        rows = list(constants)
        return f"[{len(rows)} x {{{', '.join(self.types.values())}}}] [{', '.join(rows)}]"

    def load(self, base: str, *names: str, **fields: str) -> str:
        """Lines that load fields into registers of their names; `field="register"` gives another one."""
        return "\n  ".join(
            f"%{register} = call {self.types[field]} @load_{self.types[field]}(ptr {base}, i64 {self.offsets[field]})"
            for field, register in {**dict(zip(names, names, strict=True)), **fields}.items()
        )

    def store(self, base: str, *names: str, **fields: str) -> str:
        """Lines that store registers of their names into fields; `field="register"` stores another one, or a number."""
        return "\n  ".join(
            f"call void @store_{self.types[field]}(ptr {base}, i64 {self.offsets[field]}, {self.types[field]} {value})"
            for field, value in (
                (field, name if name[0].isdigit() else f"%{name}")
                for field, name in {**dict(zip(names, names, strict=True)), **fields}.items()
            )
        )


def round_up(size: int, unit: int) -> int:
    """The next multiple of the unit."""
    return -(-size // unit) * unit


_SIGNATURE = "ptr name, i64 args, i64 results, ptr checks"
SIGNATURE = Record(_SIGNATURE)
"""What a call of a program has to pass: how the table of a program begins, on every platform."""
CHECK = Record("i64 dtype, i64 elements, ptr label")
"""What an operand or result must be."""
PROGRAM = Record(
    f"{_SIGNATURE}, i64 task_count, ptr tasks, i64 threads, i64 words, ptr clears, ptr large, ptr constants, i64 loops"
)
"""What a handler gives to the launcher; `words`: of the longest list of references; `loops`: whether a task has any."""
COMMANDS = Record(
    f"{_SIGNATURE}, ptr commands, i64 command_count, i64 most, ptr words, i64 word_count, ptr faults"
)
"""The same on a GPU; `most`: of what a command takes; `words`: of failures, one a task, as are tables of texts."""
COMMAND = Record(
    "ptr places, i64 count, ptr kernel, ptr label, i64 blocks, i64 threads, i64 shared, i64 width, i64 number"
)
"""A launch, or a fill of `blocks` numbers that have `width` bytes."""
LARGE = Record("i64 slot, i64 bytes")
"""Memory of a result that is large and that nobody has touched."""
TASK = Record(
    "ptr code, ptr bounds, ptr places, i64 ref_count, i64 start, i64 stop, i64 grain, i64 lanes, ptr combine, "
    "i64 slot_bytes, i64 most_slots, i64 updates, ptr merge, i64 copy_bytes, ptr copies, i64 copy_count, ptr faults, "
    "ptr name"
)
PLACE = Record("i64 slot, i64 offset")
"""Where a reference is: an operand or result (operands count first), and bytes into it."""
BOUNDS = Record("i64 start, i64 stop")
CLEAR = Record("i64 before, i64 slot, i64 offset, i64 bytes, i64 pattern")
"""Memory to fill before the task of that number."""
FILL = Record("ptr data, i64 pattern")
"""The references of the loop that fills memory."""
COPY = Record("i64 ref, i64 offset, i64 bytes, i64 pattern")
"""An array in the copies of a thread, by its number among the references of the task."""
FAILURE = Record("i64 number, i64 value")
"""The check that failed first, counted from 1, and the index that it refused; or one of the numbers below."""
INTERRUPTED, NO_MEMORY = -1, -2
"""Failures that are no checks: the task was asked to end, or got no memory (the value: bytes)."""
LATE = Record("ptr next")
"""A failure that is told later; its text is behind it."""
FAILURE_BITS = 48
"""Of a failure in one word: those of the value; the number of the check stands above them."""
MERGE = Record("ptr refs, ptr copies, i64 others")
"""What `qd_merge` takes."""
JOB = Record(
    "ptr task, ptr shared_refs, i64 ref_count, i64 start, i64 stop, i64 chunk, i64 chunks, i64 pieces, ptr slots, "
    "i64 slot_bytes, ptr copies, i64 copy_bytes, ptr table, i64 copied"
)
"""A loop that threads run in a piece each."""
LOOP = Record(
    "*i64 next, *i64 done, *i64 users, ptr task, ptr refs, i64 start, i64 stop, i64 chunk, i64 count, ptr slots, "
    "i64 slot_bytes"
)
"""A loop that threads share; all of them write its first three fields."""

LOG = Record("*i64 next, *i64 room")
"""How a log of launches begins: how many records were claimed, and how many there are."""
LAUNCHED = Record("ptr what, i64 kind, i64 began, i64 ended, i64 start, i64 stop, i64 thread, i64 complete")
"""One of them, complete when its last field says so (`runtime.launch_log`)."""

UNLOCKED, FAILED, STOP, WORDS_AFTER_REFS = 0, 1, 2, 3
"""What stands behind the references of a task: whether it accumulates without locks, where a failure is kept, and where
the word is that is not 0 when the task is to end."""
