"""Results in the memory of donated arguments have the values they had, whichever arguments are donated.

The programs read `x` and `w` and write `y` and `z` in tasks with branches and loops, at indices that agree, nearly
agree or do not. A program after the pass has no race where the one before has none, in any order of iterations.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from qdtrace.config import Options
from qdtrace.errors import QdError
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Atom, Program, Task, Var, literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.reuse_donated import ReuseDonated
from tests.differential.corpus import Case, case
from tests.differential.places import places
from tests.differential.task_programs import is_definite, random_case, task_programs
from tests.differential.test_fusion import EXAMPLES, check_cpu, same_results

F32, I32 = DType.f32, DType.i32


class Maker:
    """Draws one program."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self.draw = draw
        self.n, self.m = self.pick([(4, 2), (6, 3), (6, 2)])
        shape = self.pick([(self.n,), (self.n, self.m), (self.n * self.m,)])
        self.x, self.w, self.y, self.z = (ref_var(F32, shape, name) for name in "xwyz")
        self.builder = Builder()
        self.indices: list[Var] = []
        forms = [p for p in places(self.n, self.m) if p.fits(range(self.n), self.n)]
        # Few in one program, so that a read and a write often are of one element.
        self.places = [forms[0], forms[0], forms[0], self.pick(forms)]

    def pick(self, choices):
        return choices[self.draw(len(choices))]

    def program(self) -> Program:
        tasks = [self.task() for _ in range(1 + self.draw(3))]
        results = self.pick([(self.y,), (self.y, self.z)])
        return Program("p", (self.x, self.w), (self.y, self.z), tuple(tasks), results)

    def task(self) -> Task:
        self.builder = Builder()
        index = scalar_var(I32, "i")
        self.indices = [index]
        serial = self.draw(8) == 7
        sources = self.pick([[self.x], [self.x, self.w], [self.y], [self.w, self.y, self.z]])
        target = self.pick([self.y, self.y, self.z])
        with self.builder.block() as body:
            if serial:
                zero, n, one = literal(0, I32), literal(self.n, I32), literal(1, I32)
                inner = scalar_var(I32, "i")
                self.indices = [inner]
                with self.builder.block((inner,)) as block:
                    self.statements(sources, target)
                self.builder.emit("for", zero, n, one, blocks=(block.close(),))
            else:
                self.statements(sources, target)
        kind = ("serial", None) if serial else ("range_for", index)
        return Task(*kind, literal(0, I32), literal(self.n, I32), body.close())

    def statements(self, sources: list[Var], target: Var) -> None:
        """All of an iteration's elements are stored somewhere in it, mostly where nothing else happens."""
        value: Atom = literal(1, F32)
        at = self.draw(4)
        for k in range(at + 1 + self.draw(2)):
            if k == at:
                self.whole(sources, target)
            else:
                value = self.statement(value, sources, target)

    def whole(self, sources: list[Var], target: Var) -> None:
        """Stores the elements of an iteration."""
        if len(ref_type(target).shape) == 1 and ref_type(target).shape[0] == self.n:
            self.store(target, self.load(self.pick(sources), plain=True), plain=True)
            return
        index = scalar_var(I32, "k")
        with self.builder.block((index,)) as block:
            self.indices.append(index)
            self.store(target, self.load(self.pick(sources), plain=True), plain=True)
            self.indices.pop()
        self.builder.emit("for", literal(0, I32), literal(self.m, I32), literal(1, I32), blocks=(block.close(),))

    def statement(self, value: Atom, sources: list[Var], target: Var, depth: int = 0) -> Atom:
        """A load, a store, or one in a loop or branch; gives a value to store."""
        kind = self.draw(6)
        if kind < 2 or depth > 1:
            return self.load(self.pick(sources))
        if kind < 4:
            self.store(target, value)
            return value
        blocks = []
        params = (scalar_var(I32, "k"),) if kind == 4 else ()
        for _ in range(2 - len(params)):
            with self.builder.block(params) as block:
                self.indices += params
                inner = value
                for _ in range(1 + self.draw(2)):
                    inner = self.statement(inner, sources, target, depth + 1)
                del self.indices[len(self.indices) - len(params) :]
            blocks.append(block.close())
        if params:
            self.builder.emit("for", literal(0, I32), literal(self.m, I32), literal(1, I32), blocks=tuple(blocks))
        else:
            test = self.builder("lt", self.indices[0], literal(self.draw(self.n), I32))
            self.builder.emit("if", test, blocks=tuple(blocks))
        return value

    def load(self, ref: Var, *, plain: bool = False) -> Atom:
        value = self.builder.load(ref, *self.at(ref, plain))
        return self.builder("add", value, literal(1, F32))

    def store(self, ref: Var, value: Atom, *, plain: bool = False) -> None:
        self.builder.store(ref, value, *self.at(ref, plain))

    def at(self, ref: Var, plain: bool) -> list[Atom]:
        """An element: of the iteration, or of another one."""
        place = self.places[0] if plain else self.pick(self.places)
        row = place.write(self.builder, self.indices[0])
        if ref_type(ref).shape == (self.n,):
            return [row]
        column: Atom = literal(0 if plain else self.draw(self.m), I32)
        if len(self.indices) > 1 and (plain or self.draw(3)):
            column = self.indices[-1]
        if len(ref_type(ref).shape) == 2:
            return [row, column]
        return [self.builder("add", self.builder("mul", row, literal(self.m, I32)), column)]


@st.composite
def programs(draw: Callable) -> Case:
    """Programs that read two arguments, with one result in any order of iterations."""
    made = case(Maker(lambda n: draw(st.integers(0, n - 1))).program(), "plain", 0)
    return made if is_definite(made) else reject()


def drawn(seed: int) -> Case:
    """The program of a number."""
    return case(Maker(random.Random(seed).randrange).program(), "plain", seed % 3)


def marked(program: Program) -> Iterator[Program]:
    """The program with each set of pairs of a result and an argument of its type."""
    params = list(program.params)
    pairs = [(r, p) for r in dict.fromkeys(program.results) if r in program.buffers for p in params if r.type == p.type]
    for count in (1, 2):
        for some in combinations(pairs, count):
            if len({r for r, _ in some}) == len({p for _, p in some}) == count:
                yield replace(program, donated_from=dict(some))


def check(given: Case, options: Options | None = None) -> list[Program]:
    """The programs with the results of all sets of marks, which are right; those that have changed."""
    found = []
    for program in marked(given.program):
        after = ReuseDonated()(program) if options is None else optimise(program, replace(options, verify=True))
        if len(after.donated_from) == len(program.donated_from):
            assert options is not None or after is program
            continue
        try:
            same_results(after, given._replace(program=program), races=options is None)
        except (AssertionError, QdError) as e:
            raise AssertionError(f"{e}\nbefore:\n{print_program(program)}\nafter:\n{print_program(after)}") from e
        found.append(after)
    return found


@pytest.mark.full
@EXAMPLES
@given(programs())
def test_the_pass(case: Case) -> None:
    check(case)


@pytest.mark.full
@EXAMPLES
@given(programs())
def test_the_pipeline(case: Case) -> None:
    check(case, Options(fast_math=False))


@pytest.mark.full
@settings(EXAMPLES, max_examples=10)
@given(task_programs())
def test_many_tasks(case: Case) -> None:
    check(case)


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_machine_code(target: str) -> None:
    definite = [c for c in map(drawn, range(30)) if is_definite(c)]
    made = [(c, after) for c in definite[:5] for after in check(c, Options(fast_math=False))[:1]]
    assert made
    for one, after in made:
        check_cpu(after, one, target)


def test_the_programs_are_taken_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither always nor never, and refusals matter: most of what one task reads too late is wrong in place."""
    cases = [c for c in map(drawn, range(150)) if is_definite(c)]
    pairs = [(c, p) for c in cases for p in marked(c.program)]
    refused = [(c, p) for c, p in pairs if ReuseDonated()(p) is p]
    assert 0.1 < len(refused) / len(pairs) < 0.9
    monkeypatch.setattr("qdtrace.passes.reuse_donated.reads_come_first", lambda *_: True)
    forced = [(c, p, ReuseDonated()(p)) for c, p in refused]
    forced = [(c, p, after) for c, p, after in forced if after is not p]
    wrong = [after for c, p, after in forced if is_wrong(after, c._replace(program=p))]
    assert len(wrong) > 10
    assert len(wrong) > len(forced) / 2


def is_wrong(after: Program, given: Case) -> bool:
    """Whether the results differ, or depend on the order of iterations."""
    try:
        same_results(after, given)
    except (AssertionError, QdError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20_000, 2_500))
def test_very_many(first: int) -> None:
    for seed in range(first, first + 2_500):
        one = drawn(seed)
        if is_definite(one):
            check(one)
            if seed % 10 == 0:
                check(one, Options(fast_math=False))


@pytest.mark.slow
def test_very_many_tasks() -> None:
    for seed in range(2_000):
        check(random_case(seed))
