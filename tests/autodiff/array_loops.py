"""Random programs of loops that change private arrays: elements at all kinds of indices, of two axes and of integers,
under conditions, twice in an iteration, exchanged, read by other loops before, between and behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.parser import parse_program
from tests.autodiff.program_text import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.ir.program import Program

LANES, ROW = 5, 4
MOST = 16
"""More than any loop here can have: bounds are from -2 to 9."""


class _Writer(Writer):
    """Text of one task's body."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.work = 24
        """Statements that may still be written."""

    def integer(self, depth: int, ints: list[str]) -> str:
        """An integer made of those around, of data, or of what an array of integers holds."""
        rng = self.rng
        kind = rng.integers(6)
        one = str(rng.choice(ints))
        if kind == 0:
            return self.value(depth, "i32", f"load p {self.value(depth, 'i32', f'and {one} 7:i32')}")
        if kind == 1:
            return self.value(depth, "i32", f"load q {self.value(depth, 'i32', f'and {one} 3:i32')}")
        if kind == 2:
            return self.value(depth, "i32", f"add {one} {rng.choice(ints)}")
        if kind == 3:
            return self.value(depth, "i32", f"mul {one} {rng.integers(-1, 4)}:i32")
        return one

    def place(self, depth: int, ints: list[str]) -> tuple[str, str]:
        """One of the arrays of floats, and indices into it."""

        def index(size: int) -> str:
            return self.value(depth, "i32", f"and {self.integer(depth, ints)} {size - 1}:i32")

        return ("a", index(8)) if self.rng.integers(3) else ("b", f"{index(4)} {index(2)}")

    def condition(self, depth: int, ints: list[str], value: str) -> str:
        """A condition on a value, on an element or on an integer."""
        kind = self.rng.integers(3)
        if kind == 0:
            return self.value(depth, "bool", f"lt {value} 0.4:f64")
        if kind == 1:
            array, at = self.place(depth, ints)
            return self.value(depth, "bool", f"lt {self.value(depth, 'f64', f'load {array} {at}')} 0.3:f64")
        odd = self.value(depth, "i32", f"and {self.integer(depth, ints)} 1:i32")
        return self.value(depth, "bool", f"eq {odd} 0:i32")

    def made(self, depth: int, value: str, other: str) -> str:
        """A function of two values that enlarges no error: roundings of one loop are not to grow in the next."""
        total = self.value(depth, "f64", f"{self.rng.choice(['add', 'sub', 'min'])} {value} {other}")
        found = self.value(depth, "f64", f"{self.rng.choice(['sin', 'cos', 'tanh'])} {total}")
        return self.value(depth, "f64", f"mul {found} 0.5:f64")

    def statement(self, depth: int, ints: list[str], value: str) -> str:
        """A load, a store, two of them, a branch or a loop; gives the new value."""
        rng = self.rng
        self.work -= 1
        kind = int(rng.integers(10 if depth < 3 and self.work > 0 else 6))
        array, at = self.place(depth, ints)
        if kind == 0:
            return self.made(depth, value, self.value(depth, "f64", f"load {array} {at}"))
        if kind == 1:
            kind_of_write = rng.choice(["store", "store", "accum[op=add]"])
            self.line(depth, f"{kind_of_write} {array} {self.made(depth, value, value)} {at}")
        elif kind == 2:
            self.line(depth, f"store {array} {value} {at}")
            there = at if rng.integers(2) else self.place_of(depth, array, ints)
            again = self.value(depth, "f64", f"load {array} {there}")
            self.line(depth, f"store {array} {self.made(depth, value, again)} {at}")
        elif kind == 3:
            other = self.place_of(depth, array, ints)
            first, second = (self.value(depth, "f64", f"load {array} {p}") for p in (at, other))
            self.line(depth, f"store {array} {second} {at}")
            self.line(depth, f"store {array} {first} {other}")
        elif kind == 4:
            slot = self.value(depth, "i32", f"and {self.integer(depth, ints)} 3:i32")
            self.line(depth, f"store q {self.integer(depth, ints)} {slot}")
        elif kind == 5:
            found = self.value(depth, "f64", f"load {array} {at}")
            self.line(depth, f"store {array} {self.made(depth, value, found)} {at}")
            return self.made(depth, found, value)
        elif kind == 6:
            return self.branch(depth, ints, value)
        else:
            return self.loop(depth, ints, value)
        return value

    def place_of(self, depth: int, array: str, ints: list[str]) -> str:
        """Other indices into the same array."""
        while True:
            other, at = self.place(depth, ints)
            if other == array:
                return at

    def body(self, depth: int, ints: list[str], value: str) -> str:
        """Some statements; gives the new value."""
        for _ in range(self.rng.integers(1, 5)):
            value = self.statement(depth, ints, value)
        return value

    def branch(self, depth: int, ints: list[str], value: str) -> str:
        """A branch; gives the new value."""
        condition = self.condition(depth, ints, value)
        self.count += 1
        name = f"r{self.count}"
        self.line(depth, f"{name}: f64 = if {condition}")
        self.line(depth + 1, f"yield {self.body(depth + 1, ints, value)}")
        self.line(depth, "else")
        self.line(depth + 1, f"yield {self.body(depth + 1, ints, value) if self.rng.integers(2) else value}")
        return name

    def bound(self, depth: int, ints: list[str]) -> str:
        """A bound of at most 9, whether or not that shows."""
        rng = self.rng
        kind = rng.integers(6)
        if kind < 3:
            return f"{rng.integers(0, 6)}:i32"
        if kind == 3:
            return "n0"
        some = str(rng.choice(ints)) if kind == 4 else self.integer(depth, ints)
        return self.value(depth, "i32", f"max {self.value(depth, 'i32', f'min {some} 5:i32')} -2:i32")

    def loop(self, depth: int, ints: list[str], value: str) -> str:
        """A loop that carries a value and an integer; gives its last value."""
        rng = self.rng
        start, stop = self.bound(depth, ints) if not rng.integers(3) else "0:i32", self.bound(depth, ints)
        top = self.integer(depth, ints)
        self.count += 1
        index, name, carried, place = (f"{c}{self.count}" for c in "krct")
        inside = depth + 1
        around = [*ints, index, place]
        if rng.integers(4):
            step = int(rng.choice([1, 1, 1, 2, -1]))
            first, last = (stop, start) if step < 0 else (start, stop)
            head = f"for {index} in {first} : {last} : {step}:i32{f' [most={MOST}]' if rng.integers(2) else ''}"
            self.line(depth, f"{name}: f64, e{self.count}: i32 = {head} carry {carried} = {value}, {place} = {top}")
            more = ""
        else:
            begin = f"{index} = {start}, {carried} = {value}, {place} = {top}"
            self.line(depth, f"z{self.count}: i32, {name}: f64, e{self.count}: i32 = while carry {begin}")
            test = self.value(inside, "bool", f"lt {index} {stop}")
            if rng.integers(2):
                test = self.value(inside, "bool", f"and {test} {self.condition(inside, around, carried)}")
            self.line(inside, f"test {test}")
            more = f"{self.value(inside, 'i32', f'add {index} 1:i32')}, "
        made = self.body(inside, around, carried)
        step = self.value(inside, "i32", f"add {place} {rng.integers(0, 3)}:i32") if rng.integers(2) else place
        kept = self.value(inside, "bool", f"lt {made} 0.5:f64")
        self.line(inside, f"yield {more}{made}, {self.value(inside, 'i32', f'select {kept} {step} {place}')}")
        return name


def random_arrays(seed: int) -> Program:
    """A program of one task with a few nests of loops over private arrays."""
    rng = np.random.default_rng(seed)
    writer = _Writer(rng)
    write: Callable[[int, str], None] = writer.line
    writer.lines.append("    n0: i32 = load n i")
    value = writer.value(0, "f64", "load x i 0:i32")
    for name, dtype, size in (("a", "f64", "8"), ("b", "f64", "4x2"), ("q", "i32", "4")):
        shape = size.replace("x", ", ")
        write(0, f"{name}: cell[{dtype},{size}] = cell[dtype={dtype}, shape=({shape})]")
    for k in range(8):
        found = writer.value(0, "f64", f"load x i {k % ROW}:i32")
        write(0, f"store a {found} {k}:i32")
        write(0, f"store b {writer.made(0, found, value)} {k // 2}:i32 {k % 2}:i32")
    for k in range(4):
        write(0, f"store q {rng.integers(0, 9)}:i32 {k}:i32")
    for _ in range(rng.integers(1, 4)):
        value = writer.loop(0, ["i", "n0"], value)
        if rng.integers(2):
            value = writer.statement(0, ["i", "n0"], value)
    for array, at in (("a", f"{rng.integers(8)}:i32"), ("b", f"{rng.integers(4)}:i32 1:i32")):
        value = writer.value(0, "f64", f"mul {value} {writer.value(0, 'f64', f'load {array} {at}')}")
    write(0, f"store y {value} i")
    head = f"program arrays(x: ref[f64,{LANES}x{ROW}], n: ref[i32,{LANES}], p: ref[i32,8])\n"
    head += f"  buffer y: ref[f64,{LANES}]\n"
    text = f"{head}  range_for i in 0:i32 : {LANES}:i32\n" + "\n".join(writer.lines) + "\n  return y\n"
    return parse_program(text)


def arguments(seed: int) -> list[np.ndarray]:
    """Of such a program."""
    rng = np.random.default_rng(seed)
    n, p = (rng.integers(low, high, size, dtype=np.int32) for low, high, size in ((-1, 8, LANES), (0, 9, 8)))
    return [rng.uniform(0.2, 1.4, (LANES, ROW)), n, p]
