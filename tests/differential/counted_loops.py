"""Random loops that count, some of them as a `for` would: their counters go up or down, by one or more, to an end that
is a constant, loaded, or changed by the loop, near the ends of the dtype too; other counters and conditions go along.

    k: u8, v: f32, j: i32 = while carry a = s, c = x, e = 3:i32
      p: bool = lt a n
      q: bool = gt e -2:i32
      r: bool = and p q
      test r
      ...

Each lane has its own start and end, drawn until the loop ends soon.
"""

from typing import NamedTuple

import numpy as np

from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program

LANES = 8
MOST = 12
"""Iterations of a loop at most."""
_COMPARISONS = {"lt": np.less, "gt": np.greater, "le": np.less_equal, "ge": np.greater_equal, "ne": np.not_equal}
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "ne": "ne"}


class Case(NamedTuple):
    """A program and its arguments."""

    program: Program
    args: list[np.ndarray]


class _Counter(NamedTuple):
    """How a loop counts: while `k compare n`, where each iteration adds `by` to `k` and `moves` to `n`."""

    dtype: str
    compare: str
    by: int
    moves: int

    def draw(self, rng: np.random.Generator, start: int | None, stop: int | None) -> tuple[np.generic, np.generic]:
        """A start and an end between which the loop ends soon; those that are given are constants."""
        made = np.dtype(self.dtype.replace("u", "uint") if self.dtype[0] == "u" else self.dtype.replace("i", "int"))
        ends = np.iinfo(made)
        while True:
            near = int(rng.choice([ends.min, 0, ends.max]))
            drawn = [near + int(rng.integers(-9, 10)) for _ in range(2)]
            first, last = (d if given is None else given for d, given in zip(drawn, (start, stop), strict=True))
            if not all(ends.min <= n <= ends.max for n in (first, last)):
                continue
            if self.ends_soon(made.type(first), made.type(last)):
                return made.type(first), made.type(last)

    def ends_soon(self, k: np.generic, n: np.generic) -> bool:
        """Whether the loop has at most `MOST` iterations; numbers wrap around."""
        by, moves = (np.array(v).astype(k.dtype)[()] for v in (self.by, self.moves))
        with np.errstate(over="ignore"):
            for _ in range(MOST + 1):
                if not _COMPARISONS[self.compare](k, n):
                    return True
                k, n = k + by, n + moves
        return False


def counted_case(seed: int) -> Case:
    """One loop, perhaps with one inside, whose counter is used inside, behind it, or nowhere."""
    rng = np.random.default_rng(seed)
    choose = lambda *options: str(rng.choice(options))  # noqa: E731
    dtype = choose(*["i32"] * 7, "i64", "u32", "u8", "i8", "u64")
    up = rng.random() < 0.8
    compare = choose("lt", "lt", "lt", "lt", "lt", "le", "ne") if up else choose("gt", "gt", "ge", "ne")
    size = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 3]))
    moves = int(rng.choice([0, 0, 0, 0, 0, 0, -1, 1]))
    counter = _Counter(dtype, compare, size if up else -size, moves)
    constants = [int(rng.integers(0, 9)) if rng.random() < 0.4 else None for _ in range(2)]
    try_again = all(c is not None for c in constants)
    pairs = [counter.draw(rng, constants[0], None if try_again else constants[1]) for _ in range(LANES)]
    if try_again:  # two constants need not be a loop that ends
        constants[1] = None
    starts, ends = (np.array(column) for column in zip(*pairs, strict=True))
    wrapped = np.array(counter.by).astype(starts.dtype), np.array(counter.moves).astype(starts.dtype)
    start, end = (f"{c}:{dtype}" if c is not None else name for c, name in zip(constants, ("s", "n"), strict=True))
    end_at = int(rng.choice([0, 0, 0, 0, 1, 2]))  # known in front of the loop, loaded by the condition, or carried
    if moves:
        end_at = 2
    lines: list[str] = []
    carried = [("a", dtype, start), ("c", "f32", "v"), ("e", "i32", str(rng.integers(-3, 4)) + ":i32")]
    if end_at == 2:
        carried.append(("m", dtype, end))
    test_end = {0: end, 1: "l", 2: "m"}[end_at] if constants[1] is None or end_at == 2 else end
    results = ", ".join(f"{name}_: {kind}" for name, kind, _ in carried)
    lines.append(f"    {results} = while carry " + ", ".join(f"{name} = {first}" for name, _, first in carried))
    if test_end == "l":
        lines.append(f"      l: {dtype} = load ends i")
    sides = ("a", test_end, compare) if rng.random() < 0.7 else (test_end, "a", _SWAPPED[compare])
    lines.append(f"      p: bool = {sides[2]} {sides[0]} {sides[1]}")
    second = choose(*[""] * 9, "lt e 4:i32", "lt e n2", "lt c 0.7:f32", "gt c -9.0:f32", "lt e 9:i32")
    if second:
        lines += [f"      q: bool = {second}", f"      r: bool = {choose('and p q', 'and q p')}"]
    lines.append(f"      test {'r' if second else 'p'}")
    lines.append("      h: f32 = mul c 0.5:f32")
    value = "h"
    if rng.random() < 0.6:
        lines += [f"      o: f32 = convert[dtype=f32] {choose('a', 'e')}", "      t: f32 = mul o 0.001:f32"]
        lines.append(f"      u: f32 = add {value} t")
        value = "u"
    if rng.random() < 0.4:
        at = choose("a", "e")
        kind = dtype if at == "a" else "i32"
        lines += [f"      w: {kind} = and {at} 3:{kind}", "      j: i32 = convert[dtype=i32] w"]
        lines += ["      old: f32 = load row j", f"      store row {value} j", f"      y: f32 = add {value} old"]
        value = "y"
    if rng.random() < 0.4:
        bound = choose("f_", "e", "3:i32", "n2")
        lines += ["      f_: i32 = and e 3:i32", "      g_: i32, z: f32 = while carry g = 0:i32, b = " + value]
        lines += [f"        p2: bool = lt g {bound}", "        test p2", "        b2: f32 = mul b 0.75:f32"]
        lines += ["        g2: i32 = add g 1:i32", "        yield g2, b2"]
        value = "z"
    lines.append(f"      a2: {dtype} = add {choose(f'a {wrapped[0]}:{dtype}', f'{wrapped[0]}:{dtype} a')}")
    rise = choose("1", "1", "1", "2", "-1")
    lines.append(f"      e2: i32 = add e {rise}:i32")
    following = f"a2, {value}, e2"
    if end_at == 2:
        lines.append(f"      m2: {dtype} = add m {wrapped[1]}:{dtype}")
        following += ", m2"
    lines.append(f"      yield {following}")
    last = ["    store x c_ i", "    store starts a_ i", "    store seconds e_ i"]
    uses = [line for line in last if rng.random() < 0.7] or last[:1]
    text = f"""\
program p(x: ref[f32,{LANES}], starts: ref[{dtype},{LANES}], ends: ref[{dtype},{LANES}], seconds: ref[i32,{LANES}])
  range_for i in 0:i32 : {LANES}:i32
    s: {dtype} = load starts i
    n: {dtype} = load ends i
    n2: i32 = load seconds i
    v: f32 = load x i
    row: cell[f32,4] = cell[dtype=f32, shape=(4)]
    store row v 0:i32
    store row 0.25:f32 1:i32
    store row 0.5:f32 2:i32
    store row v 3:i32
""" + "\n".join([*lines, *uses, "  return x, starts, seconds\n"])  # fmt: skip
    floats = rng.uniform(0.5, 2, LANES).astype(np.float32)
    return Case(parse_program(text), [floats, starts, ends, rng.integers(-3, 7, LANES, dtype=np.int32)])
