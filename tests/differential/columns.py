"""Random programs over grids of columns: temporaries of two and three axes of which an iteration uses its own column.

The axis of the column stands anywhere; buffers are filled by tasks of their own (before, twice, after), have an initial
value, or are stored by the iteration first. Now and then something keeps a buffer in memory: another task, another
iteration's column (read only), a result, an atomic.
"""


from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from qdtrace.ir.builder import Builder, ref_var, scalar_var, unravel
from qdtrace.ir.program import Atom, Literal, Program, Task, Var, literal
from qdtrace.ir.types import DType
from tests.differential.corpus import Case, case
from tests.lowering.harness import branch, loop

I32 = DType.i32


def column_programs() -> st.SearchStrategy[Case]:
    """Programs with arguments."""
    return _drawn()


@st.composite
def _drawn(draw: Callable) -> Case:
    program = _Maker(draw).program()
    return case(program, "plain", draw(st.integers(0, 3)))


def _i32(value: int) -> Literal:
    return literal(value, I32)


class _Maker:
    def __init__(self, draw: Callable) -> None:
        self.draw = draw
        self.dtype = self.pick([DType.f32, DType.i32, DType.f64, DType.bool])
        grid = [self.pick([1, 2, 3, 17]) for _ in range(self.pick([1, 2, 2]))]
        self.grid, self.length = grid, self.pick([1, 2, 5])
        axis = self.below(len(grid) + 1)
        self.axis = axis
        self.shape = (*grid[:axis], self.length, *grid[axis:])

    def below(self, n: int) -> int:
        return self.draw(st.integers(0, n - 1)) if n > 1 else 0

    def pick(self, choices: Sequence):
        return choices[self.below(len(choices))]

    def value(self) -> Literal:
        return literal(self.pick([0, 1, 2, 3]) % (2 if self.dtype is DType.bool else 4), self.dtype)

    def program(self) -> Program:
        x = ref_var(self.dtype, self.shape, "x")
        out = ref_var(self.dtype, self.shape, "y")
        temporaries = [ref_var(self.dtype, self.shape, f"t{k}") for k in range(1 + self.below(3))]
        initial = {t: self.value() for t in temporaries if self.below(3) == 2}
        filled = [t for t in temporaries if t not in initial or self.below(4) == 3]
        fills = [self.fill([t]) for t in filled] if self.below(2) else ([self.fill(filled)] if filled else [])
        if self.below(4) == 3:
            fills.append(self.fill([self.pick(temporaries)]))
        tasks = [*fills, *(self.task(x, out, temporaries) for _ in range(self.pick([1, 1, 1, 2])))]
        if self.below(5) == 4:
            tasks.append(self.fill([self.pick(temporaries)]))
        results = [out, *(t for t in temporaries if self.below(8) == 7)]
        return Program("p", (x, out), tuple(temporaries), tuple(tasks), tuple(results), initial)

    def fill(self, refs: Sequence[Var]) -> Task:
        index, b = scalar_var(I32), Builder()
        value = self.value()
        size = 1
        for n in self.shape:
            size *= n
        with b.block() as body:
            place = unravel(b, index, self.shape)
            for ref in refs:
                b.store(ref, value, *place)
        return Task("range_for", index, _i32(0), _i32(size), body.close())

    def task(self, x: Var, out: Var, temporaries: Sequence[Var]) -> Task:
        index, b = scalar_var(I32), Builder()
        size = 1
        for n in self.grid:
            size *= n
        with b.block() as body:
            own = unravel(b, index, self.grid)
            self.x, self.out, self.temporaries, self.own, self.b = x, out, temporaries, own, b
            for _ in range(1 + self.below(4)):
                self.statement(_i32(self.below(self.length)), 0)
            last = self.pick(temporaries)
            loop(b, _i32(0), _i32(self.length), _i32(1), (), lambda k: b.store(out, self.load(last, k), *self.at(k)))
        return Task("range_for", index, _i32(0), _i32(size), body.close())

    def at(self, k: Atom) -> list[Atom]:
        return [*self.own[: self.axis], k, *self.own[self.axis :]]

    def load(self, ref: Var, k: Atom) -> Var:
        return self.b.load(ref, *self.at(k))

    def statement(self, k: Atom, depth: int, before: Atom | None = None) -> None:
        """`before` is the place of the iteration before, where that is surely one of the column."""
        b, how = self.b, self.below(7)
        target, source = self.pick(self.temporaries), self.pick([self.x, *self.temporaries])
        if how == 0:
            b.store(target, self.load(source, k), *self.at(k))
        elif how == 1:
            b.store(target, self.value(), *self.at(k))
        elif how == 2:
            b.accum(target, self.load(source, k), *self.at(k), op=self.pick(["max", "min"]))
        elif how == 3:
            self.recurrence(target, k, before or b("max", b("sub", k, _i32(1)), _i32(0)))
        elif how == 4 and depth < 2:
            condition = b("eq" if self.below(2) else "lt", self.load(source, k), self.load(target, k))
            branch(b, condition, lambda: self.statement(k, depth + 1, before))
        elif how == 6 and self.below(6) == 5:
            b("atomic", target, self.load(source, k), *self.at(k), op="exchange")
        elif depth < 2:
            step, most = self.pick([1, -1]), self.length - 1
            late = self.below(min(2, self.length))
            ends = (late, self.length, 1) if step > 0 else (most - late, -1, -1)

            def body(j: Var) -> None:
                place = b("sub", j, _i32(step)) if late else None
                if place is not None and self.below(2):
                    self.recurrence(self.pick(self.temporaries), j, place)
                    return
                for _ in range(1 + self.below(2)):
                    self.statement(j, depth + 1, place)

            loop(b, *map(_i32, ends), (), body)

    def recurrence(self, target: Var, k: Atom, before: Atom) -> None:
        """Stores what follows from another place."""
        larger = "or" if self.dtype is DType.bool else "max"
        value = self.b(larger, self.load(target, before), self.load(self.x, k))
        self.b.store(target, value, *self.at(k))
