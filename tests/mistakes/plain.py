"""What a mistaken program was meant to be: Python runs it on NumPy's arrays, one iteration after the other.

That is the habit that the mistake comes from, and knows nothing of tracing: `qd.when` is `if`, a cell is a small array,
a function that `qd.vmap` maps is called for each element. What it computes is the answer that the fix has to give.
"""

import ast
import itertools
import textwrap
import types
from typing import Any

import jax
import numpy as np

from tests.mistakes.programs import HEAD, KINDS


class _Conditions(ast.NodeTransformer):
    """Writes `qd.when`, `qd.otherwise`, `qd.break_if`, `qd.continue_if` and `qd.while_` as statements of Python."""

    def visit_With(self, node: ast.With) -> ast.stmt:
        self.generic_visit(node)
        call = node.items[0].context_expr
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if name == "qd.when" and isinstance(call, ast.Call):
            test = ast.parse(f"qd.held({ast.unparse(call.args[0])})", mode="eval").body
            return ast.If(test, node.body, [])
        if name == "qd.otherwise":
            return ast.If(ast.parse("not qd.last", mode="eval").body, node.body, [])
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        jumps = {"qd.break_if": ast.Break(), "qd.continue_if": ast.Continue()}
        if isinstance(call, ast.Call) and ast.unparse(call.func) in jumps:
            return ast.If(call.args[0], [jumps[ast.unparse(call.func)]], [])
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        self.generic_visit(node)
        call = node.iter
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "qd.while_":
            test = ast.Call(call.args[0], [], [])
            return self.visit_While(ast.While(test, node.body, []))
        return node

    def visit_While(self, node: ast.While) -> ast.stmt:
        steps = ast.parse("next(qd.steps)", mode="eval").body  # some mistakes are loops without an end
        node.test = ast.BoolOp(ast.And(), [steps, node.test])
        return node


class _Cell(np.ndarray):
    """A `qd.local`, and what `x[()]` of it is: its elements can be set."""

    @property
    def value(self) -> Any:
        return np.array(self)[()]

    @value.setter
    def value(self, new: Any) -> None:
        np.ndarray.__setitem__(self, ..., new)


def _memory(make: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs) if len(args) > 1 or "dtype" in kwargs else make(*args, dtype=np.float32, **kwargs)

    return made


def _package() -> Any:
    qd = types.SimpleNamespace(last=False, steps=iter([True] * 10_000))

    def held(condition: Any) -> bool:
        qd.last = bool(condition)
        return qd.last

    def mapped(f: Any, **_: Any) -> Any:
        def of_all(*rows: Any) -> Any:
            results = [f(*map(np.array, row)) for row in zip(*rows, strict=False)]
            return jax.tree.map(lambda *x: np.stack(x), *results)

        return of_all

    def local(init: Any, dtype: Any = None) -> Any:
        return np.array(init, dtype or (np.float32 if isinstance(init, float) else None)).view(_Cell)

    qd.held, qd.local, qd.vmap = held, local, mapped
    qd.range = lambda *bounds, **_: range(*(int(x) if x == int(x) else x for x in bounds))
    qd.ndrange = lambda *lengths: itertools.product(*map(range, lengths))
    qd.zeros, qd.ones, qd.empty, qd.full = _memory(np.zeros), _memory(np.ones), _memory(np.empty), np.full
    qd.copy, qd.zeros_like, qd.empty_like = np.array, np.zeros_like, np.empty_like
    qd.jit = lambda f, **_: lambda *args: f(*map(np.array, args))
    return qd


def answer(expression: str) -> Any:
    """Returns the value of an expression of the table's head."""
    names: dict[str, Any] = {}
    exec(HEAD, names)
    return eval(expression, names)


def meant(kind: str, wrong: str) -> Any:
    """Returns what the program was meant to compute. Raises an Exception of any kind if it is no Python of NumPy."""
    head, indent, tail = KINDS[kind]
    text = head + textwrap.indent(wrong.strip("\n"), " " * indent) + "\n" + tail
    names: dict[str, Any] = {"__name__": "plain"}
    exec(HEAD.replace("import qdtrace as qd\n", ""), names)
    names |= {"qd": _package(), "jnp": np, "table": np.array(names["table"])}
    tree = ast.fix_missing_locations(_Conditions().visit(ast.parse(text)))
    exec(compile(tree, "plain.py", "exec"), names)
    return names["result"]
