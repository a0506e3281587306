"""Parses the text form of graphs: `parse_program(print_program(p))` equals `p` up to names and source lines.

The parser knows syntax and names, not typing rules: `verify_program` tells whether what was read is right. Every
equation gets its line in the text as its source line.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from qdtrace.errors import Loc
from qdtrace.ir.lexer import Line, ParseError, Token, fail, read_lines
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.syntax import DTYPES, RESERVED, literal_value
from qdtrace.ir.types import SCALARS, DType, RefType, Space, Type
from qdtrace.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ParseError", "parse_program"]


def parse_program(text: str, *, file: str = "<graph>", locs: Mapping[int, Loc] | None = None) -> Program:
    """Returns the program written in the text; raises ParseError with line and column. `locs` has the source location
    of each line, which is the line of the text by default."""
    return _Parser(read_lines(text), file, locs).program()


class _Parser:
    """Recursive descent over lines; `scopes` has the names seen, innermost last."""

    def __init__(self, lines: Sequence[Line], file: str, locs: Mapping[int, Loc] | None) -> None:
        self.lines = lines
        self.file = file
        self.locs = locs
        self.at = 0
        self.scopes: list[dict[str, Var]] = [{}]

    # Lines.

    def _peek(self, depth: int) -> Line | None:
        """Returns the next line if it is at this depth, or None if it is further out or missing."""
        if self.at == len(self.lines):
            return None
        line = self.lines[self.at]
        if line.depth > depth:
            raise fail(line.next, f"needs an indentation of {2 * depth} spaces or fewer, got {2 * line.depth}")
        return line if line.depth == depth else None

    def _advance(self, line: Line) -> None:
        line.end()
        self.at += 1

    def _loc(self, line: Line) -> Loc | None:
        number = line.tokens[0].line
        return Loc(self.file, number) if self.locs is None else self.locs.get(number)

    # Names, types and atoms.

    def _bind(self, line: Line, type: Type) -> Var:
        token = line.expect_word("a name")
        return self._bind_token(token, type)

    def _bind_token(self, token: Token, type: Type) -> Var:
        name = token.text
        if name in RESERVED:
            raise fail(token, f"`{name}` is a word of the language and names no variable")
        if any(name in scope for scope in self.scopes):
            raise fail(token, f"`{name}` is already bound")
        var = self.scopes[-1][name] = Var(type, name)
        return var

    def _name(self, line: Line) -> Var:
        token = line.expect_word("a name")
        for scope in reversed(self.scopes):
            if token.text in scope:
                return scope[token.text]
        raise fail(token, f"`{token.text}` is not bound here")

    def _atom(self, line: Line) -> Atom:
        token = line.next
        if token.kind == "literal":
            line.at += 1
            number, _, dtype = token.text.rpartition(":")
            if dtype not in DTYPES:
                raise fail(token, f"`{dtype}` is no dtype")
            try:
                return literal_value(number, DTYPES[dtype])
            except ValueError as e:
                reason = str(e) if "literal for int" not in str(e) else f"{number} is no integer"
                raise fail(token, reason) from None
        if token.kind == "number":
            raise fail(token, f"needs a dtype after the number, as in `{token.text}:f32`")
        if token.text in ("true", "false"):
            line.at += 1
            return literal(token.text == "true", DType.bool)
        return self._name(line)

    def _literal(self, line: Line) -> Literal:
        token = line.next
        atom = self._atom(line)
        if not isinstance(atom, Literal):
            raise fail(token, f"needs a literal, got {token}")
        return atom

    def _type(self, line: Line) -> Type:
        word = line.expect_word("a type")
        if word.text in DTYPES:
            return SCALARS[DTYPES[word.text]]
        if word.text not in ("ref", "cell"):
            raise fail(word, f"needs a dtype, `ref[...]` or `cell[...]`, got `{word.text}`")
        line.expect("[")
        dtype = self._dtype(line)
        shape: tuple[int, ...] = ()
        if line.take(","):
            token = line.next
            if token.kind not in ("dims", "number") or not token.text.replace("x", "").isdigit():
                raise fail(token, f"needs a shape such as 4x8, got {token}")
            line.at += 1
            shape = tuple(map(int, token.text.split("x")))
        line.expect("]")
        return RefType(dtype, shape, Space.GLOBAL if word.text == "ref" else Space.LOCAL)

    def _dtype(self, line: Line) -> DType:
        token = line.expect_word("a dtype")
        if token.text not in DTYPES:
            raise fail(token, f"`{token.text}` is no dtype")
        return DTYPES[token.text]

    # Parameters and hints.

    def _pairs(self, line: Line, opening: str, closing: str) -> dict[str, object]:
        pairs: dict[str, object] = {}
        if not line.take(opening):
            return pairs
        while True:
            key = line.expect_word("the name of a parameter").text
            line.expect("=")
            pairs[key] = self._dtype(line) if key == "dtype" else self._value(line)
            if not line.take(","):
                line.expect(closing)
                return pairs

    def _value(self, line: Line) -> object:
        token = line.next
        line.at += 1
        match token.kind:
            case "word":
                return {"true": True, "false": False, "none": None}.get(token.text, token.text)
            case "string":
                return json.loads(token.text)
            case "number":
                return int(token.text) if token.text.lstrip("-").isdigit() else float(token.text)
            case "(":
                values: list[object] = []
                while not line.take(")"):
                    values.append(self._value(line))
                    if not line.is_next(")"):
                        line.expect(",")
                return tuple(values)
            case _:
                raise fail(token, f"needs a value, got {token}")

    def _title(self, line: Line) -> str:
        token = line.next
        if token.kind == "string":
            line.at += 1
            return json.loads(token.text)
        return line.expect_word("a name").text

    # Structure.

    def program(self) -> Program:
        if not self.lines:
            raise ParseError("line 1, column 1: needs `program`, got an empty text")
        line = self._peek(0)
        assert line is not None
        line.expect("program")
        name = self._title(line)
        line.expect("(")
        params: list[Var] = []
        limits: dict[Var, Limits] = {}
        while not line.take(")"):
            params.append(self._binder(line))
            if line.take("in"):
                limits[params[-1]] = self._limits(line)
            if not line.is_next(")"):
                line.expect(",")
        self._advance(line)
        buffers: list[Var] = []
        initial: dict[Var, Literal] = {}
        donated_from: dict[Var, Var] = {}
        while (line := self._peek(1)) is not None and line.take("buffer"):
            buffers.append(self._binder(line))
            if line.take("in"):
                donated_from[buffers[-1]] = self._name(line)
            if line.take("="):
                initial[buffers[-1]] = self._literal(line)
            self._advance(line)
        tasks: list[Task] = []
        while (line := self._peek(1)) is not None and not line.is_next("return"):
            tasks.append(self._task(line))
        results: list[Var] = []
        if (line := self._peek(1)) is not None:
            line.expect("return")
            results.append(self._name(line))
            while line.take(","):
                results.append(self._name(line))
            self._advance(line)
        if self.at < len(self.lines):
            token = self.lines[self.at].next
            raise fail(token, f"needs the end of the program, got {token}")
        made = Program(name, tuple(params), tuple(buffers), tuple(tasks), tuple(results), initial, donated_from)
        return replace(made, limits=limits)

    def _limits(self, line: Line) -> Limits:
        token, value = line.next, self._value(line)
        numbers = [n for n in cast("tuple[object, ...]", value) if type(n) is int] if isinstance(value, tuple) else []
        if len(numbers) < 2:
            raise fail(token, f"needs the limits of an array such as (0, 8, 2), got {token}")
        return Limits(numbers[0], numbers[1], tuple(numbers[2:]))

    def _binder(self, line: Line) -> Var:
        token = line.expect_word("a name")
        line.expect(":")
        return self._bind_token(token, self._type(line))

    def _task(self, line: Line) -> Task:
        self.scopes.append({})
        loc, kind = self._loc(line), line.expect_word("`range_for`, `serial` or `return`")
        if kind.text not in ("range_for", "serial"):
            raise fail(kind, f"needs `range_for`, `serial` or `return`, got {kind}")
        header = line.at
        self.at += 1
        head: tuple[Eqn, ...] = ()
        start: Atom = literal(0, DType.i32)
        stop: Atom = literal(1, DType.i32)
        inner = self._peek(2)
        if inner is not None and inner.is_next("head", ""):  # a line of this word alone
            inner.take("head")
            self._advance(inner)
            head = self._eqns(3)
        # The header is read after the head, which may define the bounds.
        line.at = header
        index = None
        if kind.text == "range_for":
            token = line.expect_word("a name")
            line.expect("in")
            start = self._atom(line)
            line.expect(":")
            stop = self._atom(line)
            index = self._bind_token(token, start.type)
        name = self._title(line) if line.take("@") else ""
        hints = self._pairs(line, "{", "}")
        line.end()
        body = self._block(2, ())
        self.scopes.pop()
        return Task(kind.text, index, start, stop, body, head, name, loc, hints)

    def _block(self, depth: int, params: Sequence[Var]) -> Block:
        """Reads the equations and the `yield` of a block."""
        eqns = self._eqns(depth)
        results: tuple[Atom, ...] = ()
        line = self._peek(depth)
        if line is not None and line.take("yield"):
            results = self._atoms(line)
            self._advance(line)
        return Block(tuple(params), eqns, results)

    def _atoms(self, line: Line) -> tuple[Atom, ...]:
        atoms = [self._atom(line)]
        while line.take(","):
            atoms.append(self._atom(line))
        return tuple(atoms)

    def _eqns(self, depth: int) -> tuple[Eqn, ...]:
        eqns: list[Eqn] = []
        while (line := self._peek(depth)) is not None:
            token = line.next
            is_binder = len(line.tokens) > 1 and line.tokens[1].kind == ":"
            if not is_binder and token.text in ("yield", "test", "else", "return"):
                break
            eqns.append(self._eqn(line, depth))
        return tuple(eqns)

    def _eqn(self, line: Line, depth: int) -> Eqn:
        outs: list[tuple[Token, Type]] = []
        if line.tokens[1].kind == ":":
            while True:
                token = line.expect_word("a name")
                line.expect(":")
                outs.append((token, self._type(line)))
                if not line.take(","):
                    break
            line.expect("=")
        name = line.expect_word("a primitive")
        loc = self._loc(line)
        match name.text:
            case "for":
                invars, params, blocks = self._for(line, depth)
            case "while":
                invars, params, blocks = self._while(line, depth)
            case "if":
                invars, params, blocks = self._if(line, depth)
            case text if text in PRIMITIVES:
                params = self._pairs(line, "[", "]")
                operands: list[Atom] = []
                while line.next.kind != "end":
                    operands.append(self._atom(line))
                self._advance(line)
                invars, blocks = tuple(operands), ()
            case _:
                raise fail(name, f"`{name.text}` is no primitive")
        outvars = tuple(self._bind_token(token, type) for token, type in outs)
        return Eqn(PRIMITIVES[name.text], invars, outvars, params, blocks, loc)

    def _carries(self, line: Line) -> tuple[list[Token], list[Atom]]:
        names: list[Token] = []
        inits: list[Atom] = []
        if line.take("carry"):
            while True:
                names.append(line.expect_word("a name"))
                line.expect("=")
                inits.append(self._atom(line))
                if not line.take(","):
                    break
        return names, inits

    def _enter(self, names: Sequence[Token], inits: Sequence[Atom]) -> list[Var]:
        self.scopes.append({})
        return [self._bind_token(n, a.type) for n, a in zip(names, inits, strict=True)]

    def _for(self, line: Line, depth: int) -> tuple[tuple[Atom, ...], dict[str, object], tuple[Block, ...]]:
        index = line.expect_word("a name")
        line.expect("in")
        bounds = [self._atom(line)]
        for _ in range(2):
            line.expect(":")
            bounds.append(self._atom(line))
        params = self._pairs(line, "[", "]")
        names, inits = self._carries(line)
        self._advance(line)
        bound = self._enter([index, *names], [bounds[0], *inits])
        body = self._block(depth + 1, bound)
        self.scopes.pop()
        return (*bounds, *inits), params, (body,)

    def _while(self, line: Line, depth: int) -> tuple[tuple[Atom, ...], dict[str, object], tuple[Block, ...]]:
        params = self._pairs(line, "[", "]")
        names, inits = self._carries(line)
        self._advance(line)
        carries = self._enter(names, inits)
        eqns = self._eqns(depth + 1)
        test = self._peek(depth + 1)
        if test is None:
            raise fail(line.tokens[-1], "needs a `test` in the block of this `while`")
        test.expect("test")
        truth = self._atom(test)
        self._advance(test)
        self.scopes.pop()
        body = self._block(depth + 1, self._enter(names, inits))
        self.scopes.pop()
        return tuple(inits), params, (Block(tuple(carries), eqns, (truth,)), body)

    def _if(self, line: Line, depth: int) -> tuple[tuple[Atom, ...], dict[str, object], tuple[Block, ...]]:
        params = self._pairs(line, "[", "]")
        condition = self._atom(line)
        self._advance(line)
        self.scopes.append({})
        then = self._block(depth + 1, ())
        self.scopes.pop()
        other = Block()
        line_after = self._peek(depth)
        if line_after is not None and line_after.is_next("else", ""):
            line_after.take("else")
            self._advance(line_after)
            self.scopes.append({})
            other = self._block(depth + 1, ())
            self.scopes.pop()
        return (condition,), params, (then, other)
