"""Random programs with indices that may be outside: the same statements as plain Python and with the constructs of qd.

An index is an expression of one integer dtype, constants among them, that wraps around. Some 85 % are limited to the
axis. Accesses are of buffers that are returned and of such that nobody reads, of private arrays and of cells; what is
loaded is used, multiplied by zero, or not used at all. They stand in tasks, loops and conditions, and between loops.
"""

import random
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

NARROW = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
WIDE = ("int64", "uint64")
COUNT = 6
"""Iterations of a task, and elements of the arrays of keys."""
SHAPES = {"x": (5,), "seen": (COUNT,), "sums": (7,), "dead": (4,), "dead_rows": (3, 4), "rows": (4, 3)}
PRIVATE = {"own": (5,), "own_dead": (3,), "table": (2, 3)}
I32 = np.int32


class Outside(Exception):  # noqa: N818 - no error: what the package has to find
    """An index was outside, in plain Python."""


class _Left(Exception):  # noqa: N818 - no error: how a loop is left
    pass


@dataclass
class UnsafeProgram:
    """The tasks and the statements between them, and the arguments."""

    statements: list[Any]
    keys: dict[str, np.ndarray]
    """For each dtype numbers of the iterations; the first one is an argument of its own, too."""
    x: np.ndarray

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of `traced`."""
        return self.x, self.keys, {d: k[0] for d, k in self.keys.items()}

    def traced(self, x: Any, keys: Any, numbers: Any) -> Any:
        """For `qd.jit`."""
        memory = {name: qd.zeros(shape, I32) for name, shape in SHAPES.items() if name != "x"} | {"x": x}
        run = _Traced(memory, keys, numbers)
        run.all(self.statements)
        return {name: memory[name] for name in ("x", "seen", "sums", "rows")}

    def plain(self, x: np.ndarray, keys: Any, *, clips: bool) -> dict[str, np.ndarray]:
        """What Python gives. Raises Outside."""
        memory = {name: np.zeros(shape, I32) for name, shape in SHAPES.items()} | {"x": np.array(x)}
        run = _Plain(memory, keys, {d: k[0] for d, k in keys.items()}, clips)
        with np.errstate(over="ignore"):
            run.all(self.statements)
        return {name: memory[name] for name in ("x", "seen", "sums", "rows")}


class _Run:
    def __init__(self, memory: dict[str, Any], keys: Any, numbers: Any) -> None:
        self.memory, self.keys, self.numbers = memory, keys, numbers
        self.counters: dict[str, Any] = {}
        self.total: Any = None

    def all(self, statements: list[Any]) -> None:
        for kind, *rest in statements:
            getattr(self, kind)(*rest)

    def at(self, expressions: list[Any]) -> Any:
        where = tuple(map(self.value, expressions))
        return where if len(where) > 1 else where[0]

    def value(self, expression: Any) -> Any:
        kind, dtype, *rest = expression
        match kind:
            case "constant":
                return self.constant(rest[0], dtype)
            case "key":
                return self.keys[dtype][self.counters["i"]]
            case "number":
                return self.numbers[dtype]
            case "counter":
                return self.counters[rest[0]].astype(dtype)
        a, b = map(self.value, rest[:2])
        match kind:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                return a * b
            case "mod":
                return self.xp.remainder(a, b)
            case _:
                return self.xp.minimum(self.xp.maximum(a, self.constant(0, dtype)), b)


class _Plain(_Run):
    xp: Any = np

    def __init__(self, memory: dict[str, Any], keys: Any, numbers: Any, clips: bool) -> None:
        super().__init__(memory, keys, numbers)
        self.clips = clips

    def constant(self, value: int, dtype: str) -> Any:
        return np.asarray(value).astype(dtype)[()]

    def place(self, name: str, where: list[Any]) -> tuple[tuple[int, ...], bool]:
        at, shape = [int(self.value(e)) for e in where], self.memory[name].shape
        inside = all(0 <= k < n for k, n in zip(at, shape, strict=False))
        if not inside and not self.clips:
            raise Outside
        return tuple(min(max(k, 0), n - 1) for k, n in zip(at, shape, strict=False)), inside

    def task(self, _: bool, body: list[Any]) -> None:
        for i in range(COUNT):
            self.counters["i"] = I32(i)
            self.memory |= {n: np.arange(np.prod(s), dtype=I32).reshape(s) for n, s in PRIVATE.items()}
            self.total = I32(0)
            self.all(body)
            self.memory["seen"][i] += self.total

    def load(self, name: str, where: list[Any], use: int | None) -> None:
        at, _ = self.place(name, where)
        if use is not None and self.total is not None:
            self.total += I32(use) * self.memory[name][at].sum(dtype=I32)

    def store(self, name: str, where: list[Any], value: int) -> None:
        at, inside = self.place(name, where)
        if inside:
            self.memory[name][at] = value

    def add(self, name: str, where: list[Any], value: int) -> None:
        at, inside = self.place(name, where)
        if inside:
            self.memory[name][at] += I32(value)

    def when(self, counter: str, limit: int, body: list[Any]) -> None:
        if self.counters[counter] < limit:
            self.all(body)

    def loop(self, name: str, count: int, body: list[Any]) -> None:
        try:
            for j in range(count):
                self.counters[name] = I32(j)
                self.all(body)
        except _Left:
            pass

    def leave(self, counter: str, limit: int) -> None:
        if self.counters[counter] >= limit:
            raise _Left


class _Traced(_Run):
    xp: Any = jnp

    def constant(self, value: int, dtype: str) -> Any:
        return jnp.asarray(np.asarray(value).astype(dtype))

    def task(self, serial: bool, body: list[Any]) -> None:
        for i in qd.range(COUNT, serial=serial):
            self.counters["i"] = i
            made = {n: qd.local(jnp.arange(np.prod(s), dtype=I32).reshape(s)) for n, s in PRIVATE.items()}
            self.memory |= made
            self.total = qd.local(jnp.int32(0))
            self.all(body)
            self.memory["seen"][i] += self.total.value
        self.total = None

    def load(self, name: str, where: list[Any], use: int | None) -> None:
        value = self.memory[name][self.at(where)]
        if use is not None and self.total is not None:
            self.total.value += I32(use) * jnp.sum(value)

    def store(self, name: str, where: list[Any], value: int) -> None:
        self.memory[name][self.at(where)] = I32(value)

    def add(self, name: str, where: list[Any], value: int) -> None:
        self.memory[name][self.at(where)] += I32(value)

    def when(self, counter: str, limit: int, body: list[Any]) -> None:
        with qd.when(self.counters[counter] < limit):
            self.all(body)

    def loop(self, name: str, count: int, body: list[Any]) -> None:
        for j in qd.range(count):
            self.counters[name] = j
            self.all(body)

    def leave(self, counter: str, limit: int) -> None:
        qd.break_if(self.counters[counter] >= limit)


def unsafe_program(seed: int, *, wide: bool = False, unsafe: float = 0.15) -> UnsafeProgram:
    """The program of a number; `wide` ones have integers of 64 bits."""
    return _Maker(seed, NARROW + WIDE if wide else NARROW, unsafe).program()


class _Maker:
    def __init__(self, seed: int, dtypes: tuple[str, ...], unsafe: float) -> None:
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.dtypes = dtypes
        self.unsafe = unsafe * self.pick([0.1, 1, 1, 2])

    def program(self) -> UnsafeProgram:
        keys = {d: np.array([self._number(d) for _ in range(COUNT)], d) for d in self.dtypes}
        x = np.array([self.random.randint(-9, 9) for _ in range(SHAPES["x"][0])], I32)
        statements: list[Any] = []
        for _ in range(self.random.randint(1, 3)):
            statements += [self._access([], None) for _ in range(self.pick([0, 0, 1]))]
            serial = self.random.random() < 0.4
            statements.append(("task", serial, self._body(["i"], serial, 2)))
        return UnsafeProgram(statements, keys, x)

    def _number(self, dtype: str) -> int:
        info = np.iinfo(dtype)
        near = self.random.randint(0, 6)
        far = self.pick([int(info.max), int(info.min), int(info.max) - near, max(int(info.min), -near), 40 + near])
        return near if self.random.random() < 0.7 else far

    def _body(self, counters: list[str], serial: bool, depth: int) -> list[Any]:
        body: list[Any] = []
        for _ in range(self.random.randint(1, 4)):
            kind = self.pick(["access"] * 4 + ["when", "loop"] * (depth > 0))
            if kind == "access":
                body.append(self._access(counters, serial))
            elif kind == "when":
                inside = self._body(counters, serial, depth - 1)
                body.append(("when", self.pick(counters), self.random.randint(0, 4), inside))
            else:
                name = f"j{len(counters)}"
                inside = self._body([*counters, name], serial, depth - 1)
                if self.random.random() < 0.3:
                    inside.insert(self.random.randint(0, len(inside)), ("leave", name, self.random.randint(0, 3)))
                body.append(("loop", name, self.random.randint(0, 4), inside))
        return body

    def _access(self, counters: list[str], serial: bool | None) -> Any:
        """`serial`: of the task; None between loops. Iterations of others share what they add to, and nothing else."""
        kind = self.pick(["load", "load", "store", "add"])
        private = {} if serial is None else PRIVATE
        # x is loaded, `dead` and `rows` are stored to by one thread, or added to
        if kind == "load":
            names = {"x": SHAPES["x"], **private}
        elif kind == "store" and not serial and serial is not None:
            names = private
        else:
            names = {n: s for n, s in SHAPES.items() if n not in ("x", "seen")} | private
        name = self.pick(list(names))
        where = [self._index(n, counters) for n in names[name]]
        if kind == "load":
            return "load", name, where, self.pick([None, None, 0, 1, 3])
        if kind == "store" and serial is None:
            kind = "add"
        return kind, name, where, self.random.randint(-5, 5)

    def _index(self, size: int, counters: list[str]) -> Any:
        dtype = self.pick(self.dtypes)
        made = self._expression(dtype, counters, 2)
        if self.random.random() < self.unsafe:
            return made
        if self.random.random() < 0.5:
            return "mod", dtype, made, ("constant", dtype, size)
        return "clip", dtype, made, ("constant", dtype, size - 1)

    def _expression(self, dtype: str, counters: list[str], depth: int) -> Any:
        if depth and self.random.random() < 0.5:
            a, b = (self._expression(dtype, counters, depth - 1) for _ in range(2))
            return self.pick(["add", "sub", "mul"]), dtype, a, b
        match self.pick(["constant", "number", *["key", "counter", "counter"] * bool(counters)]):
            case "constant":
                return "constant", dtype, self._number(dtype)
            case "number":
                return "number", dtype
            case "key":
                return "key", dtype
            case _:
                return "counter", dtype, self.pick(counters)
