"""The statement of the user in which an error was raised, as a syntax tree, and the objects that its names stand for.

Only for the words of an error: nothing here takes part in what is computed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import types
from typing import TYPE_CHECKING, TypeVar

from qdtrace.frozen import frozen
from qdtrace.trace.source import users_tracebacks

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType
    from typing import Any

Node = TypeVar("Node", bound=ast.AST)
UNKNOWN = object()


@frozen
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
    found = next(reversed([*users_tracebacks(traceback)]), None)
    return None if found is None else running_in(found.tb_frame, found.tb_lasti)


def running_in(frame: FrameType | None, at: int | None = None) -> Statement | None:
    """Returns the statement that a frame runs, or that with its instruction at the offset `at`; None where there is no
    frame or its source is not known."""
    path = () if frame is None else path_at(frame.f_code, frame.f_lasti if at is None else at)
    return Statement(path, frame) if frame is not None and len(path) > 1 else None


def path_at(code: CodeType, at: int) -> tuple[ast.AST, ...]:
    """Returns the syntax nodes around an instruction, the outermost first; nothing if its source is not known."""
    tree = _tree("".join(linecache.getlines(code.co_filename)))
    positions = list(code.co_positions())
    line, end_line, column, end_column = positions[at // 2]
    if tree is None or line is None or end_line is None or column is None or end_column is None:
        return ()
    return _path(tree, (line, column), (end_line, end_column))


def nodes_of(kind: type[Node], statement: Statement | None) -> list[Node]:
    """Returns the syntax nodes of a kind that a statement was at, the innermost first; nothing for no statement."""
    path = reversed(statement.path) if statement is not None else ()
    values = (node.value if isinstance(node, ast.Expr) else node for node in path)
    return [node for node in values if isinstance(node, kind)]


def _path(tree: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> tuple[ast.AST, ...]:
    """Returns the nodes around a part of the source, outermost first, down to the outermost that is just that part."""
    path: list[ast.AST] = []
    node: ast.AST | None = tree
    while node is not None:
        path.append(node)
        if isinstance(node, ast.expr | ast.stmt) and _span(node) == (start, end):
            break
        node = next((child for child in ast.iter_child_nodes(node) if _holds(child, start, end)), None)
    if isinstance(path[-1], ast.FormattedValue):  # from Python 3.12 on the place is that of the part of a text
        path.pop()
    return tuple(path)


def _holds(node: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> bool:
    """Returns whether a node, or where it has no place one in it, is around a part of the source."""
    own = _span(node)
    spans = map(_span, ast.walk(node)) if own is None else (own,)
    return any(span is not None and span[0] <= start and end <= span[1] for span in spans)


def _span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]] | None:
    if not isinstance(node, ast.expr | ast.stmt | ast.pattern | ast.keyword):
        return None
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
