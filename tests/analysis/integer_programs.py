"""Random tasks of integers, and all values that they have when they run in the reference interpreter.

A task is drawn to be bad for ranges: literals near the ends of their dtype, inputs that are small or extreme, loops of
all steps, carries that wrap, conditions of `and`, `or` and `not`, and checks. `watched` runs one and gives, for each
equation, the smallest and largest value of every variable in sight where that equation began.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from qdtrace.errors import BoundsError, CheckError, InterpreterError
from qdtrace.interpret import reference
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.types import DType, ScalarType

DTYPES = (DType.i32, DType.i32, DType.i32, DType.i64, DType.i64, DType.i8, DType.u8, DType.u32)
LOOPS = (DType.i32, DType.i32, DType.i64)
BINARY = ("add", "add", "sub", "sub", "mul", "min", "max", "div", "rem", "rem", "and", "or", "xor")
SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")
UNARY = ("neg", "abs", "sign", "not", "population_count", "clz")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
SIZES = (1, 2, 3, 5, 8, 100, 127, 128, 200, 2**31 - 1, 2**31, 2**40)
FUEL = 120
INPUTS = 6

Seen = dict[tuple[Eqn, Var], tuple[int, int]]


def ends(dtype: DType) -> tuple[int, int]:
    """The smallest and largest value of an integer dtype."""
    if dtype is DType.bool:
        return 0, 1
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


class Draw:
    """Draws one task."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.builder = Builder()
        self.inputs = [ref_var(d, (INPUTS,), f"x{k}") for k, d in enumerate(dict.fromkeys(DTYPES))]
        self.out = ref_var(DType.i64, (1,), "out")
        self.scopes: list[list[Atom]] = [[]]
        self.loops = 0

    def program(self) -> Program:
        """A task over some range, or a serial one."""
        one, b = self.random, self.builder
        index, start, stop = None, literal(0, DType.i32), literal(1, DType.i32)
        self.items(one.randint(0, 3), 0)
        if one.random() < 0.7:
            dtype = one.choice(LOOPS)
            index = scalar_var(dtype, "i")
            start, stop = self.integer(dtype), self.integer(dtype)
            if one.random() < 0.7:
                low = one.randint(-4, 4)
                start, stop = literal(low, dtype), literal(low + one.randint(1, 9), dtype)
        with b.block() as body:
            self.scopes.append([] if index is None else [index, index, index])
            self.items(one.randint(4, 16), 0)
            self.end()
        kind = "serial" if index is None else "range_for"
        task = Task(kind, index, start, stop, body.close(), tuple(b.current.eqns))
        return Program("drawn", (*self.inputs, self.out), (), (task,), (self.out,))

    # ------------------------------------------------------------------ atoms
    def known(self, dtype: DType) -> list[Atom]:
        return [a for scope in self.scopes for a in scope if a.dtype is dtype]

    def number(self, dtype: DType) -> Literal:
        """A small number, one near an end of the dtype, or any."""
        low, high = ends(dtype)
        near = self.random.choice((0, 0, 0, low, high)) + self.random.randint(-9, 9)
        value = self.random.randint(low, high) if self.random.random() < 0.1 else near
        return literal(min(max(value, low), high), dtype)

    def integer(self, dtype: DType) -> Atom:
        """A variable or a literal."""
        known = self.known(dtype)
        if known and self.random.random() < 0.75:
            return self.random.choice(known[-8:] if self.random.random() < 0.6 else known)
        return self.number(dtype)

    def condition(self, depth: int = 2) -> Atom:
        """A comparison, a bool in sight, or `and`, `or`, `not` of such."""
        known, kind = self.known(DType.bool), self.random.random()
        if self.random.random() < 0.4:
            return self.relation()
        if depth and kind < 0.35:
            name = self.random.choice(("and", "or", "and", "or", "not"))
            return self.keep(name, *(self.condition(depth - 1) for _ in range(1 if name == "not" else 2)))
        if known and kind < 0.5:
            return self.random.choice(known)
        dtype = DType.bool if known and kind < 0.53 else self.random.choice(DTYPES)
        a = self.random.choice(known) if dtype is DType.bool else self.integer(dtype)
        b = a if self.random.random() < 0.05 else literal(False, dtype) if dtype is DType.bool else self.integer(dtype)
        return self.keep(self.random.choice(COMPARISONS), *((a, b) if kind < 0.9 else (b, a)))

    def keep(self, name: str, *operands: Atom, **params: Any) -> Var:
        made = self.builder(name, *operands, **params)
        self.scopes[-1].append(made)
        return made

    def relation(self) -> Atom:
        """A comparison of what is a constant away from another value."""
        a = self.integer(self.random.choice(LOOPS))
        for _ in range(self.random.randint(0, 2)):
            if self.random.random() < 0.2:
                a = self.keep("convert", a, dtype=self.random.choice(DTYPES))
            else:
                a = self.keep(self.random.choice(("add", "sub")), a, literal(self.random.randint(-3, 3), a.dtype))
        b = self.integer(a.dtype) if self.random.random() < 0.5 else self.number(a.dtype)
        return self.keep(self.random.choice(COMPARISONS), *((a, b) if self.random.random() < 0.8 else (b, a)))

    # ------------------------------------------------------------------ equations
    def items(self, count: int, depth: int) -> None:
        kinds = ["arithmetic"] * 9 + ["near", "near", "select", "convert", "input", "bounded", "bounded", "compare"]
        kinds += ["bound", "check"] * (self.random.random() < 0.5)
        kinds += ["branch", "branch", "for_loop", "while_loop"] * (depth < 3 and len(self.builder.stack) > 1)
        for _ in range(count):
            getattr(self, self.random.choice(kinds))()

    def arithmetic(self) -> None:
        dtype = self.random.choice(DTYPES)
        kind = self.random.random()
        if kind < 0.7:
            self.keep(self.random.choice(BINARY), self.integer(dtype), self.integer(dtype))
        elif kind < 0.85:
            amount = literal(self.random.choice((0, 1, 2, 7, 8, 31, 63)), dtype)
            amount = amount if self.random.random() < 0.7 else self.integer(dtype)
            self.keep(self.random.choice(SHIFTS), self.integer(dtype), amount)
        else:
            self.keep(self.random.choice(UNARY), self.integer(dtype))

    def near(self) -> None:
        """A value that is a constant away from another."""
        dtype = self.random.choice(LOOPS)
        a, b = self.integer(dtype), literal(self.random.randint(-3, 3), dtype)
        self.keep(self.random.choice(("add", "sub")), *((a, b) if self.random.random() < 0.7 else (b, a)))

    def select(self) -> None:
        dtype = self.random.choice((*DTYPES, DType.bool))
        sides = [self.condition(0) if dtype is DType.bool else self.integer(dtype) for _ in range(2)]
        self.keep("select", self.condition(), *sides)

    def convert(self) -> None:
        source = self.condition(0) if self.random.random() < 0.1 else self.integer(self.random.choice(DTYPES))
        self.keep("convert", source, dtype=self.random.choice((*DTYPES, DType.bool)))

    def compare(self) -> None:
        self.condition()

    def input(self) -> None:
        ref = self.random.choice(self.inputs)
        self.keep("load", ref, literal(self.random.randrange(INPUTS), DType.i32))

    def bounded(self) -> None:
        """An input between two small numbers, or a remainder."""
        dtype = self.random.choice(LOOPS)
        ref = next(r for r in self.inputs if r.dtype is dtype)
        x: Atom = self.builder("load", ref, literal(self.random.randrange(INPUTS), DType.i32))
        low = self.random.randint(-9, 9)
        if self.random.random() < 0.5:
            x = self.builder("max", x, literal(low, dtype))
            self.keep("min", x, literal(low + self.random.randint(0, 9), dtype))
        else:
            self.keep("rem", x, literal(self.random.choice((1, 2, 3, 7, -3)), dtype))

    def bound(self) -> None:
        size = self.random.choice(SIZES)
        index = self.integer(self.random.choice(LOOPS))
        self.keep("bound", index, size=size, axis=0, buffer="x", shape=(size,))

    def check(self) -> None:
        self.builder.emit("check", self.condition(), message="no")

    # ------------------------------------------------------------------ blocks
    def end(self) -> None:
        """An equation at the end of a block: what is known there is asked for as well."""
        value = self.integer(DType.i64)
        self.builder.emit("accum", self.out, value, literal(0, DType.i32), op="max")

    @contextmanager
    def block(self, params: Sequence[Var] = ()) -> Generator[Any]:
        with self.builder.block(params) as opened:
            self.scopes.append([*params, *params])
            yield opened
            self.scopes.pop()

    def depth(self) -> int:
        return len(self.builder.stack) - 1

    def branch(self) -> None:
        condition = self.condition()
        dtypes = [self.random.choice((*DTYPES, DType.bool)) for _ in range(self.random.randint(0, 2))]
        blocks: list[Block] = []
        for _ in range(2):
            with self.block() as side:
                self.items(self.random.randint(0, 5), self.depth())
                self.end()
                blocks.append(side.close([self.any_of(d) for d in dtypes]))
        self.scopes[-1] += self.builder.emit("if", condition, blocks=blocks)

    def any_of(self, dtype: DType) -> Atom:
        return self.condition(0) if dtype is DType.bool else self.integer(dtype)

    def carries(self) -> tuple[list[Atom], list[Var]]:
        dtypes = [self.random.choice((*DTYPES, DType.bool)) for _ in range(self.random.randint(0, 3))]
        return [self.any_of(d) for d in dtypes], [scalar_var(d, "c") for d in dtypes]

    def handed_on(self, params: Sequence[Var]) -> list[Atom]:
        """What a body hands on: often a step away from what it got."""
        out: list[Atom] = []
        for p in params:
            if p.dtype is not DType.bool and self.random.random() < 0.6:
                name = self.random.choice(("add", "add", "sub", "div", "min", "max", "rem", "shift_right_logical"))
                out.append(self.keep(name, p, literal(self.random.choice((1, 1, 2, 3)), p.dtype)))
            else:
                out.append(self.any_of(p.dtype))
        return out

    def for_loop(self) -> None:
        dtype = self.random.choice(LOOPS)
        start, stop, step = self.integer(dtype), self.integer(dtype), self.integer(dtype)
        if self.random.random() < 0.8:
            step = literal(self.random.choice((1, 1, 2, -1, -2, 7)), dtype)
        if self.random.random() < 0.5:
            low, high = self.random.randint(-5, 5), self.random.randint(-5, 5)
            start, stop = literal(low, dtype), literal(high, dtype)
        inits, params = self.carries()
        index = scalar_var(dtype, "k")
        with self.block([index, *params]) as body:
            self.items(self.random.randint(1, 6), self.depth())
            self.end()
            blocks = [body.close(self.handed_on(params))]
        self.scopes[-1] += self.builder.emit("for", start, stop, step, *inits, blocks=blocks, unroll=None)

    def while_loop(self) -> None:
        inits, tested = self.carries()
        params = [scalar_var(p.dtype, "c") for p in tested]
        with self.block(tested) as test:
            self.items(self.random.randint(0, 3), 9)
            self.end()
            first = test.close([self.condition()])
        with self.block(params) as body:
            self.items(self.random.randint(1, 6), self.depth())
            self.end()
            second = body.close(self.handed_on(params))
        self.scopes[-1] += self.builder.emit("while", *inits, blocks=[first, second])


def arguments(program: Program, rng: random.Random) -> list[np.ndarray]:
    """Contents of the inputs: small numbers, extremes, or any."""
    made: list[np.ndarray] = []
    for param in program.params:
        low, high = ends(param.dtype)
        kind, values = rng.random(), []
        for _ in range(int(np.prod(param.type.shape))):  # type: ignore[union-attr]
            near = 0 if kind < 0.6 else rng.choice((low, high, 0))
            value = rng.randint(low, high) if kind > 0.9 else near + rng.randint(-8, 8)
            values.append(min(max(value, low), high))
        made.append(np.array(values, param.dtype.numpy))
    return made


def in_sight(task: Task) -> dict[Eqn, list[Var]]:
    """The integers and bools that each equation may use."""
    found: dict[Eqn, list[Var]] = {}

    def block(eqns: Sequence[Eqn], around: list[Var]) -> list[Var]:
        here = list(around)
        for eqn in eqns:
            found[eqn] = list(here)
            for inner in eqn.blocks:
                block(inner.eqns, [*here, *inner.params])
            here += [v for v in eqn.outvars if isinstance(v.type, ScalarType)]
        return here

    first = block(task.head, [])
    block(task.body.eqns, [*first, *([task.index] if task.index is not None else [])])
    return found


def watched(program: Program, inputs: Iterator[Sequence[np.ndarray]]) -> Seen:
    """The smallest and largest value of every variable in sight, where each equation began."""
    seen: Seen = {}
    sight = in_sight(program.tasks[0])
    compile_of = dict(reference.COMPILE)

    def watching(compiler: Any, eqn: Eqn) -> Any:
        step = compile_of[eqn.primitive.name](compiler, eqn)
        slots = [((eqn, v), compiler.slot(v)) for v in sight[eqn]]

        def run(env: Any) -> None:
            for key, slot in slots:
                value = int(env[slot])
                low, high = seen.get(key, (value, value))
                seen[key] = min(low, value), max(high, value)
            step(env)

        return run

    with mock.patch.dict(reference.COMPILE, dict.fromkeys(compile_of, watching)):
        for args in inputs:
            outcome(program, args)
    return seen


def outcome(program: Program, args: Sequence[np.ndarray]) -> Any:
    """The results of a run, or the error that ended it; None where it runs too long."""
    try:
        return [x.tolist() for x in reference.evaluate(program, args, fuel=FUEL)]
    except (BoundsError, CheckError) as error:
        return f"{type(error).__name__}: {error}"
    except InterpreterError as error:
        if "loop iterations were run" in str(error):
            return None
        raise
