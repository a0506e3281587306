"""Random programs of one task that changes an array and loads it again: before, behind, beside and in one place."""

import re

import numpy as np

from qdtrace.batching.batch import batch
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program, ref_type
from tests.autodiff.program_text import Writer

ROWS, COLUMNS, DATA = 20, 9, 24
LOW, HIGH = 5, 14
"""Range of counters of rows; those of columns are from 3 to 5. Indices stay inside of the array."""


class _Writer(Writer):
    """Text of one task's body."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.flat = bool(rng.integers(2))
        """Whether the array has one axis."""
        self.apart = [int(rng.integers(-1, 2)) for _ in range(2)]
        """Distance of stores from the counters."""
        self.falls = not rng.integers(4)
        """Whether indices are mostly a constant minus the counter."""

    def near(self, depth: int, counter: str, distance: int) -> str:
        """A counter plus a distance, or such an index that falls while the counter rises."""
        if self.falls and self.rng.integers(8):
            last = LOW + HIGH - 1 if counter.startswith("r") else 8
            return self.value(depth, "i32", f"sub {last + distance}:i32 {counter}")
        return self.value(depth, "i32", f"add {counter} {distance}:i32") if distance else counter

    def place(self, depth: int, counters: list[str], apart: tuple[int, int]) -> str:
        """Indices at a distance from the counters; constants on axes without one."""
        row = self.near(depth, counters[0], apart[0]) if counters else f"{self.rng.integers(LOW, HIGH)}:i32"
        if self.flat:
            return row
        column = self.near(depth, counters[1], apart[1]) if len(counters) > 1 else f"{self.rng.integers(2, 6)}:i32"
        return f"{row} {column}"

    def store(self, depth: int, counters: list[str], value: str) -> None:
        """A store or an accumulation where all of them are, or elsewhere."""
        rng = self.rng
        apart = (self.apart[0], self.apart[1]) if rng.integers(5) else (int(rng.integers(-2, 3)), self.apart[1])
        kind = "accum[op=add]" if not rng.integers(5) else "store"
        self.store_at(depth, value, self.place(depth, counters, apart), kind)

    def store_at(self, depth: int, value: str, place: str, kind: str = "store") -> None:
        """A store of a function of a value."""
        made = self.value(depth, "f64", f"sin {value}")
        self.line(depth, f"{kind} y {made} {place}")

    def load(self, depth: int, counters: list[str], total: str) -> str:
        """A load at some distance, times the value so far."""
        apart = (int(self.rng.integers(-2, 3)), int(self.rng.integers(-2, 3)))
        if not self.rng.integers(3):
            apart = (self.apart[0], self.apart[1])
        found = self.value(depth, "f64", f"load y {self.place(depth, counters, apart)}")
        return self.used(depth, found, total)

    def used(self, depth: int, found: str, total: str) -> str:
        """A value that depends on what was loaded, and its derivative as well."""
        product = self.value(depth, "f64", f"mul {found} {found}")
        scaled = self.value(depth, "f64", f"mul {product} 0.3:f64")
        return self.value(depth, "f64", f"add {scaled} {total}")

    def row_sum(self, depth: int, counters: list[str], total: str) -> str:
        """A sum over elements in front of the counter, behind it, or where data say."""
        rng = self.rng
        kind, index, name, param = rng.integers(3), self.name("k"), self.name("r"), self.name("c")
        end = self.near(depth, counters[0], int(rng.integers(-2, 2)))
        bounds = (f"2:i32 : {end}", f"{end} : 16:i32", "0:i32 : n1")[kind]
        down = bool(rng.integers(2)) and kind < 2
        if down:
            low, high = bounds.split(" : ")
            low, high = (self.value(depth, "i32", f"add {x} -1:i32") for x in (low, high))
            bounds = f"{high} : {low}"
        self.line(depth, f"{name}: f64 = for {index} in {bounds} : {-1 if down else 1}:i32 carry {param} = {total}")
        inner = depth + 1
        at = index
        if kind == 2:
            at = self.value(inner, "i32", f"load {rng.choice(['col', 'any'])} {counters[0]} {index}")
        rest = "" if self.flat else f" {rng.integers(2, 6)}:i32"
        found = self.value(inner, "f64", f"load y {at}{rest}")
        made = self.used(inner, found, param)
        if not rng.integers(6):
            self.store(inner, counters, made)
        self.line(inner, f"yield {made}")
        return name

    def body(self, depth: int, counters: list[str], total: str, left: list[str]) -> str:
        """What an iteration does; gives its value."""
        rng = self.rng
        if left and rng.integers(4):
            total = self.load(depth, counters, total) if rng.integers(2) and counters else total
            total = self.loop(depth, counters, total, left)
            if rng.integers(4):
                return total
        for _ in range(rng.integers(1, 4)):
            if not counters or rng.integers(3):
                total = self.load(depth, counters, total)
            else:
                total = self.row_sum(depth, counters, total)
        if rng.integers(5):
            if rng.integers(3):
                self.store(depth, counters, total)
            else:
                self.line(depth, f"if {self.value(depth, 'bool', f'gt {total} 0.5:f64')}")
                inside = self.load(depth + 1, counters, total) if counters and rng.integers(2) else total
                self.store(depth + 1, counters, inside)
        return self.load(depth, counters, total) if not rng.integers(3) else total

    def loop(self, depth: int, counters: list[str], total: str, left: list[str]) -> str:
        """A loop over rows, over columns, or that does the same again."""
        rng = self.rng
        index, name, param = self.name(left[0][0]), self.name("r"), self.name("c")
        first = "n0" if rng.integers(3) else f"{LOW}:i32"
        ends = {"rows": (first, f"{HIGH}:i32"), "columns": ("3:i32", "6:i32"), "sweeps": ("0:i32", "2:i32")}
        low, high = ends[left[0]]
        rises = bool(rng.integers(2))
        if not rises:
            low, high = (self.value(depth, "i32", f"add {x} -1:i32") for x in (high, low))
        step = 1 if rises else -1
        self.line(depth, f"{name}: f64 = for {index} in {low} : {high} : {step}:i32 carry {param} = {total}")
        inner = counters if left[0] == "sweeps" else [*counters, index]
        made = self.value(depth + 1, "f64", f"mul {self.body(depth + 1, inner, param, left[1:])} 0.5:f64")
        self.line(depth + 1, f"yield {made}")
        return name


def random_order(seed: int) -> Program:
    """A program of a serial task, or of a task with two iterations with an array each; another one may overwrite it."""
    rng = np.random.default_rng(seed)
    writer = _Writer(rng)
    total = writer.value(0, "f64", "load x 0:i32")
    for text in ("n0: i32 = load n 0:i32", "n1: i32 = load n 1:i32"):
        writer.line(0, text)
    if not rng.integers(3):
        total = writer.load(0, [], total)
    left = ["rows"] if writer.flat else ["rows", "columns"]
    if not rng.integers(6):
        left.insert(int(rng.integers(len(left) + 1)), "sweeps")
    for number in range(1 if rng.integers(4) else 2):
        if number and rng.integers(2):
            total = writer.value(0, "f64", "load x 0:i32")
        total = writer.loop(0, [], total, left)
    if not rng.integers(3):
        total = writer.load(0, [], total)
    writer.line(0, f"store x {total} 0:i32")
    if not rng.integers(3):
        column = "" if writer.flat else " 3:i32"
        writer.lines.append("  serial")
        writer.line(0, f"for q in 0:i32 : {ROWS}:i32 : 1:i32")
        writer.store_at(1, writer.value(1, "f64", f"load y q{column}"), f"q{column}")
    shape = f"{ROWS}" if writer.flat else f"{ROWS}x{COLUMNS}"
    table = f"ref[i32,{ROWS}x{DATA}]"
    params = f"y: ref[f64,{shape}], x: ref[f64,1], n: ref[i32,2], col: {table}, any: {table}"
    text = f"program order({params})\n  serial\n" + "\n".join(writer.lines) + "\n  return y, x\n"
    program = parse_program(wide(text, ("i32", "data", "i64")[seed % 3]))
    return program if rng.integers(4) else batch(program, [True, True, False, False, False], 2)


def wide(text: str, integers: str) -> str:
    """The text with integers of 64 bits: all of them, or with "data" the loaded ones that are an index."""
    if integers == "i64":
        return text.replace("i32", "i64")
    return re.sub(r"i32( = load (?:col|any)|,20x24)", r"i64\1", text) if integers == "data" else text


def arguments(program: Program, seed: int) -> list[np.ndarray]:
    """Arguments of such a program: `col` has smaller rows, `any` all."""
    rng = np.random.default_rng(seed)
    shape = ref_type(program.params[0]).shape
    few, table = (ref_type(p).dtype.numpy for p in program.params[2:4])
    rows = np.arange(ROWS)[:, None]
    return [
        rng.uniform(0.2, 1.0, shape),
        rng.uniform(0.2, 1.0, ref_type(program.params[1]).shape),
        np.array([LOW, rng.integers(0, 4)], few),
        rng.integers(0, np.maximum(rows, 1), (ROWS, DATA)).astype(table),
        rng.integers(0, ROWS, (ROWS, DATA)).astype(table),
    ]
