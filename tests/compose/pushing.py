"""Random loops that push, as trees: traced, and run by Python one iteration after the other."""

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

N = 24
"""Elements of the argument."""
LIMITS = (0.3, 0.5, 1.0)
Tree = tuple[Any, ...]


def body(draw: random.Random, depth: int, loops: int) -> list[Tree]:
    """Returns statements: pushes, conditions, loops of the thread, jumps, and changes of a cell."""
    found: list[Tree] = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(("push", "push", "when", "range", "while", "jump", "cell", "store"))
        if kind == "push":
            found.append(("push", draw.randrange(2), draw.randrange(4)))
        elif kind == "cell":
            found.append(("cell", draw.randrange(4)))
        elif kind == "store":
            found.append(("store", draw.randrange(4)))
        elif kind == "jump":
            found.append(("break" if loops > 1 and draw.random() < 0.5 else "continue", condition(draw)))
        elif depth < 3:
            inner = loops + (kind != "when")
            rest = body(draw, depth + 1, inner) if kind == "when" and draw.random() < 0.5 else []
            found.append((kind, condition(draw), body(draw, depth + 1, inner), rest))
    return found


def condition(draw: random.Random) -> Tree:
    return draw.randrange(4), draw.choice(LIMITS), draw.randrange(4)


@dataclass
class Traced:
    """The statements as equations of a trace."""

    x: Any
    i: Any
    outs: Sequence[Any]
    other: Any
    cell: Any = None
    index: list[Any] = field(default_factory=list[Any])

    def value(self, kind: int) -> Any:
        """Returns a number of ties: elements are few tenths, whose squares are rounded."""
        a, b = self.x[self.i], self.x[(self.i * 7 + self.index[-1]) % N]
        return (a * a + b * b, a * b + self.cell.value, jnp.sqrt(a * a + b), a / (b + 2.0) + self.cell.value)[kind]

    def holds(self, test: Tree) -> Any:
        kind, limit, other = test
        return (self.value(kind) > limit) | ((self.i + self.index[-1]) % 4 == other)

    def run(self, statements: Sequence[Tree]) -> None:
        """Traces statements; no `for` of Python, which a jump would not leave."""
        _ = [*map(self.statement, statements)]

    def statement(self, statement: Tree) -> None:
        kind, *rest = statement
        if kind == "push":
            place = self.outs[rest[0]].push((self.value(rest[1]), self.i * 100 + self.index[-1]))
            self.other[self.i] += place
        elif kind == "cell":
            self.cell.value = self.value(rest[0]) * 0.5
        elif kind == "store":
            self.other[self.i] += self.index[-1]
        elif kind == "break":
            qd.break_if(self.holds(rest[0]))
        elif kind == "continue":
            qd.continue_if(self.holds(rest[0]))
        elif kind == "when":
            with qd.when(self.holds(rest[0])):
                self.run(rest[1])
            with qd.otherwise():
                self.run(rest[2])
        elif kind == "range":
            for j in qd.range((self.i + rest[0][2]) % 4):
                self.index.append(j)
                self.run(rest[1])
                self.index.pop()
        else:
            count = qd.local(0)
            for _ in qd.while_(lambda count=count, test=rest[0]: (count < 3) & self.holds(test)):
                count += 1
                self.index.append(count.value)
                self.run(rest[1])
                self.index.pop()


class Jump(Exception):  # noqa: N818 - not an error
    """A `break` or a `continue`."""


@dataclass
class Run:
    """The statements in Python, in numbers of 32 bits."""

    x: Any
    i: int
    outs: Sequence[list[Any]]
    other: Any
    cell: Any = field(default_factory=lambda: np.float32(0))
    index: list[int] = field(default_factory=lambda: [0])

    def value(self, kind: int) -> Any:
        a, b = self.x[self.i], self.x[(self.i * 7 + self.index[-1]) % N]
        if kind == 3:
            return a / (b + np.float32(2)) + self.cell
        return (a * a + b * b, a * b + self.cell, np.sqrt(a * a + b))[kind]

    def holds(self, test: Tree) -> bool:
        kind, limit, other = test
        return bool(self.value(kind) > np.float32(limit)) or (self.i + self.index[-1]) % 4 == other

    def run(self, statements: Sequence[Tree]) -> None:
        """Runs statements."""
        for kind, *rest in statements:
            if kind == "push":
                out = self.outs[rest[0]]
                self.other[self.i] += len(out)
                out.append((self.value(rest[1]), self.i * 100 + self.index[-1]))
            elif kind == "cell":
                self.cell = self.value(rest[0]) * np.float32(0.5)
            elif kind == "store":
                self.other[self.i] += self.index[-1]
            elif kind in ("break", "continue"):
                if self.holds(rest[0]):
                    raise Jump(kind)
            elif kind == "when":
                self.run(rest[1] if self.holds(rest[0]) else rest[2])
            else:
                self.loop(kind, rest[0], rest[1])

    def loop(self, kind: str, test: Tree, statements: Sequence[Tree]) -> None:
        count = 0
        while count < (self.i + test[2]) % 4 if kind == "range" else count < 3 and self.holds(test):
            self.index.append(count + (kind == "while"))
            count += 1
            try:
                self.run(statements)
            except Jump as jump:
                if str(jump) == "break":
                    break
            finally:
                self.index.pop()


def by_python(x: Any, statements: Sequence[Tree]) -> tuple[list[list[Any]], Any]:
    """Returns what is pushed, and the sums of places."""
    outs: list[list[Any]] = [[], []]
    other = np.zeros(N, np.int32)
    for i in range(N):
        with contextlib.suppress(Jump):
            Run(x, i, outs, other).run(statements)
    return outs, other
