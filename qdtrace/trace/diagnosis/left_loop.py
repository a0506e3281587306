"""Refuses a jump whose loop statement in the source is not the traced loop that it leaves.

A trace does not see a loop of Python, whose body it traces once for each item: a jump in one would leave the `qd.range`
around all of its items. Nor does it see the `else` of a `for`, which it would run whether the loop was left or not.
Both are found in the source. If that is not known, nothing is refused.
"""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING

from qdtrace.errors import TraceValueError, frame_loc
from qdtrace.trace.diagnosis.statement import nodes_of, running_in

if TYPE_CHECKING:
    from types import FrameType

    from qdtrace.trace.context import OpenRegion

_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def check_left(name: str, loop: OpenRegion, frame: FrameType | None) -> None:
    """Refuses a jump in a frame if the loop that it leaves is not the loop statement around it.

    Raises TraceValueError at the user's line.
    """
    statement = None
    with contextlib.suppress(Exception):
        statement = frame and _innermost_loop(frame)
    if statement is None or frame is None:
        return
    last = statement.iter.end_lineno or 0 if isinstance(statement, ast.For) else 0
    own = loop.loc is not None and statement.lineno <= loop.loc.line <= last
    if not own:
        kind = "for" if isinstance(statement, ast.For) else "while"
        raise TraceValueError(
            f"{name} in a `{kind}` of Python would leave the {loop.name} around it, not the `{kind}`",
            loc=frame_loc(frame),
            notes=(f"the {loop.name} is at {loop.loc}", f"the `{kind}` is at line {statement.lineno}"),
            help="write the inner loop as `for k in qd.range(n):`; to leave the outer one, gather the conditions in "
            f"the inner one, `stop = stop | c`, and write `{name}(stop)` behind it",
        )
    if statement.orelse and name == "qd.break_if":
        raise TraceValueError(
            "the `else` of a loop runs whether qd.break_if leaves the loop or not",
            loc=frame_loc(frame),
            notes=(f"the loop is at line {statement.lineno}",),
            help="keep in a cell whether the loop was left: `left = qd.local(False)`, in the loop `left.value = c` in "
            "front of `qd.break_if(c)`, and `with qd.when(~left.value):` behind it",
        )


def _innermost_loop(frame: FrameType) -> ast.For | ast.While | None:
    """The loop statement around what a frame runs, in the same function; None where there is none."""
    around = nodes_of(ast.AST, running_in(frame))
    found = next((node for node in around if isinstance(node, ast.For | ast.While | _SCOPES)), None)
    return found if isinstance(found, ast.For | ast.While) else None
