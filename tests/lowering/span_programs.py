"""Random tasks that walk over spans, in integers: sums have the same bits in any order."""

import numpy as np

PARAMETERS = (
    "first: ref[i32,{n}], last: ref[i32,{n}], w: ref[i32,{m}], v: ref[i32,{m}x2], col: ref[i32,{m}], "
    "x: ref[i32,{r}], u: ref[i32,{r}x2], s: ref[i32], big: ref[i32,{b}]"
)
HEADER = f"program walks({PARAMETERS})"
BUFFERS = """
  buffer own: ref[i32,{b}] = 7:i32
  buffer far: ref[i32,{r}] = 0:i32
  buffer pairs: ref[i32,{b}x2] = 0:i32
  buffer most: ref[i32,{b}] = -9:i32
  buffer y: ref[i32,{n}]
  range_for i in 0:i32 : {n}:i32
    head
      h: i32 = load s
    lo: i32 = load first i
    hi: i32 = load last i
    c: cell[i32,1] = cell[dtype=i32, shape=(1)]
    store c h 0:i32
    own_one: i32 = load big i
"""
FOOTER = """    store y {result} i
  return own, far, pairs, most, y
"""
FORWARD = "    {out}: i32 = for {t} in lo : hi : 1:i32 carry {carry} = {start}\n{body}      yield {result}\n"
BACKWARD = """    less{k}: bool = lt lo hi
    distance{k}: i32 = sub hi lo
    n{k}: i32 = select less{k} distance{k} 0:i32
    from{k}: i32 = add n{k} -1:i32
    {out}: i32 = for {t} in from{k} : -1:i32 : -1:i32 carry {carry} = {start}
      {p}: i32 = add lo {t}
{body}      yield {result}
"""
TOGETHER = """    less{k}: bool = lt lo hi
    distance{k}: i32 = sub hi lo
    n{k}: i32 = select less{k} distance{k} 0:i32
    most{k}: i32 = lane_max n{k}
    from{k}: i32 = add most{k} -1:i32
    {out}: i32 = for {t} in from{k} : -1:i32 : -1:i32 carry {carry} = {start}
      in{k}: bool = lt {t} n{k}
      given{k}: i32 = if in{k}
        {p}: i32 = add lo {t}
{body}        yield {result}
      else
        yield {carry}
      yield given{k}
"""


def random_walks(seed: int, n: int, m: int, r: int, b: int) -> str:
    """The text of a program of some walks over `m` positions for `n` iterations.

    Arrays that are gathered from have `r` elements. Those that are accumulated into have `r` or `b`, which is no less
    than `n` and `m`; where both are more than 65,536, none is small enough for copies of chunks.
    """
    maker = _Maker(np.random.default_rng(seed), {"m": m, "r": r, "b": b})
    text, result = (HEADER + BUFFERS).format(n=n, m=m, r=r, b=b), "0:i32"
    for k in range(maker.rng.integers(1, 4)):
        text += maker.walk(k, result)
        result = f"out{k}"
    return text + FOOTER.format(result=result)


class _Maker:
    def __init__(self, rng: np.random.Generator, sizes: dict[str, int]) -> None:
        self.rng = rng
        self.sizes = sizes
        self.lines: list[str] = []
        self.count = 0

    def walk(self, k: int, start: str) -> str:
        form = (FORWARD, BACKWARD, TOGETHER)[self.rng.integers(3)]
        t, carry = f"t{k}", f"carry{k}"
        position = t if form is FORWARD else f"p{k}"
        indent = 8 if form is TOGETHER else 6
        result = self.body(position, carry)
        body = "".join(" " * indent + line + "\n" for line in self.lines)
        return form.format(k=k, out=f"out{k}", t=t, p=position, carry=carry, start=start, body=body, result=result)

    def name(self) -> str:
        self.count += 1
        return f"a{self.count}"

    def add(self, text: str, dtype: str = "i32") -> str:
        name = self.name()
        self.lines.append(f"{name}: {dtype} = {text}")
        return name

    def bound(self, value: str, size: str) -> str:
        length = self.sizes[size]
        return self.add(f"bound[axis=0, buffer={size}, shape=({length}), size={length}] {value}")

    def body(self, position: str, carry: str) -> str:
        """Lines of a walk; gives what is carried on."""
        self.lines = []
        place = self.bound(position, "m")
        values = [position, "h", "3:i32"]
        rows = [carry, "own_one", "i"]
        columns: list[str] = []
        for _ in range(self.rng.integers(4, 16)):
            self.step(place, values, rows, columns)
        return self.add(f"add {carry} {self.rng.choice([*rows[-3:], *values])}")

    def step(self, place: str, values: list[str], rows: list[str], columns: list[str]) -> None:
        draw = self.rng
        match draw.integers(13):
            case 0:
                values.append(self.add(f"load w {place}"))
            case 1:
                values.append(self.add(f"load v {place} {draw.integers(2)}:i32"))
            case 2 | 3:
                column = self.add(f"load col {place}")
                columns.append(self.bound(column, "r"))
                values.append(self.add(f"load x {columns[-1]}"))
            case 4 if columns:
                values.append(self.add(f"load u {draw.choice(columns)} {draw.integers(2)}:i32"))
            case 5:
                name = draw.choice(["add", "mul", "xor"])
                values.append(self.add(f"{name} {draw.choice(values)} {draw.choice(values)}"))
            case 6 | 7:
                name = draw.choice(["add", "mul", "sub"])
                rows.append(self.add(f"{name} {draw.choice(rows)} {draw.choice(values)}"))
            case 8:
                self.lines.append(f"accum[op=add] own {draw.choice([*rows, *values])} {place}")
            case 9 if columns:
                self.lines.append(f"accum[op=add] far {draw.choice([*rows, *values])} {draw.choice(columns)}")
            case 10 if columns:
                self.updates(draw.choice(columns), rows, values)
            case 11:
                self.branch(values, rows)
            case 12:
                flag = self.add(f"lt {draw.choice(values)} {draw.choice(values)}", "bool")
                rows.append(self.add(f"select {flag} {draw.choice(rows)} {draw.choice(values)}"))
            case _:
                rows.append(self.add("load c 0:i32"))
                self.lines.append(f"store c {draw.choice([*rows, *values])} 0:i32")

    def updates(self, column: str, rows: list[str], values: list[str]) -> None:
        for component in range(2):
            self.lines.append(f"accum[op=add] pairs {self.rng.choice([*rows, *values])} {column} {component}:i32")
        self.lines.append(f"accum[op=max] most {self.rng.choice(rows)} {column}")

    def branch(self, values: list[str], rows: list[str]) -> None:
        """A value of the position is used where only some lanes are."""
        test = self.add(f"lt {self.rng.choice(rows)} {self.rng.choice(values)}", "bool")
        name = self.name()
        self.lines += [
            f"{name}: i32 = if {test}",
            f"  {name}t: i32 = add {self.rng.choice(values)} {self.rng.choice(rows)}",
            f"  yield {name}t",
            "else",
            f"  yield {self.rng.choice(values)}",
        ]
        rows.append(name)
