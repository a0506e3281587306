"""Error texts of failing checks, the same from the interpreter and from machine code.

Machine code keeps the text with a mark in place of the index, which is only known at run time, so `fault_of` takes the
index as text. `fault_in` finds the error again in the message of the layer that passed it on.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from qdtrace.errors import BoundsError, CheckError, Loc, OutOfMemoryError
from qdtrace.ir.primitives import BOUND, CELL, CHECK, TELL, Effect
from qdtrace.ir.walk import private_bytes, walk_eqns, walk_task
from qdtrace.tracebacks import file_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.errors import QdError
    from qdtrace.ir.program import Eqn, Task

_HELP = (
    "keep traced indices between 0 and the length of the axis minus 1 (negative ones do not count from the end), or "
    "guard the access with qd.when"
)
TRIPS = -1
"""The `axis` of a `bound` that checks a trip count; its `buffer` is the kind of the loop."""
_LESS = "give a larger `most`, or bounds with fewer iterations"
_FAILED = "check failed: "
_PLACE = r"\n  at [^\n]*?(?::|, line )\d+"
"""Pattern of a source location; the last match in a text is that of the error, others are in the user's message."""
_NO_MEMORY = re.compile(
    r"task `[^`]*` of `[^`]*` needs \d+ bytes of its own in each thread that runs it, which the system refused"
    r"(?:; \d+ bytes of them an iteration are kept by the code"
    r"\n  at (?P<file>[^\n]*?)(?::|, line )(?P<line>\d+)(?: in (?P<function>[^\n]*))?)?"
)
_LESS_MEMORY = "use smaller private arrays or fewer threads (num_threads); in derivatives a lower ad_stack_memory"
_FAULT = re.compile(
    rf"(?P<rule>index -?\d+ is out of bounds for axis \d+ of `[^\n]*"
    rf"|qd\.\w+ needs at most \d+ iterations \(most=\d+\), got [^\n]*|{_FAILED}(?:.*(?={_PLACE})|.*))"
    r"(?:\n  at (?P<file>[^\n]*?)(?::|, line )(?P<line>\d+)(?: in (?P<function>[^\n]*))?(?:\n.*)?)?\Z",
    re.DOTALL,
)


def checks_of(task: Task) -> list[Eqn]:
    """Returns the checks of a task; code refers to one by its position here."""
    return [e for e in walk_task(task) if Effect.CHECK in e.primitive.effects]


def may_fail(eqns: Iterable[Eqn]) -> bool:
    """Returns whether one of the equations is a check of an index or of a condition, or a callback."""
    return any(e.primitive in (BOUND, CHECK, TELL) for e in eqns)


def fault_of(eqn: Eqn, value: str = "") -> QdError:
    """Returns the error of a `bound` that fails for the index `value`, or of a `check` that fails."""
    p = eqn.params
    if eqn.primitive is CHECK:
        return CheckError(_FAILED + str(p["message"]), loc=eqn.loc)
    if p["axis"] == TRIPS:
        most, got = int(p["size"]) - 1, f"at least {value}" if p["buffer"] == "qd.while_" else value
        rule = f"{p['buffer']} needs at most {most} iterations (most={most}), got {got}"
        return BoundsError(rule, loc=eqn.loc, help=_LESS)
    rule = f"index {value} is out of bounds for axis {p['axis']} of `{p['buffer']}` with shape {p['shape']}"
    return BoundsError(rule, loc=eqn.loc, help=_HELP)


def fault_in(text: str) -> QdError | None:
    """Returns the error that is contained in a message of XLA, or None if it has none."""
    if (no_memory := _NO_MEMORY.search(text)) is not None:
        return OutOfMemoryError(no_memory[0].partition("\n")[0], loc=_loc(no_memory), help=_LESS_MEMORY)
    found = _FAULT.search(text)
    if found is None:
        return None
    loc = _loc(found)
    if found["rule"].startswith(_FAILED):
        return CheckError(found["rule"], loc=loc)
    return BoundsError(found["rule"], loc=loc, help=_HELP if found["rule"].startswith("index") else _LESS)


def _loc(found: re.Match[str]) -> Loc | None:
    return Loc(file_of(found["file"]), int(found["line"]), found["function"] or "") if found["file"] else None


def largest_private(task: Task) -> str:
    """Returns what a failed allocation says of the line whose private arrays take most: a loop of reverse mode, or the
    array itself. It is empty if that is not known."""
    held: Counter[Loc] = Counter()
    for eqn in walk_eqns(task.body):
        if eqn.primitive is CELL and eqn.loc is not None:
            held[eqn.loc] += private_bytes([eqn])
    if not held:
        return ""
    ((loc, nbytes),) = held.most_common(1)
    return f"; {nbytes} bytes of them an iteration are kept by the code\n  at {loc}"
