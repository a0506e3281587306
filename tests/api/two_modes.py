"""One small program, two ways to run it: under `qd.jit`, and as plain NumPy.

A program is nested tuples (see `generate`); `run(program, args, mode)` walks it. Statements that make loops, conditions
or memory ask the mode (`modes`); all others are the same Python in both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import qdtrace as qd
from tests.api.modes import Traced

I32 = np.int32


@dataclass
class Env:
    """What names mean. A child sees what its parent made; what it makes itself is gone with it."""

    buffers: dict[str, Any] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)

    def child(self) -> Env:
        return Env(dict(self.buffers), dict(self.scalars), dict(self.arrays))


@dataclass(frozen=True)
class Thread:
    """Where an expression stands: indices of loops, cells and local arrays of the thread; none between loops."""

    env: Env
    index: tuple[Any, ...] = ()
    cells: tuple[Any, ...] = ()
    tables: tuple[Any, ...] = ()


@dataclass(eq=False)
class Callee:
    """A function of buffers: its statements, and what it returns."""

    statements: tuple[Any, ...]
    results: tuple[tuple[str, str], ...]
    callees: tuple[Callee, ...] = ()
    names: tuple[str, ...] = ()
    """Of its parameters: arrays, and scalars called s0, s1, ..."""

    def __post_init__(self) -> None:
        self.traced = qd.jit(lambda *args: self.run(args, Traced()))

    def run(self, args: Any, mode: Any) -> tuple[Any, ...]:
        env = Env()
        for name, value in zip(self.names, args, strict=True):
            (env.scalars if name.startswith("s") else env.buffers)[name] = value
        walker = Walker(mode, self.callees)
        walker.block(self.statements, env)
        kinds = {"b": env.buffers, "s": env.scalars, "a": env.arrays}
        return tuple([kinds[kind][name] for kind, name in self.results])

    def __repr__(self) -> str:
        return f"Callee({self.statements!r}, {self.results!r}, {self.callees!r}, {self.names!r})"


@dataclass
class Walker:
    """Runs statements in a mode."""

    mode: Any
    callees: tuple[Callee, ...]

    # ------------------------------------------------------------------ between loops
    def block(self, statements: tuple[Any, ...], env: Env) -> None:
        for kind, *rest in statements:
            getattr(self, kind)(env, *rest)

    def alloc(self, env: Env, name: str, how: str, shape: tuple[int, ...], fill: Any, like: str) -> None:
        value = self.ev(fill, Thread(env))
        env.buffers[name] = self.mode.fresh(how, shape, value, env.buffers.get(like))

    def alias(self, env: Env, name: str, other: str) -> None:
        env.buffers[name] = env.buffers[other]

    def get(self, env: Env, name: str, buffer: str, key: Any) -> None:
        value = env.buffers[buffer][self.key(key, Thread(env))]
        env.scalars[name] = self.mode.scalar(value)

    def let(self, env: Env, name: str, expr: Any) -> None:
        env.scalars[name] = self.mode.scalar(self.ev(expr, Thread(env)))

    def reduce(self, env: Env, name: str, how: str, expr: Any) -> None:
        xp, x = self.mode.xp, self.array(expr, env)
        env.scalars[name] = xp.sum(x, dtype=I32) if how == "sum" else getattr(xp, how)(x)

    def array_of(self, env: Env, name: str, expr: Any) -> None:
        env.arrays[name] = self.array(expr, env) + self.mode.const(0)

    def put(self, env: Env, buffer: str, key: Any, expr: Any) -> None:
        env.buffers[buffer][self.key(key, Thread(env))] = self.ev(expr, Thread(env))

    def change(self, env: Env, buffer: str, key: Any, op: str, expr: Any, way: str, name: str) -> None:
        thread = Thread(env)
        old = self.mode.accumulate(env.buffers[buffer], self.key(key, thread), op, self.ev(expr, thread), way)
        if way == "atomic" and op != "mul":
            env.scalars[name] = old

    def swap(self, env: Env, buffer: str, key: Any, expr: Any, name: str) -> None:
        thread = Thread(env)
        env.scalars[name] = self.mode.exchange(env.buffers[buffer], self.key(key, thread), self.ev(expr, thread))

    def assign(self, env: Env, buffer: str, expr: Any) -> None:
        env.buffers[buffer][...] = self.array(expr, env)

    def assign_part(self, env: Env, buffer: str, part: tuple[int, int], expr: Any) -> None:
        env.buffers[buffer][part[0] : part[1]] = self.ev(expr, Thread(env))

    def inplace(self, env: Env, buffer: str, op: str, expr: Any) -> None:
        self.mode.whole_inplace(env, buffer, op, self.ev(expr, Thread(env)))

    def row_get(self, env: Env, name: str, buffer: str, key: Any) -> None:
        env.arrays[name] = env.buffers[buffer][self.key(key, Thread(env))] + self.mode.const(0)

    def row_put(self, env: Env, buffer: str, key: Any, expr: Any) -> None:
        env.buffers[buffer][self.key(key, Thread(env))] = self.array(expr, env)

    def fold(self, env: Env, name: str, buffer: str, count: int, expr: Any) -> None:
        env.scalars[name] = self.mode.fold(env.buffers[buffer], count, self.ev(expr, Thread(env)))

    def branch(self, env: Env, name: str, test: Any, buffer: str, a: int, b: int) -> None:
        env.scalars[name] = self.mode.branch(self.test(test, Thread(env)), env.buffers[buffer], a, b)

    def task(self, env: Env, low: Any, high: Any, step: int, limit: int, body: Any, serial: bool) -> None:
        thread = Thread(env)
        low, high = (b if isinstance(b, int) else self.bound(b, limit, thread) for b in (low, high))
        if step < 0:
            low, high = high - 1, low - 1
        self.mode.loop(low, high, step, lambda i: self.body(body, replace(thread, index=(i,))), serial=serial)

    def bound(self, expr: Any, limit: int, thread: Thread) -> Any:
        return self.mode.xp.clip(self.mode.scalar(self.ev(expr, thread)), 0, limit)

    def product(self, env: Env, shape: tuple[int, ...], body: Any) -> None:
        self.mode.product(shape, lambda *k: self.body(body, Thread(env, k)))

    def when(self, env: Env, test: Any, then: Any, other: Any) -> None:
        self.mode.when(
            self.test(test, Thread(env)),
            lambda: self.block(then, env.child()),
            None if other is None else lambda: self.block(other, env.child()),
        )

    def repeat(self, env: Env, count: str, limit: Any, extra: Any, body: Any) -> None:
        """`qd.while_` over a counter in a buffer of rank 0."""
        counter = env.buffers[count]

        def condition() -> Any:
            goes_on = counter[()] < self.ev(limit, Thread(env))
            return goes_on if extra is None else goes_on & self.test(extra, Thread(env))

        def once() -> None:
            counter[()] += 1
            self.block(body, env.child())

        self.mode.loop_while(condition, once)

    def jump(self, env: Env, leaves: bool, test: Any) -> None:
        self.mode.jump(leaves, self.test(test, Thread(env)))

    def unrolled(self, env: Env, count: int, body: Any) -> None:
        for _ in range(count):
            self.block(body, env)

    def call(self, env: Env, which: int, args: tuple[tuple[str, str], ...], results: tuple[Any, ...]) -> None:
        values = [(env.scalars if kind == "s" else env.buffers)[name] for kind, name in args]
        outs = self.mode.call(self.callees[which], values)
        for (kind, name), out in zip(results, outs, strict=True):
            {"b": env.buffers, "s": env.scalars, "a": env.arrays}[kind][name] = out

    # ------------------------------------------------------------------ in a thread
    def body(self, statements: tuple[Any, ...], thread: Thread) -> None:
        for kind, *rest in statements:
            getattr(self, f"in_{kind}")(thread, *rest)

    def in_put(self, thread: Thread, buffer: str, key: Any, expr: Any) -> None:
        thread.env.buffers[buffer][self.key(key, thread)] = self.ev(expr, thread)

    def in_change(self, thread: Thread, buffer: str, key: Any, op: str, expr: Any, way: str) -> None:
        self.mode.accumulate(thread.env.buffers[buffer], self.key(key, thread), op, self.ev(expr, thread), way)

    def in_add_inside(self, thread: Thread, buffer: str, key: Any, expr: Any, inner: Any) -> None:
        """`b[k] += f()`, where f accumulates into b as well."""
        b = thread.env.buffers[buffer]

        def first() -> None:
            b[self.key(inner[0], thread)] += self.ev(inner[1], thread)

        self.mode.accumulate_inside(b, self.key(key, thread), self.ev(expr, thread), first)

    def in_row(self, thread: Thread, buffer: str, key: Any, expr: Any) -> None:
        b, k = thread.env.buffers[buffer], self.key(key, thread)
        b[k] = b[k] + self.ev(expr, thread)

    def in_when(self, thread: Thread, test: Any, then: Any, other: Any) -> None:
        self.mode.when(
            self.test(test, thread),
            lambda: self.body(then, thread),
            None if other is None else lambda: self.body(other, thread),
        )

    def in_loop(self, thread: Thread, start: Any, count: Any, leave: Any, skip: Any, update: Any, body: Any) -> None:
        """A cell, a serial loop that changes it, and statements that use it."""
        cell = self.mode.cell(self.ev(start, thread))
        inside = replace(thread, cells=(*thread.cells, cell))

        def at(j: Any) -> Thread:
            return replace(inside, index=(*thread.index, j))

        def once(j: Any) -> None:
            cell.value = self.ev(update, at(j))

        count = self.bound(count, 4, thread)
        self.mode.inner(count, lambda j: (self.test(leave, at(j)), self.test(skip, at(j))), cell, once)
        self.body(body, inside)

    def in_until(self, thread: Thread, start: Any, limit: int, step: Any, body: Any) -> None:
        """`qd.while_` over a cell that grows by 1 to 3 each time."""
        xp, const = self.mode.xp, self.mode.const
        cell = self.mode.cell(xp.clip(self.mode.scalar(self.ev(start, thread)), -3, 3))
        inside = replace(thread, cells=(*thread.cells, cell))

        def once() -> None:
            self.body(body, inside)
            cell.value = cell.value + const(1) + self.ev(step, inside) % const(3)

        self.mode.loop_while(lambda: cell.value < limit, once)

    def in_table(self, thread: Thread, size: int, start: Any, body: Any) -> None:
        """A local array, and statements that use it."""
        table = self.mode.table(size, self.ev(start, thread))
        self.body(body, replace(thread, tables=(*thread.tables, table)))

    def in_set(self, thread: Thread, which: int, key: Any, op: str, expr: Any) -> None:
        table, k = thread.tables[which], self.key(key, thread)
        if op == "put":
            table[k] = self.ev(expr, thread)
        else:
            table[k] += self.ev(expr, thread)

    # ------------------------------------------------------------------ expressions
    def key(self, key: Any, thread: Thread) -> Any:
        """An index: axis by axis an int, a counter, or an expression, the length it is taken modulo of, and a form."""
        out = []
        for part in key:
            if isinstance(part, int):
                out.append(part)
            elif part[0] == "counter":
                out.append(self.mode.index_of(thread.env.buffers[part[1]]))
            else:
                expr, length, kind = part
                out.append(self.mode.index(self.ev(expr, thread) % self.mode.const(length), kind))
        return out[0] if len(out) == 1 else tuple(out)

    def test(self, test: Any, thread: Thread) -> Any:
        op, a, b = test
        a, b = self.mode.scalar(self.ev(a, thread)), self.mode.scalar(self.ev(b, thread))
        return {"<": a < b, "==": a == b, "odd": (a + b) % 2 == 1}[op]

    def ev(self, expr: Any, thread: Thread) -> Any:
        """A scalar."""
        if isinstance(expr, int):
            return self.mode.const(expr)
        op, *rest = expr
        xp, env = self.mode.xp, thread.env
        match op:
            case "i":
                return thread.index[rest[0]]
            case "cell":
                return thread.cells[rest[0]].value
            case "table":
                return thread.tables[rest[0]][self.key(rest[1], thread)]
            case "fori":
                count, start, step = rest
                return self.mode.lax_loop(
                    count,
                    self.ev(start, thread),
                    lambda k, t: t + self.ev(step, replace(thread, index=(*thread.index, k))),
                )
            case "cond":
                then, other = rest[1:]
                return self.mode.lax_choice(
                    self.test(rest[0], thread), lambda: self.ev(then, thread), lambda: self.ev(other, thread)
                )
            case "s":
                return env.scalars[rest[0]]
            case "at":
                return env.buffers[rest[0]][self.key(rest[1], thread)]
            case "arr":
                return env.arrays[rest[0]][self.key(rest[1], thread)]
            case "sum":
                return xp.sum(env.buffers[rest[0]][self.key(rest[1], thread)], dtype=I32)
            case "where":
                return self.mode.scalar(xp.where(self.test(rest[0], thread), *(self.ev(e, thread) for e in rest[1:])))
        a, b = (self.ev(e, thread) for e in rest)
        return self.arithmetic(op, a, b)

    def arithmetic(self, op: str, a: Any, b: Any) -> Any:
        xp = self.mode.xp
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "min":
                return xp.minimum(a, b)
            case "max":
                return xp.maximum(a, b)
        raise AssertionError(op)

    def array(self, expr: Any, env: Env) -> Any:
        """A whole array."""
        op, *rest = expr
        xp = self.mode.xp
        match op:
            case "buffer":
                return self.mode.whole(env.buffers[rest[0]])
            case "array":
                return env.arrays[rest[0]]
            case "fill":
                return xp.full(rest[0], self.ev(rest[1], Thread(env)), I32)
            case "roll":
                return xp.roll(self.array(rest[0], env), rest[1])
            case "flip":
                return xp.flip(self.array(rest[0], env))
            case "cumsum":
                return xp.cumsum(self.array(rest[0], env), axis=0, dtype=I32)
            case "with":
                return self.arithmetic(rest[0], self.array(rest[1], env), self.ev(rest[2], Thread(env)))
        a, b = (self.array(e, env) for e in rest)
        return self.arithmetic(op, a, b)
