"""A `raise` of the user's under a `qd.when`: the body is traced whatever the condition, so it always raises.

The error stays what it is, as it may be meant (of an argument that is static); a note says why, and what checks data.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from qdtrace.errors import QdError
from qdtrace.trace.diagnosis.statement import nodes_of, raised_in

if TYPE_CHECKING:
    from types import FrameType


def note_raise(error: BaseException, frame: FrameType) -> None:
    """Adds a note to an error that a statement of a `with qd.when(...)` of this frame has raised."""
    if isinstance(error, QdError) or not isinstance(error, Exception):
        return
    statement = raised_in(error.__traceback__)
    if statement is None or statement.frame is not frame or not isinstance(statement.node, (ast.Raise, ast.Call)):
        return
    raised = next(reversed(nodes_of(ast.Raise, statement)), None)
    call = next((block.items[0].context_expr for block in nodes_of(ast.With, statement)), None)
    if raised is None or not isinstance(call, ast.Call) or any("qd.check" in n for n in _notes(error)):
        return
    name = ast.unparse(call.func)
    held = f"~({ast.unparse(call.args[0])})" if call.args else "condition"
    message = raised.exc.args[0] if isinstance(raised.exc, ast.Call) and raised.exc.args else None
    text = ast.unparse(message) if isinstance(message, ast.Constant) else '"message"'
    error.add_note(
        f"note: the body of a {name} is traced whatever its condition, so this `raise` always raises\n"
        f"help: write `qd.check({held}, {text})` in place of the block: it fails when the program runs, by the data"
    )


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])
