"""Texts of failing checks, and their errors found again in the message of the layer that passed them on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from qdtrace.errors import BoundsError, CheckError, Loc, OutOfMemoryError
from qdtrace.tracebacks import file_of

if TYPE_CHECKING:
    from qdtrace.errors import QdError

HELP = (
    "keep traced indices between 0 and the length of the axis minus 1 (negative ones do not count from the end), or "
    "guard the access with qd.when"
)
LESS = "give a larger `most`, or bounds with fewer iterations"
FAILED = "check failed: "
_PLACE = r"\n  at [^\n]*?(?::|, line )\d+"
"""Pattern of a source location; the last match in a text is that of the error, others are in the user's message."""
_TOLD = re.compile(r"\nnote: (.*)\Z")
"""Pattern of what a failing `qd.check` tells, behind its place."""
_NO_MEMORY = re.compile(
    r"task `[^`]*` of `[^`]*` needs \d+ bytes of its own in each thread that runs it, which the system refused"
    r"(?:; \d+ bytes of them an iteration are kept by the code"
    r"\n  at (?P<file>[^\n]*?)(?::|, line )(?P<line>\d+)(?: in (?P<function>[^\n]*))?)?"
)
_LESS_MEMORY = "use smaller private arrays or fewer threads (num_threads); in derivatives a lower ad_stack_memory"
_FAULT = re.compile(
    rf"(?P<rule>index -?\d+ is out of bounds for axis \d+ of `[^\n]*"
    rf"|qd\.\w+ needs at most \d+ iterations \(most=\d+\), got [^\n]*|{FAILED}(?:.*(?={_PLACE})|.*))"
    r"(?:\n  at (?P<file>[^\n]*?)(?::|, line )(?P<line>\d+)(?: in (?P<function>[^\n]*))?(?:\n.*)?)?\Z",
    re.DOTALL,
)


def fault_in(text: str) -> QdError | None:
    """Returns the error that is contained in a message of XLA, or None if it has none."""
    if (no_memory := _NO_MEMORY.search(text)) is not None:
        return OutOfMemoryError(no_memory[0].partition("\n")[0], loc=_loc(no_memory), help=_LESS_MEMORY)
    found = _FAULT.search(text)
    if found is None:
        return None
    loc = _loc(found)
    if found["rule"].startswith(FAILED):
        told = _TOLD.search(text, found.end("rule"))
        return CheckError(found["rule"], loc=loc, notes=[told[1]] if told else ())
    return BoundsError(found["rule"], loc=loc, help=HELP if found["rule"].startswith("index") else LESS)


def _loc(found: re.Match[str]) -> Loc | None:
    return Loc(file_of(found["file"]), int(found["line"]), found["function"] or "") if found["file"] else None
