"""Random programs of many tasks over shared references, as a hypothesis strategy: what joins and splits tasks.

    @given(task_programs(tasks=6))
    def test_something(case):
        program, args, *_ = case

The tasks are written without regard to each other: fills, maps and stencils at the index expressions of `places`, edge
lists, reductions, accumulations, rows in inner loops, conditions, divergent loops, serial tasks, bounds that are
constants, arguments, elements of memory or computed from them.

Each task is free of races: an access that meets one of another iteration is not drawn (in part: one in four draws is
left to the race detector, so that there are programs whose freedom from races depends on data). A task that the
verifier or the interpreter refuses after those before it is left out, so every program is valid, with one result in
any order of iterations.

Floats are multiples of 1/8, clamped to [-8, 8] wherever they are computed, never -0.0, and what is added to memory is
a whole number, so that sums are exact in any order.

`random_case` draws from a random generator: faster and more even than hypothesis, but a failure is not shrunk by it:
`reduced` (in `reduce`) does that.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import reject
from hypothesis import strategies as st

from qdtrace.errors import InterpreterError, VerifyError
from qdtrace.interpret.reference import Order, evaluate
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Atom, Program, Task, Var, literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from tests.differential.compare import compare
from tests.differential.corpus import Case, case
from tests.differential.inputs import arguments
from tests.differential.places import places
from tests.differential.task_bodies import F32, I32, Bodies

I64 = DType.i64
SIZES = (6, 8, 1, 4, 18, 36, 12)
"""Iterations of the usual range: with divisors, and above the lanes of a vector."""
SEEDS = (0, 1, 2)
ORDERS: tuple[Order, ...] = ("forward", "backward", "shuffled")
FUEL = 200_000


def task_programs(tasks: int = 12) -> st.SearchStrategy[Case]:
    """Programs of 2 up to `tasks` tasks, with arguments."""
    return _task_programs(tasks)


@st.composite
def _task_programs(draw: Callable, tasks: int) -> Case:
    seed = draw(st.sampled_from(SEEDS))
    made = case(Maker(lambda n: draw(st.integers(0, n - 1)), seed=seed, tasks=tasks).program(), "plain", seed)
    return made if is_definite(made) else reject()


def random_case(seed: int, tasks: int = 12) -> Case:
    """The program and arguments of a number."""
    generator = random.Random(seed)
    while True:
        made = case(Maker(generator.randrange, seed=seed % 3, tasks=tasks).program(), "plain", seed % 3)
        if is_definite(made):
            return made


def is_definite(case: Case) -> bool:
    """Whether the program is valid on these arguments and has one result in any order of iterations."""
    try:
        want = evaluate(case.program, case.args, check_races=True, fuel=FUEL)
        for order in ORDERS[1:]:
            compare(evaluate(case.program, case.args, order=order, check_races=True, fuel=FUEL), want)
    except (AssertionError, InterpreterError):
        return False  # the old value of an atomic, or what one order alone makes valid
    return True


class Range(NamedTuple):
    """Bounds of a task: how they are written in a head, and the iterations that there may be."""

    write: Callable[[Builder], tuple[Atom, Atom]]
    iterations: range


@dataclass
class Maker(Bodies):
    """Draws one program."""

    seed: int = 0
    tasks: int = 2

    # Programs.

    def program(self) -> Program:
        """The program: tasks one by one, those that are not valid left out."""
        n = self.n = self.pick(SIZES)
        self.m = self.pick([d for d in (2, 3, 4) if n % d == 0] or [2])
        self.dtypes = self.pick([(I32,), (F32,), (I32, F32)])
        self.wide = self.chance(8)
        self.edges = ref_var(I32, (n,), "e")
        self.limit = ref_var(I32, (), "n")
        params = [self._ref(f"x{k}") for k in range(1 + self.below(3))]
        self.buffers = [self._ref(f"t{k}") for k in range(self.below(4))]
        self.initial = {b: literal(self.pick((0, 1, 2, -3)), b.dtype) for b in self.buffers if self.chance(2)}
        self.scalar = ref_var(self.pick(self.dtypes), (), "loss")
        self.params = (*params, self.edges, self.limit, self.scalar)
        self.refs = [*params, *self.buffers, *self.buffers, self.scalar]
        everything = places(n, self.m)
        # Few forms and ranges in one program, so that tasks meet.
        self.favoured = [everything[0], everything[0], *(self.pick(everything) for _ in range(3))]
        self.others = everything
        usual = self._range()
        self.ranges = [usual, usual, usual, self._range()]
        kept: list[Task] = []
        for buffer in self.buffers:
            if not self.chance(4) and (buffer not in self.initial or self.chance(4)):
                self._keep(kept, self._fill(buffer))
        for _ in range(2 + self.below(self.tasks - 1)):
            if len(kept) >= self.tasks:
                break
            self._keep(kept, self._fill(self.pick(self.refs)) if self.chance(6) else self._task())
        results = [r for r in (*self.params, *self.buffers) if not self.chance(3)]
        results = [r for r in results if r in self.params or self._accepts(kept, [r])]
        return self._made(kept, results or [self.params[0]])

    def _ref(self, hint: str) -> Var:
        n, m = self.n, self.m
        shape = self.pick([(n,), (n,), (n + 2,), (2 * n + 2,), (n // m or 1, m), (n, 2), (n + 1, 3), (3 * n,), ()])
        return ref_var(self.pick(self.dtypes), shape, hint)

    def _made(self, tasks: Sequence[Task], results: Sequence[Var]) -> Program:
        return Program("p", self.params, tuple(self.buffers), tuple(tasks), tuple(results), self.initial)

    def _keep(self, kept: list[Task], task: Task) -> None:
        if self._accepts([*kept, task], self.params):
            kept.append(task)

    def _accepts(self, tasks: Sequence[Task], results: Sequence[Var]) -> bool:
        program = self._made(tasks, results)
        try:
            verify_program(program)
            evaluate(program, arguments(program, "plain", self.seed), check_races=True, fuel=FUEL)
        except (InterpreterError, VerifyError):
            return False
        return True

    # Bounds.

    def _range(self) -> Range:
        n = self.n
        dtype = I64 if self.wide and self.chance(2) else I32
        last = literal(n, dtype)
        how = self.below(8)

        def clamped(b: Builder, ref: Var, *indices: Atom, low: int = 0) -> Atom:
            value = b.convert(b.load(ref, *indices), dtype)
            return b("min", b("max", value, literal(low, dtype)), last)

        def argument(b: Builder) -> tuple[Atom, Atom]:
            return literal(0, dtype), clamped(b, self.limit)

        def computed(b: Builder) -> tuple[Atom, Atom]:
            one = literal(1, dtype)
            return literal(1, dtype), b("min", b("add", clamped(b, self.limit), one), last)

        def element(b: Builder) -> tuple[Atom, Atom]:
            return clamped(b, self.edges, literal(0, I32)), last

        written = {3: argument, 4: computed, 5: element}.get(how)
        if written is not None:
            return Range(written, range(n))
        others = [(1, n), (0, n - 1), (1, 1), (2, 0), (0, n // 2)]
        low, high = self.pick(others) if how > 5 else (0, n)
        return Range(lambda b: (literal(low, dtype), literal(high, dtype)), range(low, high))

    # Tasks.

    def _open(self, index: DType | None, iterations: range) -> None:
        self.scope = {d: [] for d in (F32, I32, I64)}
        self.touched, self.held = {}, []
        self.index = scalar_var(index, "i") if index is not None else None
        self.iterations = iterations
        self.checked = not self.chance(4)

    def _hints(self) -> dict[str, bool]:
        return {"fuse": False} if self.chance(12) else {}

    def _fill(self, ref: Var) -> Task:
        """Stores a constant in each element: by rows, by elements, or flat."""
        shape = ref_type(ref).shape
        self._open(I32, range(shape[0] if shape else 1))
        value = self._literal(ref.dtype)
        count = shape[0] if shape else 1
        with self.builder.block() as body:
            assert self.index is not None
            if not shape:
                self.builder.store(ref, value)
            elif len(shape) == 1:
                self.builder.store(ref, value, self.index)
            elif self.chance(2):
                count *= shape[1]
                split = [self.builder(name, self.index, literal(shape[1], I32)) for name in ("div", "rem")]
                self.builder.store(ref, value, *split)
            else:
                self._loop(shape[1], lambda j: self.builder.store(ref, value, self.index, j))  # type: ignore[arg-type]
        if not shape and self.chance(2):
            return Task("serial", None, literal(0, I32), literal(1, I32), body.close(), name="fill")
        bounds = literal(0, I32), literal(count, I32)
        return Task("range_for", self.index, *bounds, body.close(), name="fill", hints=self._hints())

    def _task(self) -> Task:
        if self.chance(7):
            return self._serial()
        bounds = self.pick(self.ranges) if not self.chance(8) else self._range()
        with self.builder.block() as opened:
            start, stop = bounds.write(self.builder)
            self._open(start.dtype, bounds.iterations)
            if self.chance(4):
                self._head()
        with self.builder.block() as body:
            assert self.index is not None
            self._keep_value(self.builder.convert(self.index, I32))
            self._statements()
        return Task("range_for", self.index, start, stop, body.close(), tuple(opened.eqns), hints=self._hints())

    def _head(self) -> None:
        """Values that all iterations share: of an argument, or of memory that other tasks may write."""
        value = self.builder.load(self.limit)
        self.held.append(self.builder("min", self.builder("max", value, literal(0, I32)), literal(1, I32)))
        self._keep_value(value)
        ref = self.pick(self.refs)
        if 0 not in ref_type(ref).shape:
            place = [literal(self.below(min(s, 2)), I32) for s in ref_type(ref).shape]
            self._keep_value(self.builder.load(ref, *place))

    def _serial(self) -> Task:
        self._open(None, range(1))
        with self.builder.block() as opened:
            if self.chance(3):
                self._head()
        with self.builder.block() as body:
            match self.below(3):
                case 0:  # other bounds from here on
                    self.builder.store(self.limit, literal(self.pick([self.n, 1, self.n - 1, 0]), I32))
                case 1:
                    value = self.builder.load(self.edges, literal(0, I32))
                    self.builder.accum(self.edges, literal(1, I32), literal(0, I32))
                    self._keep_value(value)
                    self._statements()
                case _:
                    self._statements()
        return Task("serial", None, literal(0, I32), literal(1, I32), body.close(), tuple(opened.eqns))
