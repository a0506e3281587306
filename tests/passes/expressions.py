"""Scalar expressions as text, for tests of rules.

`a=(sub x y); (add a y)` with inputs `{"x": "i32", "y": "i32"}` is a program that loads x and y at the index, computes,
and stores the last value into `out`. Constants are written `3:i32`; parameters `(convert[f64] x)`,
`(integer_pow[3] x)`.
"""

import re
from collections.abc import Mapping

from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Atom, Program, Task, literal
from qdtrace.ir.syntax import literal_value
from qdtrace.ir.types import DType

TOKEN = re.compile(r"[()]|[^\s()]+")


def expression_program(inputs: Mapping[str, str], text: str, count: int, result: str | None = None) -> Program:
    """The program over `count` elements; `result` is the dtype of the output where the text is a bare constant."""
    builder = Builder()
    refs = {name: ref_var(DType(dtype), (count,), f"{name}s") for name, dtype in inputs.items()}
    index = scalar_var(DType.i32, "i")
    with builder.block() as block:
        names: dict[str, Atom] = {name: builder.load(ref, index) for name, ref in refs.items()}
        *lets, last = (part.strip() for part in text.split(";"))
        for let in lets:
            name, _, value = let.partition("=")
            names[name.strip()] = build(builder, value, names)
        value = build(builder, last, names)
        out = ref_var(DType(result) if result else value.dtype, (count,), "out")
        builder.store(out, value, index)
    task = Task("range_for", index, literal(0, DType.i32), literal(count, DType.i32), block.close())
    return Program("expression", (*refs.values(), out), (), (task,), (out,))


def build(builder: Builder, text: str, names: Mapping[str, Atom]) -> Atom:
    """Emits an expression."""
    tokens = TOKEN.findall(text)
    value = _parse(builder, tokens, names)
    assert not tokens, f"left over in {text!r}: {tokens}"
    return value


def _parse(builder: Builder, tokens: list[str], names: Mapping[str, Atom]) -> Atom:
    token = tokens.pop(0)
    if token == "(":
        head = tokens.pop(0)
        operands = []
        while tokens[0] != ")":
            operands.append(_parse(builder, tokens, names))
        tokens.pop(0)
        name, _, param = head.rstrip("]").partition("[")
        params = {"y": int(param)} if name == "integer_pow" else {"dtype": DType(param)} if param else {}
        return builder(name, *operands, **params)
    if token in ("true", "false"):
        return literal(token == "true", DType.bool)
    if ":" in token:
        number, _, dtype = token.partition(":")
        return literal_value(number, DType(dtype))
    return names[token]
