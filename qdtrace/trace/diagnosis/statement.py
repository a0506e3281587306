"""The statement of the user in which an error was raised, as a syntax tree, and the objects that its names stand for.

Only for the words of an error: nothing here takes part in what is computed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qdtrace.trace.own_files import is_user_file

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType

UNKNOWN = object()


@dataclass(frozen=True)
class Statement:
    """The statement that ran last in a frame: its syntax nodes from the module to the innermost one, and the frame."""

    path: tuple[ast.AST, ...]
    frame: FrameType

    @property
    def node(self) -> ast.AST:
        """The expression that raised."""
        return self.path[-1]

    def parent(self, node: ast.AST) -> ast.AST:
        """Returns the node around one of the path; the innermost of all around one that is not on it."""
        return self.path[self.path.index(node) - 1] if node in self.path else self.path[-1]

    def value(self, node: ast.AST) -> Any:
        """Returns the object that a name, or an attribute of a module, stands for; `UNKNOWN` for all else."""
        if isinstance(node, ast.Name):
            for names in (self.frame.f_locals, self.frame.f_globals, vars(builtins)):
                if node.id in names:
                    return names[node.id]
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if isinstance(owner, types.ModuleType):
                return getattr(owner, node.attr, UNKNOWN)
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [self.value(item) for item in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        return node.value if isinstance(node, ast.Constant) else UNKNOWN


@functools.lru_cache(maxsize=64)
def _tree(text: str) -> ast.AST | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def raised_in(traceback: TracebackType | None) -> Statement | None:
    """Returns the user's innermost statement that an exception passed through; None where its source is not known."""
    found = None
    while traceback is not None:
        if is_user_file(traceback.tb_frame.f_code.co_filename):
            found = traceback
        traceback = traceback.tb_next
    return None if found is None else running_in(found.tb_frame, found.tb_lasti)


def running_in(frame: FrameType, at: int) -> Statement | None:
    """The statement with the instruction of a frame at the offset `at`; None where its source is not known."""
    path = path_at(frame.f_code, at)
    return Statement(path, frame) if len(path) > 1 else None


def path_at(code: CodeType, at: int) -> tuple[ast.AST, ...]:
    """Returns the syntax nodes around an instruction, the outermost first; nothing if its source is not known."""
    tree = _tree("".join(linecache.getlines(code.co_filename)))
    positions = list(code.co_positions())
    line, end_line, column, end_column = positions[at // 2]
    if tree is None or line is None or end_line is None or column is None or end_column is None:
        return ()
    return _path(tree, (line, column), (end_line, end_column))


def subscript_in(statement: Statement) -> ast.Subscript | None:
    """Returns the innermost expression with brackets that a statement was at."""
    return next((node for node in reversed(statement.path) if isinstance(node, ast.Subscript)), None)


def _path(tree: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> tuple[ast.AST, ...]:
    """Returns the nodes around a part of the source, outermost first, down to the outermost that is just that part."""
    path: list[ast.AST] = []
    node: ast.AST | None = tree
    while node is not None:
        path.append(node)
        if isinstance(node, ast.expr | ast.stmt) and _span(node) == (start, end):
            break
        inner = None
        for child in ast.iter_child_nodes(node):
            spot = _span(child)
            if spot is None:
                around = any(s is not None and s[0] <= start and end <= s[1] for s in map(_span, ast.walk(child)))
            else:
                around = spot[0] <= start and end <= spot[1]
            if around:
                inner = child
                break
        node = inner
    if isinstance(path[-1], ast.FormattedValue):  # from Python 3.12 on the place is that of the part of a text
        path.pop()
    return tuple(path)


def _span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]] | None:
    if not isinstance(node, ast.expr | ast.stmt | ast.pattern | ast.keyword):
        return None
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
