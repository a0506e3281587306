"""Random programs of small tasks over buffers of every dtype: what `task_programs`, of i32 and f32, does not draw.

Ranges begin anywhere, also where i32 and i64 do; places are counted from their begin, so that a sum of an index and a
number may wrap around. A task reads one array, forward or backward, and stores to others or accumulates into them, by
every operation of the dtype (floats by min and max, exact in any order: of NaN, infinities and zeros of both signs).
Some tasks are serial, some buffers have an initial value.
"""

import random
from dataclasses import dataclass

import numpy as np

from qdtrace.ir.parser import parse_program
from qdtrace.ir.type_rules import ACCUM_OPS
from qdtrace.ir.types import DType
from tests.differential.corpus import Case

SIZES = (3, 5, 8, 9, 13)
STARTS = {"i32": (0, 0, -4, 7, -(1 << 31)), "i64": (0, -4, 1 << 40, (1 << 63) - 1)}
"""The last one is where the range ends."""
CHOSEN = 3
"""Elements that any iteration may name."""
FLOATS = (1.0, -1.0, 0.0, -0.0, np.inf, -np.inf, np.nan, 3.0, 100.0)
CONTENTS = {True: ("1.0", "0.0", "-0.0", "nan", "inf", "-inf", "1.5"), False: ("0", "1", "7", "127")}
"""Initial contents of buffers of floats, and of integers."""


@dataclass
class _Buffer:
    name: str
    dtype: DType
    size: int
    """0: a scalar."""
    initial: str = ""
    filled: bool = True

    def __str__(self) -> str:
        return f"{self.name}: ref[{self.dtype.value}{f',{self.size}' if self.size else ''}]"


def dtype_case(seed: int) -> Case:
    """The program and arguments of a number."""
    return _Maker(seed).case()


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.pick = self.random.choice
        self.n = self.pick(SIZES)
        self.lines: list[str] = []
        self.names = 0

    def case(self) -> Case:
        params = [_Buffer(f"x{k}", self.pick(list(DType)), self.n) for k in range(2)]
        buffers = [self._buffer(f"b{k}") for k in range(self.pick([2, 3, 4]))]
        everything = [*params, *buffers]
        for _ in range(self.pick([2, 3, 4, 5])):
            (self._serial if self.random.random() < 0.15 else self._task)(everything)
        results = [b.name for b in everything if b.filled and self.random.random() < 0.6]
        head = f"program p(k: ref[i32,{self.n}], {', '.join(map(str, params))})"
        declared = [f"  buffer {b}{b.initial}" for b in buffers]
        text = "\n".join([head, *declared, *self.lines, f"  return {', '.join(results or ['x0'])}", ""])
        places = self.numbers.integers(0, CHOSEN, self.n).astype(np.int32)
        return Case(parse_program(text), [places, *(self._values(b.dtype) for b in params)])

    def _buffer(self, name: str) -> _Buffer:
        made = _Buffer(name, self.pick(list(DType)), self.pick([self.n, self.n, self.n, CHOSEN, 0]))
        if self.random.random() < 0.6 or made.size != self.n:
            if made.dtype is DType.bool:
                value = self.pick(["true", "false"])
            else:
                value = f"{self.pick(CONTENTS[made.dtype.is_float])}:{made.dtype.value}"
            made.initial = f" = {value}"
        else:
            made.filled = False
        return made

    def _values(self, dtype: DType) -> np.ndarray:
        if dtype is DType.bool:
            return self.numbers.integers(0, 2, self.n).astype(bool)
        if dtype.is_float:
            return self.numbers.choice(FLOATS, self.n).astype(dtype.numpy)
        info = np.iinfo(dtype.numpy)
        return self.numbers.integers(info.min, info.max, self.n, dtype=dtype.numpy, endpoint=True)

    def _converted(self, value: str, source: _Buffer, target: _Buffer) -> str:
        """The name of a value of the target's dtype; floats come from where they are defined."""
        self.names += 1
        name = f"w{self.names}"
        if source.dtype.is_float and target.dtype.is_integer:
            self.lines.append(f"    t{name}: bool = gt {value} 0.0:{source.dtype.value}")
            value = f"t{name}"
        self.lines.append(f"    {name}: {target.dtype.value} = convert[dtype={target.dtype.value}] {value}")
        return name

    def _serial(self, buffers: list[_Buffer]) -> None:
        source, target = (self.pick([b for b in buffers if b.filled]) for _ in range(2))
        self.lines += ["  serial", f"    v: {source.dtype.value} = load {source.name}{' 1:i32' if source.size else ''}"]
        value = self._converted("v", source, target)
        self.lines.append(f"    store {target.name} {value}{' 1:i32' if target.size else ''}")

    def _task(self, buffers: list[_Buffer]) -> None:
        n, kind = self.n, self.pick(["i32", "i32", "i64"])
        low, high = (0, n) if self.random.random() < 0.7 else sorted(self.random.choices(range(n + 1), k=2))
        first = self.pick(STARTS[kind])
        first -= n if first == (1 << 63) - 1 else 0
        source = self.pick([b for b in buffers if b.filled and b.size == n])
        backward = self.random.random() < 0.5
        self.lines += [
            f"  range_for i in {first + low}:{kind} : {first + high}:{kind}",
            f"    q: {kind} = sub i {first}:{kind}",
            f"    s: {kind} = sub {n - 1}:{kind} q",
            "    j: i32 = load k q",
            f"    v: {source.dtype.value} = load {source.name} {'s' if backward else 'q'}",
        ]
        others = [b for b in buffers if b is not source and (b.filled or (low, high) == (0, n))]
        for target in self.random.sample(others, min(len(others), self.pick([1, 2]))):
            value = self._converted("v", source, target)
            if not target.filled or (target.size == n and self.random.random() < 0.5):
                self.lines.append(f"    store {target.name} {value} q")
                target.filled = True
                continue
            op = self.pick(["min", "max"] if target.dtype.is_float else ACCUM_OPS)
            self.lines.append(f"    accum[op={op}] {target.name} {value}{' j' if target.size else ''}")
