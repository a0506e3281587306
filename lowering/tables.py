"""Records in memory that tasks, handlers and the launcher share, each described once.

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
        """Returns a constant with these values: `{ptr, i64} {ptr @name, i64 1}`."""
        fields = ", ".join(f"{kind} {values[name]}" for name, kind in self.types.items())
        return f"{{{', '.join(self.types.values())}}} {{{fields}}}"

    def table(self, constants: Iterable[str]) -> str:
        """Returns an array constant of several records."""
        rows = list(constants)
        return f"[{len(rows)} x {{{', '.join(self.types.values())}}}] [{', '.join(rows)}]"


def round_up(size: int, unit: int) -> int:
    """Returns `size` rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit


_SIGNATURE = "ptr name, i64 args, i64 results, ptr checks"
SIGNATURE = Record(_SIGNATURE)
"""The operands and results that a call of a program must pass: the first fields of each program's table."""
CHECK = Record("i64 dtype, i64 elements, ptr label")
"""The dtype, size and name that an operand or result must have."""
PROGRAM = Record(
    f"{_SIGNATURE}, i64 task_count, ptr tasks, i64 threads, i64 words, ptr clears, ptr large, ptr constants, i64 loops"
)
"""A handler's table for the launcher; `words`: length of the longest list of references; `loops`: 1 if a task loops."""
COMMANDS = Record(
    f"{_SIGNATURE}, ptr commands, i64 command_count, i64 most, ptr words, i64 word_count, ptr faults"
)
"""The table on a GPU; `most`: arguments of the longest command; `words`, `faults`: failure and texts of each task."""
COMMAND = Record(
    "ptr places, i64 count, ptr kernel, ptr label, i64 blocks, i64 threads, i64 shared, i64 width, i64 number"
)
"""A launch, or a fill of `blocks` numbers that have `width` bytes."""
LARGE = Record("i64 slot, i64 bytes, i64 source")
"""A large result whose memory nobody has touched yet, unless it is that of the slot `source` (its own: none)."""
TASK = Record(
    "ptr code, ptr bounds, ptr places, i64 ref_count, i64 start, i64 stop, i64 grain, i64 lanes, ptr combine, "
    "i64 slot_bytes, i64 most_slots, i64 updates, ptr merge, i64 copy_bytes, ptr copies, i64 copy_count, "
    "i64 pieces, ptr faults, ptr name"
)
PLACE = Record("i64 slot, i64 offset")
"""The place of a reference: a slot (operands, then results) and a byte offset into it."""
BOUNDS = Record("i64 start, i64 stop")
CLEAR = Record("i64 before, i64 slot, i64 offset, i64 bytes, i64 pattern")
"""Memory to fill before the task of that number."""
FILL = Record("ptr data, i64 pattern")
"""The references of the loop that fills memory."""
COPY = Record("i64 ref, i64 offset, i64 bytes, i64 pattern")
"""An array in the copies of a thread, by its number among the references of the task."""
FAILURE = Record(
    "i64 number, i64 value, i64 whole1, i64 whole2, i64 whole3, i64 whole4, "
    "double real0, double real1, double real2, double real3"
)
"""The check that failed first, counted from 1, or one of the numbers below; then what its text tells: the index that it
refused, or the integers of the text in order, and the floats of the text in order."""
INTERRUPTED, NO_MEMORY = -1, -2
"""Failures that are no checks: the task was asked to end, or got no memory (the value: bytes)."""
LATE = Record("ptr next")
"""A failure that is told later; its text is behind it."""
FAILURE_BITS = 48
"""Bits of the value in a failure that is packed into one word; the number of the check is above them."""
MERGE = Record("ptr refs, ptr copies, i64 others")
"""The argument of `qd_merge`."""
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
"""The head of a log of launches: how many records were claimed, and how many there are."""
LAUNCHED = Record("ptr what, i64 kind, i64 began, i64 ended, i64 start, i64 stop, i64 thread, i64 complete")
"""A record of that log, complete when its last field is set (`runtime.launch_log`)."""

UNLOCKED, FAILED, STOP, WORDS_AFTER_REFS = 0, 1, 2, 3
"""Words after the references of a task: 1 if it accumulates without locks, the address of the failure record, and the
address of a word that becomes nonzero when the task has to end."""
