"""Advice on indices that are refused, made from the user's running statement with its own operands."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

from qdtrace.trace.diagnosis.statement import nodes_of, running_in
from qdtrace.tracebacks import user_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = "kjmnpqrs"
_INDICES = "i, j, k, l, m, n, p, q"


def new_axis_in(rank: int) -> str:
    """Returns advice for a None among the indices that the user's running statement gives a buffer or cell."""
    node = _running_subscript()
    if node is None:
        return "load first, then add the axis: `x[i][None]`" if rank else "write `s[()]`"
    name, keys = ast.unparse(node.value), _keys(node)
    rest = [k for k in keys if not _is_none(k)]
    place = _bracketed(name, rest or [ast.parse("..." if rank else "()", mode="eval").body])
    if not rank or not isinstance(node.ctx, ast.Load):
        return f"leave out None: `{place}`"
    axes = ["None" if _is_none(k) else ":" for k in keys if not _is_scalar(k)]
    while axes[-1] == ":":
        axes.pop()
    return f"load first, then add the axis: `{place}[{', '.join(axes)}]`"


def slice_in() -> str:
    """Returns advice for a slice of unknown length in the user's running statement."""
    node = _running_subscript()
    traced = [] if node is None else [k for k in _keys(node) if isinstance(k, ast.Slice) and not _is_static(k)]
    if node is None or len(traced) != 1:
        return "walk it, as in `for k in qd.range(a, b):` for `x[a:b]`, with one element at a time"
    (part,) = traced
    name, keys, used = ast.unparse(node.value), _keys(node), {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    k = next(name for name in _NAMES if name not in used)
    if (width := _width(part)) is not None and part.lower is not None:
        window = ast.Slice(ast.Name(k), ast.parse(f"{k} + {width}", mode="eval").body)
        place = _bracketed(name, [window if key is part else key for key in keys])
        if isinstance(part.lower, ast.Name):
            return f"sums of small integers wrap around: `{k} = {part.lower.id}.astype(jnp.int32)`, then `{place}`"
        return (
            f"load where it begins once, so that its length is known: `{k} = {ast.unparse(part.lower)}`, then `{place}`"
        )
    stop = f"{name}.shape[{keys.index(part)}]" if part.upper is None else ast.unparse(part.upper)
    bounds = [ast.unparse(part.lower) if part.lower else "0" if part.step else "", stop]
    bounds.append(ast.unparse(part.step) if part.step else "")
    one = _bracketed(name, [ast.Name(k) if key is part else key for key in keys])
    loop = f"`for {k} in qd.range({', '.join(filter(None, bounds))}):`"
    if isinstance(node.ctx, ast.Load):
        return f"walk it: {loop}, with what is made of `{one}` in a qd.local"
    return f"walk it: {loop} and, indented, `{one} = v`"


def _width(part: ast.Slice) -> int | None:
    """Returns the number of elements of `a : a + 3`; None for any other slice."""
    match part:
        case ast.Slice(lower=ast.expr() as lower, upper=ast.BinOp(left, ast.Add(), ast.Constant(int(n))), step=None):
            return n if ast.dump(left) == ast.dump(lower) else None
        case _:
            return None


def place_or_rows_in(rank: int) -> str:
    """Returns advice for `b[place]` with as many numbers as b has axes, in the user's running statement."""
    node = _running_subscript()
    name, vector = ("b", "k") if node is None else (ast.unparse(node.value), ast.unparse(node.slice))
    place = ", ".join(f"{vector}[{k}]" for k in range(rank))
    return f"for the element at that place write `{name}[{place}]`, for rows `{name}[{vector}, :]`"


def integer_for(key: object) -> str:
    """Returns advice for an index that is no integer."""
    if isinstance(key, str):
        return "write an integer; arrays with names are a dict of Python, or a qd.dataclass"
    if isinstance(key, (int, float)) and key == int(key):
        return f"write an integer: `{int(key)}`"
    if str(getattr(key, "dtype", "")) == "bool":
        condition = "use it as a condition, `with qd.when(c):` or `jnp.where(c, a, b)`"
        return f"{condition}; as 0 or 1 it is `c.astype(jnp.int32)`"
    return "convert it: `.astype(jnp.int32)`"


def element_in(rank: int) -> str:
    """Returns an element of the buffer of this rank that the user's running statement takes for a number."""
    statement = running_in(user_frame())
    node = None if statement is None else statement.node
    match node:
        case ast.Call(args=[ast.Name(name)]) | ast.If(test=ast.Name(name)) | ast.Name(name):
            pass
        case ast.Subscript(slice=ast.Name(name)):
            pass
        case _:
            name = "x"
    return f"{name}[{_INDICES[: 3 * rank - 2] if rank else '()'}]"


def _running_subscript() -> ast.Subscript | None:
    return next(iter(nodes_of(ast.Subscript, running_in(user_frame()))), None)


def _keys(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _bracketed(name: str, keys: Sequence[ast.expr]) -> str:
    index = keys[0] if len(keys) == 1 else ast.Tuple(list(keys))
    return ast.unparse(ast.Subscript(ast.parse(name, mode="eval").body, copy.deepcopy(index), ast.Load()))


def _is_none(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value is None


def _is_scalar(key: ast.expr) -> bool:
    return not isinstance(key, ast.Slice) and not (isinstance(key, ast.Constant) and key.value in (None, ...))


def _is_static(key: ast.Slice) -> bool:
    return all(part is None or isinstance(part, ast.Constant) for part in (key.lower, key.upper, key.step))
