"""Random programs of floats that can be differentiated: smooth operations, branches, loops of every kind, private
arrays with indices computed at run time, elements updated in place, sums into few places.

Every value is kept near 1 by `tanh` and `sin`, so that derivatives neither vanish nor explode.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Atom, Block, Program, Task, Var, literal
from qdtrace.ir.types import DType

F, INT = DType.f64, DType.i32
N, ROW = 3, 4
KINDS = (
    "smooth",
    "sharp",
    "if",
    "for",
    "for_down",
    "while",
    "cell",
    "array",
    "update",
    "row",
    "sum",
    "gather",
    "store",
)


class Maker:
    """One program of a seed."""

    def __init__(self, seed: int, kinds: tuple[str, ...] = KINDS) -> None:
        self.random = random.Random(seed)
        self.kinds = kinds
        self.b = Builder()
        self.scope: list[Atom] = []
        self.depth = 0
        self.index: Any = None

    def program(self) -> Program:
        """Two floats arrays, a scalar and an index list in; the arrays, a sum and a table of rows out."""
        self.x, self.y = ref_var(F, (N,), "x"), ref_var(F, (N,), "y")
        self.c, self.edges = ref_var(F, (), "c"), ref_var(INT, (N,), "edges")
        self.rows, self.out, self.total = (
            ref_var(F, (N, ROW), "rows"),
            ref_var(F, (N,), "out"),
            ref_var(F, (2,), "total"),
        )
        tasks = []
        for _ in range(1 + self.random.randrange(3)):
            tasks.append(self._task())
        params = (self.x, self.y, self.c, self.edges, self.rows)
        zero = {self.out: literal(0, F), self.total: literal(0, F)}
        results = (self.x, self.out, self.total, self.rows)
        return Program("random", params, (self.out, self.total), tuple(tasks), results, zero)

    def _task(self) -> Task:
        self.written: set[Var] = set()
        self.gathered: set[Var] = set()
        self.added = False
        self.index = scalar_var(INT, "i")
        with self.b.block() as head:
            factor = self.b("sin", self.b.load(self.c))
        with self.b.block() as body:
            self.scope = [factor, literal(0.5, F)]
            for ref in (self.x, self.y):
                if self.random.random() < 0.8:
                    self.scope.append(self.b.load(ref, self.index))
            for _ in range(2 + self.random.randrange(5)):
                self._statement()
            self._write(self.out)
        low = literal(self.random.randrange(2), INT)
        return Task("range_for", self.index, low, literal(N, INT), body.close(), tuple(head.eqns))

    # Values.

    def _float(self) -> Atom:
        recent = self.scope[-4:] if self.random.random() < 0.7 else self.scope
        return self.random.choice(recent)

    def _small(self, atom: Atom) -> Atom:
        return self.b("tanh", atom)

    def _index(self, size: int) -> Atom:
        """An index computed from a float: no derivative goes through it."""
        scaled = self.b("mul", self.b("abs", self._small(self._float())), literal(size, F))
        whole = self.b("convert", scaled, dtype=INT)
        return self.b("min", whole, literal(size - 1, INT))

    def _condition(self) -> Atom:
        return self.b(self.random.choice(["lt", "gt"]), self._float(), self._float())

    # Statements.

    def _statement(self) -> None:
        kind = self.random.choice(self.kinds)
        if self.depth >= 2 and kind in ("for", "for_down", "while", "if"):
            kind = "smooth"
        getattr(self, f"_{kind}")()

    def _smooth(self) -> None:
        name = self.random.choice(
            ["add", "sub", "mul", "sin", "cos", "exp", "tanh", "div", "fma", "sqrt", "integer_pow"]
        )
        if name == "div":
            below = self.b("add", literal(2, F), self._small(self._float()))
            made = self.b("div", self._float(), below)
        elif name == "sqrt":
            made = self.b("sqrt", self.b("add", literal(2, F), self._small(self._float())))
        elif name == "exp":
            made = self.b("exp", self._small(self._float()))
        elif name == "integer_pow":
            made = self.b("integer_pow", self._small(self._float()), y=3)
        else:
            arity = {"sin": 1, "cos": 1, "tanh": 1, "fma": 3}.get(name, 2)
            made = self.b(name, *[self._float() for _ in range(arity)])
        self.scope.append(self._small(made) if self.random.random() < 0.4 else made)

    def _sharp(self) -> None:
        name = self.random.choice(["min", "max", "abs", "select", "floor"])
        if name == "select":
            made = self.b("select", self._condition(), self._float(), self._float())
        else:
            made = self.b(name, *[self._float() for _ in range(1 if name in ("abs", "floor") else 2)])
        self.scope.append(made)

    def _inside(self, params: tuple[Var, ...], count: int, more: Callable[[], None] = lambda: None) -> Block:
        kept = list(self.scope)
        self.depth += 1
        with self.b.block(params) as opened:
            self.scope = [*kept, *(p for p in params if p.dtype.is_float)]
            for _ in range(1 + self.random.randrange(3)):
                self._statement()
            more()
            results = [self._small(self._float()) for _ in range(count)]
            block = opened.close(results)
        self.depth -= 1
        self.scope = kept
        return block

    def _if(self) -> None:
        condition = self._condition()
        count = self.random.randrange(3)
        blocks = (self._inside((), count), self._inside((), count))
        self.scope += self.b.emit("if", condition, blocks=blocks)

    def _for(self, step: int = 1) -> None:
        count = 1 + self.random.randrange(2)
        start, stop = literal(0, INT), self._index(4) if self.random.random() < 0.5 else literal(3, INT)
        if step < 0:
            start, stop = literal(3, INT), self.b("sub", literal(2, INT), self._index(3))
        carries = tuple(scalar_var(F, "s") for _ in range(count))
        k = scalar_var(INT, "k")
        initial = [self._float() for _ in range(count)]

        def read_index() -> None:
            self.scope.append(self.b("mul", self.b.convert(k, F), self._float()))

        body = self._inside((k, *carries), count, read_index)
        self.scope += self.b.emit("for", start, stop, literal(step, INT), *initial, blocks=(body,))

    def _for_down(self) -> None:
        self._for(-1)

    def _while(self) -> None:
        """Ends by a number that depends on data, at most after four iterations."""
        n, s = scalar_var(INT, "n"), scalar_var(F, "s")
        limit = self._float()
        with self.b.block((n, s)) as opened:
            go = self.b("and", self.b("lt", n, literal(4, INT)), self.b("gt", self.b("sin", s), self._small(limit)))
            test = opened.close((go,))
        n2, s2 = scalar_var(INT, "n"), scalar_var(F, "s")
        body = self._inside((n2, s2), 1)
        with self.b.block() as more:
            following = self.b("add", n2, literal(1, INT))
        body = Block((n2, s2), (*body.eqns, *more.eqns), (following, body.results[0]))
        _, out = self.b.emit("while", literal(0, INT), self._float(), blocks=(test, body))
        self.scope.append(out)

    def _cell(self) -> None:
        cell = self.b.cell(F)
        self.b.store(cell, self._float())
        if self.random.random() < 0.5:
            self.b.emit("if", self._condition(), blocks=(self._storing(cell), Block()))
        self.scope.append(self.b.load(cell))

    def _storing(self, ref: Var, *at: Atom) -> Block:
        with self.b.block() as opened:
            self.b.store(ref, self._float(), *at)
        return opened.close()

    def _array(self) -> None:
        """A private array, filled, changed in a loop at indices that depend on data, and read."""
        ref = self.b.cell(F, (3,))
        for k in range(3):
            self.b.store(ref, self._float(), literal(k, INT))
        k, s = scalar_var(INT, "k"), scalar_var(F, "s")
        kept = list(self.scope)
        with self.b.block((k, s)) as opened:
            self.scope = [*kept, s]
            at = self._index(3)
            value = self.b.load(ref, at)
            self.scope.append(self.b("mul", value, self._small(self._float())))
            self.b.store(ref, self._small(self._float()), self._index(3))
            if self.random.random() < 0.4:
                self.b.accum(ref, self._float(), k)
            body = opened.close((self.b("sin", self._float()),))
        self.scope = kept
        (out,) = self.b.emit("for", literal(0, INT), literal(3, INT), literal(1, INT), self._float(), blocks=(body,))
        self.scope += [out, self.b.load(ref, self._index(3))]

    # Memory: the element of the iteration, or sums.

    def _free(self, ref: Var) -> bool:
        return ref not in self.gathered

    def _write(self, ref: Var) -> None:
        if self._free(ref):
            self.written.add(ref)
            self.b.store(ref, self._float(), self.index)

    def _store(self) -> None:
        self._write(self.random.choice([self.x, self.out]))

    def _update(self) -> None:
        """An element in place: loaded, changed, stored."""
        ref = self.random.choice([self.x, self.out])
        if self._free(ref):
            self.written.add(ref)
            value = self.b.load(ref, self.index)
            self.b.store(ref, self.b("mul", self.b("sin", value), self._float()), self.index)
            self.scope.append(value)

    def _row(self) -> None:
        """A row of its own: an element computed from another one, at places computed at run time."""
        source, target = self._index(ROW), self._index(ROW)
        value = self.b.load(self.rows, self.index, source)
        self.b.store(self.rows, self._small(self.b("mul", value, self._float())), self.index, target)
        if self.random.random() < 0.5:
            self.b.accum(self.rows, self._float(), self.index, source)
        self.scope.append(self.b.load(self.rows, self.index, target))

    def _sum(self) -> None:
        self.b.accum(self.total, self._float(), literal(self.random.randrange(2), INT))

    def _gather(self) -> None:
        """An element of another iteration."""
        ref = self.random.choice([self.x, self.y])
        if ref not in self.written:
            self.gathered.add(ref)
            self.scope.append(self.b.load(ref, self.b.load(self.edges, self.index)))


def random_program(seed: int, kinds: tuple[str, ...] = KINDS) -> Program:
    """The program of a number."""
    return Maker(seed, kinds).program()


def arguments(seed: int) -> list[np.ndarray]:
    """Contents of its parameters."""
    rng = np.random.default_rng(seed)
    floats = [rng.normal(size=s) for s in ((N,), (N,), ())]
    return [*floats, rng.integers(0, N, N).astype(np.int32), rng.normal(size=(N, ROW))]
