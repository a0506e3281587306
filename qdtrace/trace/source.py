"""Places in the user's source: of a running frame, of a recorded equation, of an exception.

Frames of this package, of JAX and of the parts of the standard library that call back are hidden, so that every
error points to a line the user wrote.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import os
from typing import TYPE_CHECKING

import jax

from qdtrace.errors import Loc
from qdtrace.trace.compat import has_markers, source_info_util, source_lines
from qdtrace.trace.own_files import is_own_file
from qdtrace.tracebacks import is_hidden

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import CodeType, TracebackType
    from typing import Any

    from qdtrace.trace.compat import JaxprEqn

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def is_jax_file(file: str) -> bool:
    """Returns whether a file is source of JAX."""
    return file.startswith(_JAX)


def users_tracebacks(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yields the parts of a traceback in frames of the user, the outermost first."""
    while traceback is not None:
        if not is_hidden(traceback.tb_frame.f_code.co_filename):
            yield traceback
        traceback = traceback.tb_next


def traceback_locs(traceback: TracebackType | None) -> list[Loc]:
    """Returns the user's lines that an exception passed through, the innermost last."""
    codes = [(one.tb_frame.f_code, one.tb_lineno) for one in users_tracebacks(traceback)]
    return [Loc(code.co_filename, line, code.co_name) for code, line in codes]


def traceback_loc(traceback: TracebackType | None) -> Loc | None:
    """Returns the innermost user's line that an exception passed through."""
    return next(reversed(traceback_locs(traceback)), None)


def eqn_loc(eqn: JaxprEqn, around: Loc | None = None) -> Loc | None:
    """Returns the user's line that recorded an equation; for a library's own, the line that called the library.

    `around` is the line of what calls the function with the equation, for when all that is known is a library's line.
    """
    innermost, own = _lines_in(eqn.source_info.traceback)
    found = own if own is innermost or not has_markers(eqn.effects) else innermost
    return found or around or innermost


@contextlib.contextmanager
def lines_of(eqn: JaxprEqn) -> Generator[None]:
    """Gives equations that a block binds the source line of another one."""
    lines: Any = source_lines
    before, lines.context = lines.context, lines.context.replace(traceback=eqn.source_info.traceback)
    try:
        yield
    finally:
        lines.context = before


def frames_in(traceback: Any) -> Iterator[tuple[CodeType, int]]:
    """Returns the code and instruction of each frame in a traceback of JAX, the innermost first."""
    return zip(*traceback.raw_frames(), strict=True) if traceback is not None else iter(())


@functools.lru_cache(maxsize=1 << 14)
def _lines_in(traceback: Any) -> tuple[Loc | None, Loc | None]:
    """Returns the innermost line outside of JAX and this package, and the innermost that is not a library's either.

    Equations that one line records turn by turn have equal tracebacks. Their comparison looks at the code objects: code
    of two files may be equal.
    """
    innermost = None
    for code, at in frames_in(traceback):
        if source_info_util.is_user_filename(code.co_filename):
            loc = _place(code, at)
            innermost = innermost or loc
            if is_own_file(code.co_filename):
                return innermost, loc
    return innermost, None


def _place(code: CodeType, at: int) -> Loc:
    frame = source_info_util.raw_frame_to_frame(code, at)
    return Loc(code.co_filename, frame.start_line, frame.function_name)


@functools.lru_cache(maxsize=1 << 12)
def expression_at(code: CodeType, at: int) -> ast.AST | None:
    """Returns the user's expression or statement for an instruction; None if its source is not known."""
    frame = source_info_util.raw_frame_to_frame(code, at)
    lines = [linecache.getline(frame.file_name, k).encode() for k in range(frame.start_line, frame.end_line + 1)]
    if not lines:
        return None
    lines[-1] = lines[-1][: frame.end_column]
    lines[0] = lines[0][frame.start_column :]
    text = b"".join(lines)
    for whole in (b"(" + text + b")", text):  # an expression of several lines; a statement like `x += 1`
        with contextlib.suppress(SyntaxError, ValueError):
            (statement,) = ast.parse(whole).body
            return statement.value if isinstance(statement, ast.Expr) else statement
    return None
