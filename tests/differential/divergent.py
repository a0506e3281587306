"""Random tasks with one loop that lanes leave at different times: what masks and lane refill are made for.

Values and loads, a `for` over bounds of the element or a `while` over what is computed, with branches and loads inside,
then stores, some of them in branches, and accumulations into whole numbers. Nested ones also have loops inside of that
loop, and a private array that they load and store at indices of the lane, as walks over trees do. Those in steps have
one such loop in a loop that all lanes leave together.
"""


from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Atom, Program, Task, Var, literal
from qdtrace.ir.types import DType
from tests.differential.corpus import Case
from tests.differential.values import Values
from tests.lowering.harness import branch, loop, task, while_loop

I32 = DType.i32
SIZES = (1, 15, 16, 17, 40, 130)
LONGEST = 12
STACK = 4
"""Elements of the private array."""


def divergent_programs() -> st.SearchStrategy[Case]:
    """Programs of one task, with arguments."""
    return _drawn(nested=False)


def nested_programs() -> st.SearchStrategy[Case]:
    """The same with loops in the loop and a private array."""
    return _drawn(nested=True)


def programs_in_steps() -> st.SearchStrategy[Case]:
    """The same with one loop that lanes leave at different times in each step of a loop that they leave together."""
    return _drawn(nested=True, steps=True)


@st.composite
def _drawn(draw: Callable, nested: bool, steps: bool = False) -> Case:
    maker = _Maker(draw, nested, steps)
    program = maker.program()
    rng = np.random.default_rng(draw(st.integers(0, 5)))
    n, kind = maker.size, maker.pick(("any", "equal", "rare"))
    trips = {
        "any": rng.integers(-1, LONGEST, n),
        "equal": np.full(n, 3),
        "rare": np.where(rng.random(n) < 0.1, LONGEST, 1),
    }
    first = rng.integers(-3, 3, n).astype(np.int32)
    x = rng.normal(size=n).astype(np.float32)
    zeros = [np.zeros(n, np.float32), np.zeros(n, np.int32), np.zeros(n, np.int32)]
    return Case(program, [x, first, (first + trips[kind]).astype(np.int32), *zeros])


class _Maker(Values):
    def __init__(self, draw: Callable, nested: bool, steps: bool) -> None:
        self.draw = draw
        self.nested = nested
        self.steps = steps
        self.dtypes = [DType.f32, I32]
        self.scope = {DType.f32: [], I32: [], DType.bool: []}
        self.size = self.pick(SIZES)

    def program(self) -> Program:
        n = self.size
        self.refs = [ref_var(d, (n,), h) for d, h in ((DType.f32, "x"), (I32, "lo"), (I32, "hi"))]
        outs = [ref_var(d, (n,), h) for d, h in ((DType.f32, "y"), (I32, "z"), (I32, "sums"))]
        made = task(n, lambda b, i: self.body(b, i, outs))
        return Program("p", (*self.refs, *outs), (), (made,), tuple(outs))

    def some(self, most: int, ways: Sequence[Callable[[], None]]) -> None:
        for _ in range(self.below(most + 1)):
            self.pick(ways)()

    def load(self) -> None:
        ref = self.pick(self.refs)
        self.keep(self.builder.load(ref, self.index_below(self.size)))

    def choose(self) -> None:
        """A branch that computes something more on one side; what is made there is not seen after it."""
        condition, other = self.value(DType.bool), self.value(DType.f32)
        before = {d: list(v) for d, v in self.scope.items()}

        def then() -> tuple[Atom]:
            self.arithmetic()
            return (self.value(DType.f32),)

        (found,) = branch(self.builder, condition, then, lambda: (other,))
        self.scope = before
        self.keep(found)

    def push(self) -> None:
        """A store into the private array, in a branch or not."""
        value, index = self.value(I32), self.index_below(STACK)
        if self.below(2):
            branch(self.builder, self.value(DType.bool), lambda: self.builder.store(self.stack, value, index))
        else:
            self.builder.store(self.stack, value, index)

    def pop(self) -> None:
        """A load of the private array."""
        self.keep(self.builder.load(self.stack, self.index_below(STACK)))

    def inner(self) -> None:
        """A loop of at most three trips, alone or in a branch; what is made there is not seen after it."""
        trips = self.builder("abs", self.builder("rem", self.value(I32), literal(4, I32)))
        carry, condition = self.value(DType.f32), self.value(DType.bool)
        before = {d: list(v) for d, v in self.scope.items()}

        def step(k: Var, x: Var) -> tuple[Atom]:
            self.keep(k)
            self.keep(x)
            self.some(3, [self.arithmetic, self.load, self.pop, self.push, self.choose])
            return (self.value(DType.f32),)

        def whole() -> tuple[Var, ...]:
            return loop(self.builder, literal(0, I32), trips, literal(1, I32), [carry], step)

        (found,) = whole() if self.steps or self.below(2) else branch(self.builder, condition, whole, lambda: (carry,))
        self.scope = before
        self.keep(found)

    def body(self, b: Builder, i: Var, outs: Sequence[Var]) -> None:
        self.builder = b
        if self.nested:
            self.stack = b.cell(I32, (STACK,), "stack")
            for k in range(STACK):
                b.store(self.stack, literal(k, I32), literal(k, I32))
        start, stop = (b.load(r, i) for r in self.refs[1:])
        for atom in (i, b.load(self.refs[0], i), start, stop):
            self.keep(atom)
        ways = [self.arithmetic, self.logic, self.choice, self.load]
        self.some(4, ways)
        inside = [*ways, self.choose, *([self.push, self.pop] if self.nested else [])]
        inside += [self.inner] if self.nested and not self.steps else []
        carries = [self.value(DType.f32), self.value(I32)]
        before = {d: list(v) for d, v in self.scope.items()}

        def step(*params: Var) -> tuple[Atom, ...]:
            for param in params:
                self.keep(param)
            self.some(5, inside)
            if self.steps:
                self.inner()
                self.some(3, inside)
            return self.value(DType.f32), self.value(I32)

        if self.steps:
            start, stop = literal(0, I32), literal(self.below(4), I32)
        if self.below(2):
            made = loop(b, start, stop, literal(1, I32), carries, step)
        else:

            def goes_on(k: Var, *_: Var) -> Atom:
                return b("lt", k, stop)

            def turn(k: Var, *params: Var) -> tuple[Atom, ...]:
                results = step(k, *params)
                return b("add", k, literal(1, I32)), *results

            made = while_loop(b, [start, *carries], goes_on, turn)
        self.scope = before
        for atom in made:
            self.keep(atom)
        self.some(3, ways)
        if self.nested:
            self.pop()
        y, z, sums = outs
        if self.below(2):
            value = self.value(DType.f32)
            branch(b, self.value(DType.bool), lambda: b.store(y, value, i))
        else:
            b.store(y, self.value(DType.f32), i)
        b.store(z, self.value(I32), i)
        if not self.steps and self.below(2):
            b.accum(sums, self.value(I32), self.index_below(self.size))


def with_hint(program: Program, hint: bool | None) -> Program:
    """The program whose task has a hint."""
    (only,) = program.tasks
    hints = {} if hint is None else {"refill": hint}
    made = Task(only.kind, only.index, only.start, only.stop, only.body, only.head, hints=hints)
    return Program(program.name, program.params, program.buffers, (made,), program.results)
