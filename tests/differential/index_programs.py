"""Random integers of 32 and 64 bits as indices: what was converted, what wraps around, quotients, remainders, low bits.

A task computes from its index, elements of arrays and numbers of its head, and names elements of a vector, of a matrix
and of a private array by five bits of what it has, or by what a number is beyond a large one. That one goes by a
conversion to i32, or by a sum that wraps around.
"""

import random
from collections.abc import Sequence

import numpy as np

from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType
from tests.differential.corpus import Case

DTYPES = ("i32", "u32", "i64", "u64")
SIZE = 13
PLACES = 32
"""In each direction."""
STARTS = {"i32": (0, -5, -(1 << 31) + 2, (1 << 31) - 60), "i64": (0, -5, (1 << 31) - 7, (1 << 32) - 7)}
NUMBERS = (0, 1, 2, 3, 7, 31, 33, -1, -(1 << 31), 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62)
FACTORS, SHIFTS, MASKS = (1, 2, 3, 4, 7, 32), (0, 1, 2, 5, 16, 31), (1, 3, 7, 31, 255)
FAR = (0, 1 << 31, (1 << 32) - 5, 1 << 32, 1 << 40)
"""What the numbers of arrays and of the head are beyond."""


def index_case(seed: int) -> Case:
    """The program and arguments of a number."""
    return _Maker(seed).case()


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.pick = self.random.choice
        self.lines: list[str] = []
        self.known: dict[str, list[str]] = {d: [] for d in DTYPES}
        """Names by their dtype, later ones behind."""
        self.far = {d: self.pick(FAR) for d in DTYPES}

    def case(self) -> Case:
        kind = self.pick(["i32", "i64"])
        start = self.pick(STARTS[kind])
        self.known[kind].append("i")
        self._line("p", kind, f"sub i {self._literal(start, kind)}")
        for d in DTYPES:
            self.known[d].append(f"head_{d}")
            self._line(f"own_{d}", d, f"load many_{d} p")
        for n in range(self.pick(range(3, 12))):
            self._compute(f"v{n}")
        a, b, c = (self._place(n) for n in range(3))
        ends = f"{self._literal(start, kind)} : {self._literal(start + SIZE, kind)}"
        text = TEXT.format(ends=ends, lines="\n".join(self.lines), a=a, b=b, c=c)
        args = [self._beyond(d, shape) for d in DTYPES for shape in ((), (SIZE,))]
        tables = [self.numbers.integers(0, 1000, shape, np.int32) for shape in ((PLACES,), (PLACES, PLACES))]
        return Case(parse_program(text), [*args, *tables, np.zeros(SIZE, np.int32)])

    def _beyond(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        return np.asarray(self.numbers.integers(0, PLACES, shape) + self.far[dtype]).astype(DType(dtype).numpy)

    def _literal(self, value: int, dtype: str) -> str:
        """The number of the dtype that is the same modulo its size."""
        wrapped = np.array(value % (1 << 64), np.uint64).astype(DType(dtype).numpy)
        return f"{literal(wrapped, DType(dtype)).value}:{dtype}"

    def _line(self, name: str, dtype: str, operation: str) -> str:
        self.lines.append(f"    {name}: {dtype} = {operation}")
        self.known[dtype].append(name)
        return name

    def _compute(self, name: str) -> None:
        d = self.pick(DTYPES)
        a = self.pick(self.known[d][-4:])
        match self.pick(["convert", "convert", "unary", "sum", "sum", "factor", "shift", "mask"]):
            case "convert":
                other = self.pick(DTYPES)
                self._line(name, other, f"convert[dtype={other}] {a}")
            case "unary":
                self._line(name, d, f"{self.pick(['neg', 'not'])} {a}")
            case "sum":
                pair = [a, self.pick([self.pick(self.known[d]), self._literal(self.pick(NUMBERS), d)])]
                self.random.shuffle(pair)
                self._line(name, d, f"{self.pick(['add', 'sub', 'xor'])} {' '.join(pair)}")
            case "factor":
                by = self.pick([*FACTORS, *NUMBERS])
                self._line(name, d, f"{self.pick(['mul', 'rem', 'div'])} {a} {self._literal(by, d)}")
            case "shift":
                way = self.pick(["shift_left", "shift_right_logical"])
                self._line(name, d, f"{way} {a} {self.pick(SHIFTS)}:{d}")
            case _:
                self._line(name, d, f"and {a} {self.pick(MASKS)}:{d}")

    def _place(self, number: int) -> str:
        d, way = self.pick(DTYPES), self.pick(["low", "far", "beyond"])
        if way == "beyond":
            far, up = self.far[d], self.pick([f"own_{d}", f"head_{d}"])
        else:
            far = self.pick([1 << 31, 1 << 32, (1 << 32) - 1])
            up = self._line(f"low{number}", d, f"and {self.pick(self.known[d][-3:])} {PLACES - 1}:{d}")
        if way == "low":
            kind = self.pick(["i32", "i64"])
            return self._line(f"place{number}", kind, f"convert[dtype={kind}] {up}")
        if way == "far":
            up = self._line(f"up{number}", d, f"add {up} {self._literal(far, d)}")
        half = self._line(f"half{number}", "i32", f"convert[dtype=i32] {up}")
        return self._line(f"place{number}", "i32", f"sub {half} {self._literal(far, 'i32')}")


_PARAMS = ", ".join(f"one_{d}: ref[{d}], many_{d}: ref[{d},{SIZE}]" for d in DTYPES)
_HEAD = "\n".join(f"      head_{d}: {d} = load one_{d}" for d in DTYPES)
TEXT = f"""program p({_PARAMS}, x: ref[i32,{PLACES}], xx: ref[i32,{PLACES}x{PLACES}], y: ref[i32,{SIZE}])
  range_for i in {{ends}}
    head
{_HEAD}
{{lines}}
    s: i32 = load x {{a}}
    t: i32 = load xx {{b}} {{c}}
    st: i32 = add s t
    own: cell[i32,{PLACES}] = cell[dtype=i32, shape=({PLACES})]
    for k in 0:i32 : {PLACES}:i32 : 1:i32
      store own k k
    store own st {{c}}
    u: i32 = load own {{b}}
    stu: i32 = add st u
    store y stu p
  return y
"""
