"""Conditions of the user as they are to be written: with & | ~, one comparison at a time, in parentheses."""

from __future__ import annotations

import ast
import copy
import io
import linecache
import tokenize

_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_OPERATORS: dict[type[ast.AST], str] = {ast.And: " & ", ast.Or: " | "}


def in_operators(node: ast.AST) -> str:
    """Returns a condition with & | ~ for and, or, not, one comparison at a time."""
    match node:
        case ast.BoolOp():
            return _OPERATORS[type(node.op)].join(map(bracketed, node.values))
        case ast.UnaryOp() if isinstance(node.op, ast.Not):
            return "~" + bracketed(node.operand)
        case ast.Compare() if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            left, right = ast.unparse(node.left), node.comparators[0]
            if isinstance(right, (ast.List, ast.Tuple, ast.Set)):
                found = " | ".join(f"({left} == {ast.unparse(item)})" for item in right.elts)
            else:
                found = f"jnp.any(jnp.array({ast.unparse(right)}) == {left})"
            return found if isinstance(node.ops[0], ast.In) else f"~({found})"
        case ast.Compare() if len(node.ops) > 1:
            return joined(node)
        case _:
            return ast.unparse(node)


def joined(node: ast.Compare) -> str:
    """Returns a chain of comparisons as one of each two; `a > 0 & b < 3` as the comparisons that `&` was to join."""
    text, parts, depth, start = ast.unparse(node), list[str](), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        depth += (token.string in _OPENING) - (token.string in _CLOSING)
        if not depth and token.string in ("&", "|", "^"):
            parts += [bracketed(ast.parse(text[start : token.start[1]].strip(), mode="eval").body), token.string]
            start = token.end[1]
    if parts:
        return " ".join([*parts, bracketed(ast.parse(text[start:].strip(), mode="eval").body)])
    operands = [node.left, *node.comparators]
    pairs = [ast.Compare(a, [op], [b]) for a, op, b in zip(operands, node.ops, operands[1:], strict=False)]
    return " & ".join(f"({ast.unparse(pair)})" for pair in pairs)


def with_brackets(file: str, node: ast.AST) -> ast.AST:
    """Returns a condition whose operands that stand in brackets, as `a < (b & c) < d`, stay in them."""

    class Keeper(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
            if stands_in_brackets(file, node):
                return ast.Name(f"({ast.unparse(node)})")
            self.generic_visit(node)
            return node

    return Keeper().visit(copy.deepcopy(node))


def stands_in_brackets(file: str, node: ast.expr) -> bool:
    """Returns whether brackets are right around an expression in its file."""
    lines = [linecache.getline(file, k).encode() for k in (node.lineno, node.end_lineno or node.lineno)]
    return lines[0][: node.col_offset].rstrip().endswith(b"(") and lines[1][node.end_col_offset :].lstrip()[:1] == b")"


def bracketed(node: ast.AST) -> str:
    """Returns a condition as an operand of & or |."""
    text = in_operators(node)
    return text if isinstance(node, (ast.Name, ast.Subscript, ast.Attribute, ast.Call)) else f"({text})"
