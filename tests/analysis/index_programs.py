"""Random tasks that are nothing but index arithmetic and accesses, and what each access touches, by enumeration."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from qdtrace.analysis.index.affine import Flipped, Form, Term
from qdtrace.analysis.memory import MemoryLocation, TaskMemory
from qdtrace.interpret.numpy_rules import apply_scalar
from qdtrace.ir.memory import indices_of
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Atom, Eqn, Literal, Task, Var

Env = dict[Var, int]

MUST, NO, MAY = "must", "no", "may"
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 60)


@dataclass
class Draw:
    """A task over integers of one dtype: arithmetic in the body, more of it in a loop, and accesses there."""

    rng: random.Random
    dtype: str = "i32"

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self.indent = "    "
        self.number = 0
        self.splits: list[tuple[str, ...]] = []

    def task(self) -> Task:
        rng = self.rng
        start, count = rng.choice((0, 0, 0, 1, 5, -3)), rng.choice((4, 6, 7, 12, 24, 60, 96, 120))
        head = f"program p(e: ref[{self.dtype},8], n: ref[{self.dtype}], REFS)\n"
        head += f"  range_for i in {self.of(start)} : {self.of(start + count)}\n"
        head += f"    head\n      h: {self.dtype} = load n\n"
        known = ["i", "i", "i", "h"] if rng.random() < 0.3 else ["i"]
        if rng.random() < 0.3:
            known.append(self.define("load e 0:i32"))
        self.arithmetic(known, rng.randint(0, 5))
        down, steps = rng.random() < 0.2, rng.choice((1, 2, 3, 4, 5))
        bounds = (steps - 1, -1, -1) if down else (0, steps * 2, 2) if rng.random() < 0.2 else (0, steps, 1)
        self.lines.append(f"    for k in {' : '.join(map(self.of, bounds))}")
        self.indent = "      "
        known += ["k"] * rng.randint(0, 2)
        if rng.random() < 0.2:
            known.append(self.define("load e 1:i32"))
        self.arithmetic(known, rng.randint(0, 4))
        refs: list[str] = []
        for _ in range(2):
            shape = [rng.choice(LENGTHS) for _ in range(rng.randint(1, 3))]
            refs.append(f"x{len(refs)}: ref[f32,{'x'.join(map(str, shape))}]")
            for _ in range(3):
                indices = [rng.choice(known) if rng.random() < 0.9 else self.of(rng.randrange(4)) for _ in shape]
                splits = [s for s in self.splits if len(s) <= len(shape)]
                if splits and rng.random() < 0.5:  # a neighbour in an array of rows
                    near = [self.define(f"add {a} {self.of(rng.choice((0, 0, 1, -1)))}") for a in rng.choice(splits)]
                    indices[: len(near)] = near
                elif rng.random() < 0.1:  # a window of a flat array
                    c = self.of(rng.choice((2, 3, 4)))
                    first = self.define(f"add {self.define(f'mul i {c}')} {self.of(rng.choice((0, 0, 1, 2)))}")
                    indices = [*indices[1:], self.define(f"add {first} k")]
                elif rng.random() < 0.2:
                    indices[-1] = self.define(f"add i {self.of(rng.choice((0, 1, 2, count - 1, count)) % 128)}")
                self.lines.append(f"{self.indent}store x{len(refs) - 1} 1.0:f32 {' '.join(indices)}")
        text = head.replace("REFS", ", ".join(refs)) + "\n".join(self.lines) + "\n  return x0\n"
        return parse_program(text).tasks[0]

    def of(self, value: int) -> str:
        return f"{value}:{self.dtype}"

    def define(self, text: str) -> str:
        name, self.number = f"v{self.number}", self.number + 1
        self.lines.append(f"{self.indent}{name}: {self.dtype} = {text}")
        return name

    def arithmetic(self, known: list[str], count: int) -> None:
        rng = self.rng
        for _ in range(count):
            a, c = rng.choice(known), rng.choice((1, 2, 2, 3, 4, 4, 5, 6, 8, 12, 16))
            wide = rng.choice((1, 3, 64, 127)) if self.dtype == "i8" else rng.choice((1 << 29, 1 << 30, (1 << 31) - 1))
            match rng.randrange(12):
                case 0 | 1 | 2 | 3:
                    split = self.define(f"div {a} {self.of(c)}"), self.define(f"rem {a} {self.of(c)}")
                    known += (*split, self.define(f"add {split[0]} {split[1]}")) if rng.random() < 0.3 else split
                    self.splits += [split]
                    if rng.random() < 0.3:  # of the quotient two digits more
                        row, n = split[0], self.of(rng.choice((2, 3, 5)))
                        digits = self.define(f"div {row} {n}"), self.define(f"rem {row} {n}"), split[1]
                        self.splits += [digits]
                case 4:
                    known.append(self.define(f"mul {a} {self.of(rng.choice((c, -c, wide)))}"))
                case 5 | 6:
                    known.append(self.define(f"{rng.choice(('add', 'sub'))} {a} {self.of(rng.choice((1, c, wide)))}"))
                case 7:
                    known.append(self.define(f"add {self.define(f'mul {a} {self.of(c)}')} {rng.choice(known)}"))
                case 8:
                    known.append(self.define(f"{rng.choice(('xor', 'and'))} {a} {self.of(rng.choice((1, 3, 7)))}"))
                case 9:
                    name = rng.choice(("shift_left", "shift_right_logical"))
                    known.append(self.define(f"{name} {a} {self.of(rng.choice((1, 2, 3)))}"))
                case 10:
                    known.append(self.define(f"{rng.choice(('neg', 'not'))} {a}"))
                case _:
                    known.append(self.define(f"sub {self.of(c)} {a}"))


def stores_of(task: Task) -> list[Eqn]:
    """The accesses of such a task."""
    return [e for e in task.all_eqns if e.primitive.name == "store"]


def iterations(task: Task, rng: random.Random) -> Iterator[tuple[int, Env]]:
    """For each time around the loop inside: the iteration of the task, and all values there. Loads give anything."""
    assert task.index is not None

    def loaded(eqn: Eqn) -> int:
        return int(rng.choice((0, 1, 2, 5, -1, 9, 100)))

    def run(eqns: tuple[Eqn, ...], env: Env) -> Iterator[Env]:
        for eqn in eqns:
            name = eqn.primitive.name
            if name == "load":
                env[eqn.outvar] = loaded(eqn)
            elif name == "for":
                for k in values(*eqn.invars[:3]):
                    yield from run(eqn.blocks[0].eqns, {**env, eqn.blocks[0].params[0]: k})
                return
            elif name != "store":
                operands = [a.dtype.numpy.type(value(a, env)) for a in eqn.invars]
                env[eqn.outvar] = int(apply_scalar(name, operands, eqn.params))
        yield env

    head = {eqn.outvar: loaded(eqn) for eqn in task.head}
    for i in values(task.start, task.stop):
        for env in run(task.body.eqns, {**head, task.index: i}):
            yield i, env


def values(*bounds: Atom) -> range:
    return range(*[int(a.value) for a in bounds if isinstance(a, Literal)])


def value(atom: Atom, env: Env) -> int:
    return int(atom.value) if isinstance(atom, Literal) else env[atom]


def element(store: Eqn, env: Env) -> tuple[int, ...]:
    """The indices of an access."""
    return tuple([value(a, env) for a in indices_of(store)])


def in_range(store: Eqn, indices: tuple[int, ...]) -> bool:
    return all(0 <= k < n for k, n in zip(indices, store.invars[0].type.shape, strict=True))


def value_of_form(form: Form, env: Env, bits: int) -> int:
    """The value of a form, not wrapped; that of what is divided is wrapped to its dtype."""
    return form.constant + sum(c * value_of_term(t, env, bits) for t, c in form.terms.items())


def value_of_term(term: Term, env: Env, bits: int) -> int:
    if isinstance(term, Var):
        return env[term]
    if isinstance(term, Flipped):
        return (value_of_form(term.flipped, env, bits) ^ term.bits) % (1 << bits)
    divided = value_of_form(term.dividend, env, bits) % (1 << bits)
    if term.dtype.is_signed and divided >= 1 << (bits - 1):
        divided -= 1 << bits
    return divided // term.divisor if divided >= 0 else -(-divided // term.divisor)


def same_reference(stores: list[Eqn]) -> Iterator[tuple[Eqn, Eqn]]:
    """Pairs of accesses to one reference, each with itself too."""
    for a, b in itertools.product(stores, stores):
        if a.invars[0] is b.invars[0]:
            yield a, b


def meeting(memory: TaskMemory, a: MemoryLocation, b: MemoryLocation) -> str:
    """How two locations of one reference meet in one iteration: what is said of it."""
    may = memory.may_meet(a, b)
    assert may or a.key != b.key
    return MUST if a.key == b.key else MAY if may else NO
