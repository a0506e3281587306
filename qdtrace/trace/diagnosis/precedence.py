"""Conditions that Python reads in another order than they are written: `x[i] > 0 & mask[i]` is `x[i] > (0 & mask[i])`.

Integers are rightly written like that, `k & 1 == 0`. So a condition is told of where an operand of `&`, `|` or `^` is
a bool, or a 0 that nobody writes there on purpose, and where `~` is applied to an integer in front of `<` or `>`.
"""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING

import numpy as np
from jax import lax

from qdtrace.errors import warn
from qdtrace.trace.diagnosis.conditions import joined, stands_in_brackets, with_brackets
from qdtrace.trace.diagnosis.places import place_of
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.diagnosis.statement import Statement

_BITWISE = (lax.and_p, lax.or_p, lax.xor_p, lax.not_p)
_ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def check_order_of_operators(eqns: Sequence[JaxprEqn]) -> None:
    """Warns, at its line, of each condition whose operators Python joins in another order than they are written."""
    told: set[tuple[CodeType, int, int]] = set()
    for eqn in eqns:
        if eqn.primitive in _BITWISE:
            with contextlib.suppress(SyntaxError, ValueError, AttributeError):
                _check(eqn, eqns, told)


def _check(eqn: JaxprEqn, eqns: Sequence[JaxprEqn], told: set[tuple[CodeType, int, int]]) -> None:
    place = place_of(eqn)
    if place is None or not place.is_compared():  # to look for its path in the source takes as long as to trace it
        return
    path, file = place.path(), place.code.co_filename
    condition = _unbracketed(path, file)
    if condition is None or (place.code, condition.lineno, condition.col_offset) in told:
        return
    if not (_has_bool(eqn, eqns) or _has_zero(path[-1]) if isinstance(path[-1], ast.BinOp) else not _is_bool(eqn)):
        return
    told.add((place.code, condition.lineno, condition.col_offset))
    warn(
        f"`{ast.unparse(condition)}` is `{_as_read(condition)}`: & | ^ ~ bind tighter than comparisons\nhelp: write "
        f"`{_as_written(condition, file)}`, or the parentheses that Python sees",
        eqn_loc(eqn),
    )


def of_floats(statement: Statement | None) -> str:
    """Returns the fix for a statement that applied a bitwise operator to floats."""
    if statement is not None:
        file = statement.frame.f_code.co_filename
        if (condition := _unbracketed(statement.path, file)) is not None:
            return f"they bind tighter than comparisons: write `{_as_written(condition, file)}`, each side a bool"
    return "compare each side with something, in parentheses: `(a > 0) & (b > 0)`"


def _unbracketed(path: Sequence[ast.AST], file: str) -> ast.Compare | None:
    """Returns the comparison that a bitwise operation, the last node of a path, is a side of without parentheses."""
    if len(path) < 2 or not isinstance(condition := path[-2], ast.Compare):
        return None
    match path[-1]:
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.BitXor()) as node:
            return None if stands_in_brackets(file, node) else condition
        case ast.UnaryOp(op=ast.Invert()) as node if node is condition.left and isinstance(condition.ops[0], _ORDER):
            return None if stands_in_brackets(file, node) else condition
        case _:
            return None


def _has_bool(eqn: JaxprEqn, eqns: Sequence[JaxprEqn]) -> bool:
    """Returns whether an operand is a bool, or an integer that was made of one for the other operand."""
    makers = [e for e in eqns if e.primitive is lax.convert_element_type_p and e.outvars[0] in eqn.invars]
    return _is_bool(eqn) or any(map(_is_bool, makers))


def _is_bool(eqn: JaxprEqn) -> bool:
    """Returns whether the first operand is a bool."""
    aval = eqn.invars[0].aval
    return aval.dtype == np.bool_


def _has_zero(node: ast.BinOp) -> bool:
    return any(isinstance(n, ast.Constant) and n.value == 0 for n in (node.left, node.right))


def _as_read(condition: ast.Compare) -> str:
    sides = [condition.left, *condition.comparators]
    text = [f"({ast.unparse(n)})" if isinstance(n, ast.BinOp | ast.UnaryOp) else ast.unparse(n) for n in sides]
    operators = [ast.unparse(ast.Compare(ast.Name(""), [op], [ast.Name("")])).strip() for op in condition.ops]
    return " ".join(part for pair in zip(text, [*operators, ""], strict=True) for part in pair).strip()


def _as_written(condition: ast.Compare, file: str) -> str:
    match condition:
        case ast.Compare(ast.UnaryOp(ast.Invert(), operand), [operator], [right]):
            return f"~({ast.unparse(ast.Compare(operand, [operator], [right]))})"
        case _:
            kept = with_brackets(file, condition)
            return joined(kept) if isinstance(kept, ast.Compare) else ast.unparse(condition)
