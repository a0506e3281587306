"""Random programs of loops in loops whose bounds are clamped, triangular or open: their trips are known or not."""


import numpy as np

from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from tests.autodiff.program_text import Writer

LANES, ROW = 6, 4
MOST = 64
"""More than any loop here can have: bounds are from -25 to 24."""


class _Writer(Writer):
    """Text of one task's body."""

    def bound(self, depth: int, indices: list[str], n: str) -> str:
        """A bound: a constant, an index around, or what is made of those and of data."""
        rng = self.rng
        kind = rng.integers(7)
        constant = f"{rng.integers(-2, 9)}:i32"
        if kind == 0 or (kind < 3 and not indices):
            return constant
        if kind == 1:
            return str(rng.choice(indices))
        if kind == 2:
            return self.value(depth, "i32", f"sub {constant} {rng.choice(indices)}")
        if kind == 3:
            return n
        if kind == 4:
            return self.value(depth, "i32", f"div {n} {rng.integers(1, 4)}:i32")
        clamped = self.value(depth, "i32", f"min {n} {constant}")
        return clamped if kind == 5 else self.value(depth, "i32", f"max {clamped} {constant}")

    def loaded(self, depth: int, index: str) -> tuple[str, str]:
        """An element of the lane's row or of its array: how it is stored to, and its value."""
        at = self.value(depth, "i32", f"and {index} {ROW - 1}:i32")
        ref, place = [("x", f"i {at}"), ("a", at)][self.rng.integers(2)]
        return f"store {ref} {{}} {place}", self.value(depth, "f64", f"load {ref} {place}")

    def loop(self, depth: int, indices: list[str], n: str, carried: str) -> str:
        """A loop that changes a value, elements of memory, or both; gives its name for the value."""
        rng = self.rng
        start, stop = self.bound(depth, indices, n), self.bound(depth, indices, n)
        self.count += 1
        index, name, param = f"k{self.count}", f"r{self.count}", f"c{self.count}"
        inside = depth + 1
        if rng.integers(3):
            step = int(rng.choice([1, 1, 1, 2, -1]))
            most = f" [most={MOST}]" if rng.integers(2) else ""
            head = f"for {index} in {start} : {stop} : {step}:i32{most}"
            self.line(depth, f"{name}: f64 = {head} carry {param} = {carried}")
            self.line(inside, f"yield {self.body(inside, [*indices, index], n, index, param)}")
            return name
        begin = self.value(depth, "i32", f"max {start} -3:i32")
        carries = f"{index} = {begin}, {param} = {carried}"
        self.line(depth, f"z{self.count}: i32, {name}: f64 = while carry {carries}")
        more = self.value(inside, "bool", f"lt {index} {stop}")
        if rng.integers(2):
            _, found = self.loaded(inside, index)
            more = self.value(inside, "bool", f"and {more} {self.value(inside, 'bool', f'lt {found} 0.9:f64')}")
        self.line(inside, f"test {more}")
        made = self.body(inside, [*indices, index], n, index, param)
        self.line(inside, f"yield {self.value(inside, 'i32', f'add {index} 1:i32')}, {made}")
        return name

    def body(self, depth: int, indices: list[str], n: str, index: str, inner: str) -> str:
        """What an iteration does; gives the new value."""
        rng = self.rng
        if depth < 3 and rng.integers(3):
            inner = self.loop(depth, indices, n, inner)
        sine = self.value(depth, "f64", f"sin {inner}")
        scaled = self.value(depth, "f64", f"convert[dtype=f64] {index}")
        inner = self.value(depth, "f64", f"add {sine} {self.value(depth, 'f64', f'mul {scaled} 0.01:f64')}")
        for _ in range(rng.integers(3)):
            store, found = self.loaded(depth, index)
            self.line(depth, store.format(inner))
            inner = self.value(depth, "f64", f"mul {inner} {self.value(depth, 'f64', f'cos {found}')}")
        return inner


def random_loops(seed: int) -> Program:
    """A program of one task with one or two nests of loops."""
    rng = np.random.default_rng(seed)
    writer = _Writer(rng)
    n = writer.value(0, "i32", "load n i")
    value = writer.value(0, "f64", "load x i 0:i32")
    writer.line(0, f"a: cell[f64,{ROW}] = cell[dtype=f64, shape=({ROW})]")
    for k in range(ROW):
        writer.line(0, f"store a {writer.value(0, 'f64', f'load x i {k}:i32')} {k}:i32")
    for _ in range(rng.integers(1, 3)):
        value = writer.loop(0, ["i"] if rng.integers(2) else [], n, value)
    value = writer.value(0, "f64", f"mul {value} {writer.value(0, 'f64', 'load a 1:i32')}")
    writer.line(0, f"store y {value} i")
    shape = f"ref[f64,{LANES}x{ROW}]"
    head = f"program loops(x: {shape}, n: ref[i32,{LANES}])\n  buffer y: ref[f64,{LANES}]\n"
    text = f"{head}  range_for i in 0:i32 : {LANES}:i32\n" + "\n".join(writer.lines) + "\n  return x, y\n"
    return parse_program(text)


def arguments(seed: int) -> list[np.ndarray]:
    """Of such a program."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.2, 1.4, (LANES, ROW)), rng.integers(-3, 14, LANES, dtype=np.int32)]
