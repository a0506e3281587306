"""Advice on a store into a value, which JAX refuses, made from the user's statement."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from qdtrace.trace.context import LANE, get_current
from qdtrace.trace.diagnosis.statement import nodes_of
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.local import CellTree

if TYPE_CHECKING:
    from qdtrace.trace.diagnosis.statement import Statement

_VIEWS = frozenset(
    {"T", "diagonal", "imag", "mT", "ravel", "real", "reshape", "squeeze", "swapaxes", "transpose", "view"}
)
"""Attributes of NumPy's arrays that share their memory."""


def stored_in(statement: Statement | None) -> str:
    """Returns advice on how to write a store in place of a statement that stores into a value."""
    target = next(iter(nodes_of(ast.Subscript, statement)), None)
    if target is None or statement is None:
        return "store into a buffer, `b[i] = v`, or make a new value: `y = y.at[k].set(v)`"
    owner, index = target.value, ast.unparse(target.slice)
    name = ast.unparse(owner)
    if isinstance(owner, (ast.Attribute, ast.Subscript)) and isinstance(statement.value(owner.value), CellTree):
        return f"a field is read as a value: store a new one, `{name} = {name}.at[{index}].set(v)`"
    if isinstance(owner, ast.Subscript):
        both = f"{ast.unparse(owner.value)}[{ast.unparse(owner.slice)}, {index}]"
        return f"write all indices in one bracket: `{both} = v`"
    if isinstance(owner, ast.Attribute) and owner.attr == "value":
        return f"leave out `.value`: `{ast.unparse(owner.value)}[{index}] = v`"
    source = _assigned(statement, name)
    advice = _other_memory(statement, source, name, own_name(statement, owner), index)
    memory = _viewed(statement, source) if getattr(statement.value(owner), "shape", ()) else None
    if memory is None or source is None:
        return advice
    whole = ast.unparse(memory)
    return (
        f"`{ast.unparse(source)}` is a copy, no view: store into `{whole}` itself, with its own indices; or, where "
        f"`{whole}` shall stay as it is, {advice}"
    )


def own_name(statement: Statement, owner: ast.expr) -> str:
    """Returns the name of a variable of the function that takes the place of another variable or an attribute."""
    if isinstance(owner, ast.Name):
        code = statement.frame.f_code
        return owner.id if owner.id in (*code.co_varnames, *code.co_cellvars) else f"own_{owner.id}"
    return owner.attr if isinstance(owner, ast.Attribute) else "own"


def _other_memory(statement: Statement, source: ast.expr | None, name: str, new: str, index: str) -> str:
    """Returns advice on memory, or a new value, in place of the value of a variable that is stored into."""
    context = get_current()
    loop = None if context is None else context.innermost_loop
    value = f"or make a new value: `{new} = {name}.at[{index}].set(v)`"
    own = f"`{new} = qd.local({name})`"
    if loop is None:
        return f"make a buffer of it, `{new} = qd.copy({name})`; {value}"
    if context is not None and any(region.name == LANE for region in context.regions):
        here = f"; {value}" if loop.name == LANE else " in front of the loop"
        return f"make it memory of the lane, {own}{here}"
    if source is not None and _is_in_loop(statement, source):
        return f"make it memory of one iteration, {own}; {value}"
    return f"make a buffer of it in front of the loops, `{new} = qd.copy({name})`, or memory of one iteration, {own}"


def _assigned(statement: Statement, name: str) -> ast.expr | None:
    """Returns the expression that the function gave a variable before the statement; None if it is not known."""
    found = None
    for node in ast.walk(next(n for n in reversed(statement.path) if isinstance(n, (ast.FunctionDef, ast.Module)))):
        is_before = isinstance(node, ast.Assign) and node.lineno < getattr(statement.node, "lineno", 0)
        if isinstance(node, ast.Assign) and is_before and name in map(ast.unparse, node.targets):
            found = node.value
    return found


def _viewed(statement: Statement, source: ast.expr | None) -> ast.expr | None:
    """Returns the buffer or cell of which NumPy's expression of this form would be a view; None if there is none."""
    while isinstance(source, (ast.Attribute, ast.Call, ast.Subscript)):
        if isinstance(source, ast.Attribute) and source.attr not in _VIEWS:
            return None
        source = source.func if isinstance(source, ast.Call) else source.value
        if isinstance(statement.value(source), MemoryHandle):
            return source
    return None


def _is_in_loop(statement: Statement, source: ast.expr) -> bool:
    return any(source is inner for loop in nodes_of(ast.For, statement) for inner in ast.walk(loop))
