"""Advice on Python that needs static values, made from the user's statement that met a traced one.

`told(statement)` gives what needed the value, as the user calls it, and the fix with the user's own operands.
"""

from __future__ import annotations

import ast
import builtins
import math
from typing import TYPE_CHECKING

import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from qdtrace.trace.diagnosis.conditions import bracketed, in_operators, with_brackets
from qdtrace.trace.diagnosis.statement import UNKNOWN, nodes_of
from qdtrace.trace.diagnosis.stores import own_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from qdtrace.trace.diagnosis.statement import Statement

_OTHER_NAMES = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2",
    "atanh": "arctanh", "fabs": "abs", "fsum": "sum", "lgamma": "gammaln", "pow": "power",
}  # fmt: skip
_EXTREMES = {"max": "maximum", "min": "minimum"}
_TEXT = "hex", "oct", "bin", "chr", "str", "repr", "format", "print"
_RANDOM = "`jax.random.uniform(jax.random.fold_in(key, i))`"
_BOTH = " (both sides are computed: nest two qd.when where the second needs the first)"


def told(statement: Statement, *, truth: bool) -> tuple[str, str] | None:
    """Returns (what needs a static value, the fix); None where the statement is of no known kind.

    `truth`: what it needs is whether a condition holds.
    """
    found = _found(statement, truth)
    return found and (found[0], "write " * found[1].startswith("`") + found[1])


def _found(statement: Statement, truth: bool) -> tuple[str, str] | None:
    node = statement.node.value if isinstance(statement.node, ast.Expr) else statement.node
    if isinstance(node, ast.Call):
        return _call(statement, node)
    if isinstance(node, ast.JoinedStr):
        return _text(statement, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(statement.value(node.left), str):
        return "text", _print("{}", _content(statement, node.right))
    if isinstance(node, ast.Subscript) and not truth:
        return _item(statement, node)
    return _condition(statement, node) if truth else None


# ---------------------------------------------------------------------- conditions
def _condition(statement: Statement, node: ast.AST) -> tuple[str, str] | None:
    """Returns the name of what needs the truth value, and the fix in operators of arrays; None if neither is known."""
    if nodes_of(ast.pattern, statement):
        subject = ast.unparse(nodes_of(ast.Match, statement)[0].subject)
        return "`match`", f"`lax.switch({subject}, [function, ...], operands)`, or `with qd.when({subject} == value):`"
    parent, whole = statement.parent(node), node
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):  # of a name the place is that of the statement
        parent, whole = node, node.test
    elif not isinstance(node, ast.expr):
        return None
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        parent, whole = statement.parent(parent), parent
    what = _name_of_condition(whole)
    if isinstance(whole, ast.Name) and whole.id in statement.frame.f_code.co_varnames[: _arguments_of(statement)]:
        return f"a condition on the argument `{whole.id}`", (
            f"make it static, `static_argnames={whole.id!r}`, or write `jnp.where({whole.id}, a, b)`"
        )
    new = in_operators(with_brackets(statement.frame.f_code.co_filename, whole))
    both = _BOTH if any(isinstance(n, ast.And) for n in ast.walk(whole)) else ""
    match parent:
        case ast.Assert():
            message = f", {ast.unparse(parent.msg)}" if parent.msg is not None else ', "message"'
            return "`assert`", f"`qd.check({new}{message})`"
        case ast.IfExp() if parent.test is whole:
            return "`a if condition else b`", f"`jnp.where({new}, {ast.unparse(parent.body)}, {_else(parent.orelse)})`"
        case ast.While():
            loop = f"`for _ in qd.while_(lambda: {new}):`, with what changes in a qd.local or a buffer"
            return "`while`", f"{loop}; or lax.while_loop"
        case ast.If() if any(isinstance(n, ast.Return) for part in parent.body for n in ast.walk(part)):
            return "`if`", f"`jnp.where({new}, a, b)` for the value that is returned, or lax.cond"
        case ast.If():
            other = ", and `with qd.otherwise():` for the rest," if parent.orelse else ","
            return "`if`", f"`with qd.when({new}):`{other} or `jnp.where({new}, a, b)` for a value{both}"
        case _ if isinstance(whole, ast.BoolOp) and _gives_number(statement, whole.values[-1]):
            return what, f"`{_chosen(whole)}` (both sides are computed)"
        case _:
            return what, f"`{new}`{both}"


def _gives_number(statement: Statement, node: ast.expr) -> bool:
    """Returns whether an operand of `and` or `or` is a number, not a condition."""
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
    value = statement.value(node)
    return value is not UNKNOWN and bool(jnp.issubdtype(getattr(value, "dtype", type(value)), np.number))


def _chosen(node: ast.BoolOp) -> str:
    """Returns what `and` or `or` chooses, one of its operands, as calls of `jnp.where`."""
    *others, last = node.values
    made = ast.unparse(last)
    for operand in reversed(others):
        text = in_operators(operand)
        pair = f"{made}, {text}" if isinstance(node.op, ast.And) else f"{text}, {made}"
        made = f"jnp.where({text}, {pair})"
    return made


def _arguments_of(statement: Statement) -> int:
    code = statement.frame.f_code
    return code.co_argcount + code.co_kwonlyargcount


def _name_of_condition(node: ast.AST) -> str:
    match node:
        case ast.BoolOp():
            return "`and`" if isinstance(node.op, ast.And) else "`or`"
        case ast.UnaryOp():
            return "`not`"
        case ast.Compare() if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return "`in`"
        case ast.Compare() if len(node.ops) > 1:
            return "a chain of comparisons"
        case _:
            return "a condition of Python"


def _else(node: ast.expr) -> str:
    if isinstance(node, ast.IfExp):
        return f"jnp.where({in_operators(node.test)}, {ast.unparse(node.body)}, {_else(node.orelse)})"
    return ast.unparse(node)


# ---------------------------------------------------------------------- calls
def _call(statement: Statement, call: ast.Call) -> tuple[str, str] | None:
    name, operands = ast.unparse(call.func), [ast.unparse(a) for a in call.args]
    function = statement.value(call.func)
    if function is UNKNOWN:
        return _method(call, name, [_content(statement, operand) for operand in call.args])
    own = str(getattr(function, "__name__", ""))
    first, given = operands[0] if operands else "x", ", ".join(operands)
    if getattr(builtins, own, None) is function:
        return _builtin(call, own, first, operands)
    if getattr(math, own, None) is function:
        other = _OTHER_NAMES.get(own, own)
        home = next((h for m, h in ((jnp, "jnp"), (jax.scipy.special, "jax.scipy.special")) if hasattr(m, other)), "")
        return f"`{name}`", f"`{home}.{other}({given})`" if home else "a function of jnp or lax"
    if str(getattr(function, "__module__", "")).startswith("numpy.random") or ".random." in f".{name}":
        return f"`{name}`", f"make random numbers of JAX, from a key and the index: {_RANDOM}"
    module = str(getattr(function, "__module__", None) or "numpy")
    if module.startswith("jax") and own in ("arange", "empty", "eye", "full", "linspace", "ones", "tri", "zeros"):
        return f"the length in `{name}`", (
            "take it from `x.shape` or an argument of static_argnames; walk a length that is traced: "
            f"`for j in qd.range({given}):`"
        )
    if own == "arange" and isinstance(statement.parent(call), ast.For):
        return f"`{name}`", f"`for j in qd.range({given}):`"
    if module.startswith("numpy"):
        tail = name.split(".", 1)[1] if "." in name else name
        spot: object = jnp
        for part in tail.split("."):
            spot = getattr(spot, part, None)
        if spot is not None:
            kept = next((f"{ast.unparse(k.value)}[...] = " for k in call.keywords if k.arg == "out"), "")
            mask = next((ast.unparse(k.value) for k in call.keywords if k.arg == "where"), "")
            made = f"jnp.{tail}({_arguments(call, function)})"
            if mask and isinstance(function, np.ufunc):  # of jnp's functions those that reduce have it
                made = f"jnp.where({mask}, {made}, {kept.removesuffix(' = ') or '0'})"
            return f"`{name}`", f"`{kept}{made}`"
    return None


def _builtin(call: ast.Call, own: str, first: str, operands: list[str]) -> tuple[str, str] | None:
    what = f"`{own}`"
    literal = call.args[0] if call.args else None
    items = literal.elts if isinstance(literal, (ast.List, ast.Tuple)) and len(call.args) == 1 else call.args
    stacked = first if len(call.args) == 1 and items is call.args else f"[{', '.join(map(ast.unparse, items))}]"
    match own:
        case "max" | "min" if len(items) == 2:
            return what, f"`jnp.{_EXTREMES[own]}({ast.unparse(items[0])}, {ast.unparse(items[1])})`"
        case "max" | "min":
            return what, f"`jnp.{own}(jnp.stack({stacked}))`"
        case "sorted":
            return what, f"`jnp.sort(jnp.stack({stacked}))`"
        case "any" | "all" if items is not call.args:
            return what, f"`{(' | ' if own == 'any' else ' & ').join(map(bracketed, items))}`"
        case "any" | "all":
            return what, f"`jnp.{own}(jnp.stack({stacked}))`"
        case "pow" if len(operands) == 3:
            base, exponent, modulus = call.args
            remainder = ast.unparse(ast.BinOp(ast.BinOp(base, ast.Pow(), exponent), ast.Mod(), modulus))
            step = ast.unparse(ast.BinOp(ast.BinOp(ast.Name("r"), ast.Mult(), base), ast.Mod(), modulus))
            return "`pow` with a modulus", (
                f"`{remainder}` if the power fits its dtype, else a loop of products, `r = {step}`"
            )
        case "float" | "int" | "complex" | "bool":
            return what, f"`{bracketed(call.args[0])}.astype({own})`"
        case "range":
            loop = f"`for j in qd.range({', '.join(operands)}):`"
            return what, f"{loop}, and a qd.local for what goes from one iteration to the next"
        case _ if own in _TEXT:
            return what, _print("{}", first)
        case _:
            return None


def _method(call: ast.Call, name: str, operands: list[str]) -> tuple[str, str] | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    owner, method = ast.unparse(call.func.value), call.func.attr
    match method:
        case "item" | "tolist":
            return f"`.{method}()`", f"leave it out: `{owner}` is the value"
        case "sort":
            return f"`{name}`", f"`{owner} = jnp.sort(jnp.stack({owner}))`"
        case "format":
            return "text", _print(ast.unparse(call.func.value).strip("\"'"), ", ".join(operands))
        case _:
            return None


def _arguments(call: ast.Call, function: object) -> str:
    is_masked = isinstance(function, np.ufunc)
    given = [k for k in call.keywords if k.arg != "out" and not (is_masked and k.arg == "where")]
    keywords = [f"{k.arg}={ast.unparse(k.value)}" if k.arg else f"**{ast.unparse(k.value)}" for k in given]
    return ", ".join([*map(ast.unparse, call.args), *keywords])


def _text(statement: Statement | None, node: ast.JoinedStr) -> tuple[str, str]:
    operands = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    text = ast.unparse(node)[2:-1]
    for operand in map(ast.unparse, operands):
        text = text.replace("{" + operand, "{", 1)
    return "text", _print(text, ", ".join(_content(statement, operand) for operand in operands))


def _content(statement: Statement | None, node: ast.expr) -> str:
    """Returns the value of an expression, which of a cell needs to be named: JAX prints no handles."""
    is_cell = statement is not None and getattr(type(statement.value(node)), "how_to_keep", "") == ".value"
    return ast.unparse(node) + ".value" * is_cell


def printed_before(statement: Statement | None) -> str:
    """Returns advice for a statement with a `qd.check` whose message has the text of a traced value."""
    calls = nodes_of(ast.Call, statement)
    given = [*calls[0].args, *(k.value for k in calls[0].keywords)] if calls else []
    message = next((part for part in given if isinstance(part, ast.JoinedStr)), None)
    text = _text(statement, message)[1] if message is not None else _print("{}", "value")
    shown = text.partition(": ")[2]
    held = ast.unparse(given[0]) if given else "condition"
    return f"leave it out; to see it, write in front `with qd.when(~({held})):` and, indented, {shown}"


def _print(text: str, operands: str) -> str:
    return f'print it when the program runs: `jax.debug.print("{text}", {operands})`'


# ---------------------------------------------------------------------- items
def _item(statement: Statement, node: ast.Subscript) -> tuple[str, str] | None:
    container, name, index = statement.value(node.value), ast.unparse(node.value), ast.unparse(node.slice)
    kind = {list: "list", tuple: "tuple", np.ndarray: "NumPy array", dict: "dict", str: "str"}.get(type(container))
    if kind is None:
        return None
    what = f"{'an item' if kind == 'dict' else 'an index'} of a {kind}"
    if not isinstance(node.ctx, ast.Load):
        if kind == "NumPy array":
            new = own_name(statement, node.value)
            fix = f"`{new} = qd.copy({name})` in front of the loop, or `{new} = qd.local(jnp.array({name}))` in it"
            return "a store into a NumPy array", fix
        if kind not in ("list", "tuple"):
            return None
        new = own_name(statement, node.value)
        if all(isinstance(v, (bool, int, float, complex)) for v in container):
            return what, f"`{new} = qd.local(jnp.array({name}))`, memory of the iteration"
        return what, f"`{new} = qd.copy(jnp.array({name}))` in front of the loop, a buffer in place of the {kind}"
    if isinstance(node.slice, ast.Slice):
        return f"a slice of a {kind}", "take all of it and leave out what is not wanted: `jnp.where(mask, values, 0)`"
    if kind == "NumPy array":
        return what, f"`jnp.array({name})[{index}]`"
    values: list[Any] = list(container.values()) if isinstance(container, dict) else list(container)
    given = f"list({name}.values())" if kind == "dict" else name
    if values and all(callable(v) for v in values):
        return what, f"`lax.switch({index}, {given}, operands)`"
    if values and all(isinstance(v, str) for v in values):
        return what, "text has no place in a program: put numbers for it into an array, `jnp.array(numbers)[i]`"
    return what, f"`jnp.array({given})[{index}]`"


_INDICES = ["i", "j", "k", "l", "m", "n"]


def ndrange_in(statement: Statement | None) -> str:
    """Returns the loop over the `qd.ndrange` that a statement unpacks, as it should read; empty if there is none."""
    call = next((loop.iter for loop in nodes_of(ast.For, statement)), None)
    if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("ndrange"):
        return ""
    return "for i, j in qd.ndrange(n, m):"


def shape_in(statement: Statement | None) -> str:
    """Returns the only argument of a call that is running, if by its name it is a shape; else nothing."""
    arguments = next((call.args for call in nodes_of(ast.Call, statement)), ())
    text = ast.unparse(arguments[0]) if len(arguments) == 1 else ""
    return text if text.endswith("shape") else ""


def loop_over(statement: Statement | None, given: Sequence[Any]) -> str:
    """Returns the loop that a `qd.range` means which was given tuples, lists or a shape in place of bounds."""
    texts = next((list(map(ast.unparse, call.args)) for call in nodes_of(ast.Call, statement)), [])
    if len(texts) != len(given):
        texts = list(map(str, given))
    if len(texts) > 1:
        return f"write `for {', '.join(_INDICES[: len(texts)])} in qd.ndrange({', '.join(texts)}):`"
    (text,), (items,) = texts, given
    if shape := shape_in(statement):
        one, all_of = f"{shape}[0]", f"*{shape}"
    else:
        one, all_of = text.strip("()[],"), text.strip("()[],")
    if isinstance(items, list):
        return (
            f"walk its items by an index: `values = jnp.array({text})` in front, `for k in qd.range({len(items)}):` "
            "and in it `i = values[k]`"
        )
    rises = len(items) == 2 and not shape and all(isinstance(n, int) for n in items) and items[0] < items[1]
    if len(items) == 1 or rises:
        return f"write `for i in qd.range({one}):`"
    return f"write `for {', '.join(_INDICES[: len(items)])} in qd.ndrange({all_of}):`"
