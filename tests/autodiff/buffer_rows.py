"""Random programs of loops that change rows of buffers: those of `array_loops`, whose arrays are rows of an iteration.

An iteration names its row by the index, by a function of it that it computes once or for each access, or by data. Rows
are filled in part, their axis is the first or another one, and the last iteration may have none."""

import re

import numpy as np

from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, ref_type
from tests.autodiff import array_loops
from tests.autodiff.array_loops import LANES

ACCESS = re.compile(r"^( *)(.*?)(load|store|accum\[op=add\]) ([abq]) (.*)$")
ARRAYS = {"a": ("f64", [8]), "b": ("f64", [4, 2]), "q": ("i32", [4])}


class _Rows:
    """Which arrays are rows of buffers, and how an iteration names its own."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.kind = str(rng.choice(["index", "once", "each time", "each time", "data"]))
        self.lanes = LANES - int(self.kind != "data" and rng.integers(2))
        """Number of rows; further iterations have none."""
        self.axis = {name: int(rng.integers(len(shape))) for name, (_, shape) in ARRAYS.items() if rng.integers(4)}
        """The axis of the row, by array."""
        self.count = 0

    def params(self) -> str:
        """The buffers as parameters of the program."""
        made = ""
        for name, axis in self.axis.items():
            dtype, shape = ARRAYS[name]
            made += f", {name}: ref[{dtype},{'x'.join(map(str, [*shape[:axis], self.lanes, *shape[axis:]]))}]"
        return f"{made}, o: ref[i32,{LANES}]"

    def lines(self, text: str) -> list[str]:
        """What becomes of a line of the body."""
        made, found = re.match(r" *([abq]): cell", text), ACCESS.match(text)
        if made and made[1] in self.axis:
            return []
        if found is None or found[4] not in self.axis:
            return [text]
        indent, result, access, array, rest = found.groups()
        operands = rest.split()
        if len(indent) == 4 and access == "store" and not self.rng.integers(3):
            return []  # one of those that fill the row
        own, before = "i" if self.kind == "index" else "own", list[str]()
        if self.kind == "each time":
            self.count += 1
            own = f"own{self.count}"
            before = [f"{indent}{own}: i32 = sub {self.lanes - 1}:i32 i"]
        operands.insert((access != "load") + self.axis[array], own)
        return [*before, " ".join([f"{indent}{result}{access}", array, *operands])]


def random_rows(seed: int) -> Program:
    """A program of one task with a few nests of loops over rows of buffers and private arrays."""
    rng = np.random.default_rng(seed)
    rows = _Rows(rng)
    head, *text, end = print_program(array_loops.random_arrays(seed)).rstrip().split("\n")
    body = [line for old in text[2:] for line in rows.lines(old)]
    if rows.kind in ("once", "data"):
        value = "load o i" if rows.kind == "data" else f"sub {rows.lanes - 1}:i32 i"
        body.insert(0, f"    own: i32 = {value}")
    if rows.lanes < LANES:
        some = [f"    some: bool = lt i {rows.lanes}:i32", "    if some"]
        body = [*some, *(f"  {line}" for line in body)]
    head = head.replace(")", f"{rows.params()})")
    written = [
        name for name in "ab" if name in rows.axis and any(re.search(rf"(store|accum\S*) {name} ", x) for x in body)
    ]
    start = f"  buffer y: ref[f64,{LANES}] = 0.0:f64"
    return parse_program("\n".join([head, start, text[1], *body, ", ".join([end, *written])]) + "\n")


def arguments(program: Program, seed: int) -> list[np.ndarray]:
    """Of such a program."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.uniform(0.2, 1.4, ref_type(p).shape)
        if p.dtype.is_float
        else rng.integers(0, 9, ref_type(p).shape, np.int32)
        for p in program.params[3:-1]
    ]
    return [*array_loops.arguments(seed), *rows, rng.permutation(LANES).astype(np.int32)]
