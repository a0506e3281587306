"""Random programs that exchange elements, slices and whole arrays in place, in private arrays or rows of a buffer.

NumPy runs the same statements in order. All of them are linear in the arrays, and values are whole numbers that f32
holds, so differences of values are derivatives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import qdtrace as qd

ARRAYS = 3
KINDS = ("exchange", "exchange whole", "rotate", "move", "add", "copy", "slice", "when")


@dataclass(frozen=True)
class Statement:
    """A change of array `a`, most often by what is in array `b`."""

    kind: str
    a: int
    b: int
    at: int
    step: int

    def run(self, m: list[Any], i: Any, n: int) -> None:
        """Runs it in iteration `i`, on handles or on copies of NumPy."""
        k, j, half = (self.at + i * self.step) % n, (self.at + 3 * i + 1) % n, n // 2
        a, b = m[self.a], m[self.b]
        match self.kind:
            case "exchange":
                a[k], b[j] = _number(b[j]), _number(a[k])
            case "exchange whole":
                a[...], b[...] = _content(b), _content(a)
            case "rotate":
                m[0][...], m[1][...], m[2][...] = _content(m[1]), _content(m[2]), _content(m[0])
            case "move":
                a[k] = b[j]
            case "add":
                a[k] += b[j]
            case "copy":
                a[...] = _content(b)
            case "slice":
                a[:half] = _number(b[n - half :])
            case _ if isinstance(a, np.ndarray):
                if i % 2 == 0:
                    a[k], b[j] = b[j] * 2, a[k]
            case _:
                with qd.when(i % 2 == 0):
                    a[k], b[j] = b[j] * 2, a[k]


def _content(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x[...]


def _number(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


class _Row:
    """One row of a buffer, named by its index each time."""

    def __init__(self, buffer: Any, row: Any, array: int) -> None:
        self.buffer, self.place = buffer, (row, array)

    def __getitem__(self, k: Any) -> Any:
        return self.buffer[self.place if k is Ellipsis else (*self.place, k)]

    def __setitem__(self, k: Any, value: Any) -> None:
        self.buffer[self.place if k is Ellipsis else (*self.place, k)] = value


@dataclass(frozen=True)
class Program:
    """Statements in a loop whose length is that of the lane."""

    size: int
    statements: tuple[Statement, ...]
    loop: str
    place: str

    def body(self) -> Callable[..., Any]:
        """Returns the program of `x`, three arrays a lane, and the iterations of each lane."""

        @qd.jit
        def f(x: Any, limit: Any) -> Any:
            out = qd.copy(x)
            for r in qd.range(x.shape[0]):
                if self.place == "rows":
                    m: list[Any] = [_Row(out, r, k) for k in range(ARRAYS)]
                else:
                    m = [qd.local(x[r, k]) for k in range(ARRAYS)]
                if self.loop == "range":
                    for i in qd.range(limit[r], most=8):
                        self._iteration(m, i)
                else:
                    count = qd.local(0)
                    for _ in qd.while_(lambda: count.value < limit[r], most=8):  # noqa: B023
                        self._iteration(m, count.value)
                        count += 1
                if self.place != "rows":
                    for k in range(ARRAYS):
                        out[r, k] = m[k].value
            return out

        return f

    def _iteration(self, m: list[Any], i: Any) -> None:
        for statement in self.statements:
            statement.run(m, i, self.size)

    def by_numpy(self, x: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Returns what the program leaves."""
        out = x.copy()
        for lane, count in zip(out, limit, strict=True):
            for i in range(count):
                self._iteration(list(lane), i)
        return out


def drawn_program(rng: np.random.Generator) -> Program:
    """Returns a random program."""
    size = int(rng.choice([3, 8, 17, 20, 64, 256, 300]))
    statements = tuple(
        Statement(
            str(rng.choice(KINDS)), int(rng.integers(ARRAYS)), int(rng.integers(ARRAYS)), int(rng.integers(7)),
            int(rng.integers(1, 4)),
        )
        for _ in range(int(rng.integers(2, 6)))
    )  # fmt: skip
    return Program(size, statements, str(rng.choice(["range", "while"])), str(rng.choice(["cells", "rows"])))


def arguments(program: Program, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns arrays of three lanes, and how often each of them runs its loop."""
    x = rng.integers(-9, 10, (3, ARRAYS, program.size)).astype(np.float32)
    return x, rng.integers(0, 6, 3).astype(np.int32)
