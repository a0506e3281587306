"""Random programs, as text, whose tasks accumulate at fixed offsets: wrapped, clamped, guarded, mirrored or in steps.

Values are small whole numbers, so that sums have the same bits in every order.
"""


from random import Random

import numpy as np

SIZES = (1, 2, 3, 4, 7)
DTYPES = ("f32", "f64", "f16", "bf16", "i32", "i64", "i8", "u32", "bool")


class Writer:
    """The text of one task over the digits of an index, and the references that it uses."""

    def __init__(self, rng: Random, name: str) -> None:
        self.rng, self.name = rng, name
        self.ndim = rng.choice((1, 1, 2, 2, 3))
        self.sizes = [rng.choice(SIZES[: 4 if self.ndim == 3 else 5]) for _ in range(self.ndim)]
        self.starts = [rng.choice((0, 0, 1)) for _ in range(self.ndim)]
        self.dtype = rng.choice(DTYPES) if rng.random() < 0.5 else "f32"
        self.lines: list[str] = []
        self.indent = 2
        self.count = 0
        self.refs: dict[str, str] = {}
        """Types of references by name: `s..` are read, `b..` are accumulated into."""

    def emit(self, dtype: str, text: str) -> str:
        """Adds an equation and returns its result."""
        self.count += 1
        var = f"{self.name}v{self.count}"
        self.line(f"{var}: {dtype} = {text}")
        return var

    def line(self, text: str) -> None:
        """Adds a line."""
        self.lines.append("  " * self.indent + text)

    def digits(self) -> list[str]:
        """Takes the index apart; returns what it is along each axis."""
        found: list[str] = []
        rest = f"{self.name}i"
        for size in reversed(self.sizes[1:]):
            found.append(self.emit("i32", f"rem {rest} {size}:i32"))
            rest = self.emit("i32", f"div {rest} {size}:i32")
        found = [rest, *reversed(found)]
        if self.ndim == 1:
            return found  # its start is that of the range
        return [self.emit("i32", f"add {d} {s}:i32") for d, s in zip(found, self.starts, strict=True)]

    def index(self, digit: str, axis: int) -> tuple[str, int, list[str]]:
        """Returns an index that follows a digit, a size that it fits in, and guards under which it does."""
        rng = self.rng
        first, last = self.starts[axis], self.starts[axis] + self.sizes[axis] - 1
        offset = rng.choice((-2, -1, 0, 0, 1, 1, 2))
        at = self.emit("i32", f"add {digit} {offset}:i32")
        kind = rng.choice(("plain", "wrap", "wrap", "clamp", "guard", "mirror", "steps", "halves", "reflect"))
        if kind == "plain":
            shift = max(0, -(first + offset))
            return self.emit("i32", f"add {at} {shift}:i32"), last + offset + shift + 1, []
        if kind == "steps":
            step, shift = rng.choice((2, 2, 3)), rng.choice((0, 1, 1, 2))
            product = self.emit("i32", f"mul {digit} {step}:i32")
            return self.emit("i32", f"add {product} {shift}:i32"), last * step + shift + rng.choice((1, 2)), []
        if kind == "halves":
            shift = rng.choice((0, 1))
            return self.emit("i32", f"div {self.emit('i32', f'add {digit} {shift}:i32')} 2:i32"), last // 2 + 2, []
        if kind == "reflect":
            return self.emit("i32", f"abs {at}"), max(abs(first + offset), abs(last + offset)) + 1, []
        size = rng.choice((last + 1, last + 1, max(1, last), last + 3))
        if kind == "mirror":
            return self.emit("i32", f"sub {last}:i32 {digit}"), last - first + 1, []
        if kind == "wrap":
            left = self.emit("i32", f"rem {at} {size}:i32")
            negative = self.emit("bool", f"lt {left} 0:i32")
            return self.emit("i32", f"select {negative} {self.emit('i32', f'add {left} {size}:i32')} {left}"), size, []
        if kind == "clamp":
            return self.emit("i32", f"min {self.emit('i32', f'max {at} 0:i32')} {size - 1}:i32"), size, []
        tests = [self.emit("bool", f"ge {at} 0:i32"), self.emit("bool", f"lt {at} {size}:i32")]
        return at, size, [self.emit("bool", f"and {tests[0]} {tests[1]}")]

    def value(self, digits: list[str]) -> str:
        """Emits a number that depends on the iteration."""
        rng, name = self.rng, f"{self.name}s{self.rng.randrange(2)}"
        shape = [s + n for s, n in zip(self.starts, self.sizes, strict=True)]
        kind = f"ref[{self.dtype},{'x'.join(map(str, shape))}]"
        self.refs[name] = kind
        found = self.emit(self.dtype, f"load {name} {' '.join(digits)}")
        if rng.random() < 0.3 and self.dtype != "bool":
            number = self.emit(self.dtype, f"convert[dtype={self.dtype}] {digits[0]}")
            found = self.emit(self.dtype, f"add {found} {number}")
        return found

    def accumulation(self, digits: list[str]) -> None:
        """Emits an accumulation, under its guards."""
        rng = self.rng
        number = rng.randrange(3)
        order = rng.choice((range(self.ndim), range(self.ndim), rng.sample(range(self.ndim), self.ndim)))
        made = [self.index(digits[axis], axis) for axis in order]
        indices, shape = [i for i, _, _ in made], [n for _, n, _ in made]
        guards = [g for _, _, guards in made for g in guards]
        if rng.random() < 0.2:
            indices, shape = [*indices, f"{rng.randrange(3)}:i32"], [*shape, 3]
        owner = "c" if rng.random() < 0.3 else self.name  # the other task may have it, too
        name = f"{owner}b{number}_{self.dtype}_" + "x".join(map(str, shape))
        op = "max" if number == 2 else "add"
        self.refs[name] = f"ref[{self.dtype},{'x'.join(map(str, shape))}]"
        value = self.value(digits)
        if rng.random() < 0.2:
            other = self.value(digits)
            guards.append(self.emit("bool", f"{rng.choice(('ne', 'eq'))} {value} {other}"))
        for guard in guards:
            self.line(f"if {guard}")
            self.indent += 1
        if rng.random() < 0.5:
            value = self.value(digits)
        self.line(f"accum[op={op}] {name} {value} {' '.join(indices)}")
        self.indent -= len(guards)

    def task(self) -> list[str]:
        """Returns the lines of the task."""
        stop = int(np.prod(self.sizes))
        start = self.starts[0] if self.ndim == 1 else 0
        digits = self.digits()
        for _ in range(self.rng.randrange(1, 6)):
            self.accumulation(digits)
        if self.rng.random() < 0.3 and (read := [r for r in self.refs if r.startswith(f"{self.name}s")]):
            zero = "false" if self.dtype == "bool" else f"0:{self.dtype}"
            self.line(f"store {read[0]} {zero} {' '.join(digits)}")
        return [f"  range_for {self.name}i in {start}:i32 : {start + stop}:i32", *self.lines]


def scattering_program(rng: Random) -> str:
    """Returns the text of a program of one or two tasks; what they accumulate into is returned.

    An earlier task may have used some of it.
    """
    writers = [Writer(rng, name) for name in ("p", "q")[: rng.choice((1, 1, 2))]]
    lines = [line for writer in writers for line in writer.task()]
    refs = {name: kind for writer in writers for name, kind in writer.refs.items()}
    used = [_use(name, kind) for name, kind in refs.items() if name[1] == "b" and rng.random() < 0.2]
    if used:
        lines = ["  range_for u in 0:i32 : 1:i32", *used, *lines]
    given = [r for r in refs if "s" in r[:2] or rng.random() < 0.5]
    params = ", ".join(f"{r}: {refs[r]}" for r in given)
    buffers = [f"  buffer {r}: {kind} = {_zero(kind)}" for r, kind in refs.items() if r not in given]
    return "\n".join([f"program p({params})", *buffers, *lines, f"  return {', '.join(refs)}", ""])


def _use(name: str, kind: str) -> str:
    """Returns the line of an accumulation into the first element."""
    dtype, _, shape = kind[4:-1].partition(",")
    one = "true" if dtype == "bool" else f"1:{dtype}"
    first = " ".join(["0:i32"] * len(shape.split("x")))
    return f"    accum[op={'max' if name[2] == '2' else 'add'}] {name} {one} {first}"


def _zero(kind: str) -> str:
    dtype = kind[4:].split(",", maxsplit=1)[0]
    return "false" if dtype == "bool" else f"0:{dtype}"
