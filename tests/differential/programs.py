"""Random programs, typed and free of undefined behaviour by construction, as a hypothesis strategy.

    @given(programs(tasks=2, control=False))
    def test_something(case):
        program, args, *_ = case

What makes a program's result one and the same in any order of iterations, and after any right transformation:

- In each range_for every buffer has one mode: `read` (anywhere), `own` (loads, stores, accumulations and atomics in
  the row of this iteration only), `accum` (one operation, anywhere, never read), `atomic` (one commuting operation,
  anywhere, old value unused) or `none`. Serial tasks may do all.
- Indices are brought into range by remainder or clamping; buffers have an initial value or are filled by the first
  tasks, cells when made.
- A float `min` or `max`, whose zero may have either sign, is followed by `add 0.0`, and memory that takes part in one
  never holds -0.0. A float is cast to bits only after NaN is replaced, as the bits of a NaN are not defined.
- Floats are added up in memory in any order: buffers called `sum...` start at zero and get multiples of 1/8 between
  -8 and 8 only (`SUMMANDS`), whose sums are exact. Products of floats in memory are left out.
- Functions that are not exact are left out, unless `functions=True`: then their results go to buffers called `fn...`,
  which are never read. Compare with `Tolerance(ulps=...)`, as exact as the functions are meant to be.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import strategies as st

from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Atom, Block, Literal, Program, Task, Var, literal, ref_type
from qdtrace.ir.types import DType, ScalarType
from tests.differential.corpus import Case, case
from tests.differential.inputs import KINDS, SIZES
from tests.differential.values import Values

DTYPES = tuple(map(DType, ("f32", "i32", "f64", "i64", "u32", "i8", "bool")))
RARE = tuple(map(DType, ("f16", "bf16", "u8", "i16", "u16", "u64")))
"""One dtype in four is one of these, unless those of the programs are given."""
SUMMANDS = {DType.f16: (1, 8), DType.bf16: (1, 1)}
"""Of what floats of few digits are added up: the largest summand, and how many steps a one has."""
FUNCTIONS = (
    "exp", "log", "sin", "cos", "tanh", "exp2", "log2", "atan", "rsqrt", "expm1", "log1p", "erf", "logistic", "cbrt",
    "tan", "sinh", "cosh", "asin", "acos", "asinh", "acosh", "atanh", "erfc", "erf_inv", "lgamma", "digamma", "pow",
    "atan2",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What programs are made of."""

    dtypes: Sequence[DType] = DTYPES
    sizes: Sequence[int] = SIZES
    tasks: int = 3
    statements: int = 7
    """The most of one block."""
    depth: int = 3
    """Of nested control flow."""
    control: bool = True
    cells: bool = True
    atomics: bool = True
    accums: bool = True
    serial: bool = True
    heads: bool = True
    float_accums: bool = True
    """Buffers that floats are added to."""
    functions: bool = False
    inputs: Sequence[str] = KINDS


def accumulations(dtype: DType) -> Sequence[str]:
    """Those that give one result in any order."""
    return ("min", "max") if dtype.is_float or dtype is DType.bool else ("add", "min", "max", "mul")


def commuting_atomics(dtype: DType) -> Sequence[str]:
    """Atomics that give one content in any order; not for floats."""
    bitwise = ("and", "or", "xor")
    return bitwise if dtype is DType.bool else ("add", "min", "max", *bitwise, "mul")


def programs(**options: object) -> st.SearchStrategy[Case]:
    """Programs with arguments; see `Options`."""
    return _programs(Options(**options))  # type: ignore[arg-type]


@st.composite
def _programs(draw: Callable, options: Options) -> Case:
    program = Maker(draw, options).program()
    return case(program, draw(st.sampled_from(list(options.inputs))), draw(st.integers(0, 3)))


@dataclass
class _Access:
    """How a task may use a buffer."""

    mode: str
    op: str = ""
    row: Atom | None = None
    """Of mode `own`: the first index."""


@dataclass
class Maker(Values):
    """Draws one program. `Values` makes scalars; this class makes memory, control flow and tasks."""

    draw: Callable
    options: Options
    builder: Builder = field(default_factory=Builder)
    scope: dict[DType, list[Atom]] = field(default_factory=dict)
    cells: list[Var] = field(default_factory=list)
    access: dict[Var, _Access] = field(default_factory=dict)
    index: Var | None = None
    weight: int = 0
    """Equations that may still be made in this task."""

    # Programs and tasks.

    def program(self) -> Program:
        self.size = self.pick(self.options.sizes)
        # Few dtypes in one program, so that values meet.
        common, rare = self.options.dtypes, RARE if self.options.dtypes is DTYPES else ()
        picked = {self.pick(rare if rare and self.chance(4) else common) for _ in range(3)}
        self.dtypes = sorted(picked, key=[*common, *rare].index)
        params = [self._buffer(f"x{k}") for k in range(1 + self.below(3))]
        self.bound = ref_var(DType.i32, (), "n")
        buffers = [self._buffer(f"t{k}") for k in range(self.below(3))]
        floats = [d for d in self.dtypes if d in (DType.f32, DType.f64)]
        self.sums = []
        added = [d for d in self.dtypes if d.is_float]
        if self.options.float_accums and added and self.chance(2):
            self.sums = [ref_var(self.pick(added), self.pick([(), (self.size,), (3,)]), "sum")]
        self.fns = [ref_var(d, (self.size,), f"fn{k}") for k, d in enumerate(floats)] if self.options.functions else []
        self.refs = [*params, self.bound, *buffers]
        self.combined = {r for r in self.refs if r not in params or not r.dtype.is_float}
        extra = [*self.sums, *self.fns]
        initial = {b: self._first_value(b) for b in (*buffers, *extra) if self.chance(3)}
        tasks = [self._fill(b) for b in (*buffers, *extra) if b not in initial or self.chance(4)]
        tasks += [self._task() for _ in range(1 + self.below(self.options.tasks))]
        results = [r for r in self.refs if not self.chance(4)]
        return Program(
            "p", (*params, self.bound), (*buffers, *extra), tuple(tasks), (*(results or self.refs[:1]), *extra), initial
        )

    def _buffer(self, hint: str) -> Var:
        n = self.size
        shape = self.pick([(n,), (n,), (n, 3), (), (5,), (2, 4), (n, 1)])
        return ref_var(self.pick(self.dtypes), shape, hint)

    def _first_value(self, ref: Var) -> Literal:
        """What the elements of a buffer may be at first."""
        extra = ref in self.sums or ref in self.fns
        value = literal(0, ref.dtype) if extra else self.literal_of(ref.dtype)
        return literal(0, ref.dtype) if value.value != value.value or not value.value else value

    def _fill(self, ref: Var) -> Task:
        """Stores one value in each element."""
        kind, value = ref_type(ref), self._first_value(ref)
        if kind.ndim == 2 and self.chance(2):
            return self._flat_fill(ref, value)
        with self._body() as body:
            indices = []
            if kind.shape:
                indices.append(self.index)
            if kind.ndim == 2:
                column = scalar_var(DType.i32, "c")
                with self.builder.block([column]) as inner:
                    self.builder.store(ref, value, self.index, column)
                self.builder.emit("for", *self._bounds(0, kind.shape[1], 1), blocks=[inner.close()])
            else:
                self.builder.store(ref, value, *indices)
        if not kind.shape:
            return Task("serial", None, *self._bounds(0, 1), body.close(), name="fill")
        return Task("range_for", self.index, *self._bounds(0, kind.shape[0]), body.close(), name="fill")

    def _flat_fill(self, ref: Var, value: Literal) -> Task:
        """One loop over both axes."""
        rows, columns = ref_type(ref).shape
        with self._body() as body:
            assert self.index is not None
            width = literal(max(columns, 1), DType.i32)
            place = [self.builder(op, self.index, width) for op in ("div", "rem")]
            self.builder.store(ref, value, *place)
        return Task("range_for", self.index, *self._bounds(0, rows * columns), body.close(), name="fill")

    @staticmethod
    def _bounds(*numbers: int, dtype: DType = DType.i32) -> list[Atom]:
        return [literal(n, dtype) for n in numbers]

    @contextmanager
    def _body(self, index: DType | None = DType.i32) -> Iterator:
        self.scope = {d: [] for d in DType}
        self.cells = []
        self.index = scalar_var(index, "i") if index is not None else None
        self.weight = 40
        with self.builder.block() as body:
            yield body

    def _task(self) -> Task:
        if self.options.serial and self.chance(5):
            return self._serial()
        index = DType.i64 if DType.i64 in self.dtypes and self.chance(4) else DType.i32
        head: tuple = ()
        shared: list[Atom] = []
        start, stop = self._bounds(self.below(3) and min(self.below(3), self.size), self.size, dtype=index)
        with self._body(index):
            self.access = {r: self._mode(r) for r in self.refs}
            self.access |= {r: _Access(self.pick(["sum", "sum", "read", "none"])) for r in self.sums}
            if self.options.heads and self.chance(2):
                self.access[self.bound] = _Access("read")
                with self.builder.block() as opened:
                    m = self.builder.convert(self.builder.load(self.bound, hint="m"), index)
                    low = self.builder("max", m, literal(0, index))
                    stop = self.builder("min", low, literal(self.size, index), hint="stop")
                    shared = [m, stop]
                head = tuple(opened.eqns)
        with self._body(index) as body:
            assert self.index is not None
            for atom in (self.index, *shared):
                self.keep(atom)
            reverse = self.builder("sub", literal(self.size - 1, index), self.index, hint="reverse")
            for access in self.access.values():
                if access.mode == "own":
                    access.row = self.pick([self.index, self.index, reverse])
            self._some_load()
            self._some_load()
            self.statements(self.options.depth)
            self._finish()
        return Task("range_for", self.index, start, stop, body.close(), head)

    def _serial(self) -> Task:
        with self._body(None) as body:
            self.access = {r: _Access("free") for r in self.refs}
            self.access |= {r: _Access("sum") for r in self.sums}
            self._some_load()
            self._some_load()
            self.statements(self.options.depth)
            self._finish()
        return Task("serial", None, *self._bounds(0, 1), body.close())

    def _mode(self, ref: Var) -> _Access:
        shape, dtype = ref_type(ref).shape, ref.dtype
        modes = ["read"]
        if shape and shape[0] == self.size:
            modes += ["own"] * 3
        if self.options.accums and ref in self.combined:
            modes.append("accum")
        if self.options.atomics and not dtype.is_float:
            modes.append("atomic")
        mode = self.pick([*modes, "none"])
        ops = {"accum": accumulations(dtype), "atomic": commuting_atomics(dtype)}
        return _Access(mode, self.pick(ops[mode]) if mode in ops else "")

    def _finish(self) -> None:
        """Stores something, so that the values made matter."""
        for ref, access in self.access.items():
            if access.mode == "own" or (access.mode == "free" and self.chance(2)):
                self._store(ref)
            elif access.mode in ("accum", "atomic"):
                self._update(ref)

    # Statements.

    def statements(self, depth: int) -> None:
        """Some equations in the open block."""
        for _ in range(1 + self.below(self.options.statements)):
            if self.weight <= 0:
                return
            self.weight -= 1
            self._statement(depth)

    def _statement(self, depth: int) -> None:
        makers: list[Callable[[], None]] = [self.arithmetic] * 8 + [self.logic, self.conversion, self.choice]
        makers += [self._some_load] * 3 + [self._some_write] * 3
        if self.options.cells:
            makers += [self._make_cell, self._use_cell, self._use_cell]
        if self.options.control and depth > 0:
            makers += [lambda: self._for(depth), lambda: self._for(depth), lambda: self._while(depth)]
            makers += [lambda: self._if(depth), lambda: self._if(depth)]
        if self.sums:
            makers += [self._sum]
        if self.fns and self.index is not None:
            makers += [self._function] * 5
        self.pick(makers)()

    @contextmanager
    def _block(self, params: Sequence[Var] = ()) -> Iterator:
        outer, cells = self.scope, self.cells
        self.scope = {d: list(v) for d, v in outer.items()}
        self.cells = list(cells)
        for p in params:
            self.keep(p)
        with self.builder.block(params) as opened:
            yield opened
        self.scope, self.cells = outer, cells

    def _carries(self) -> tuple[list[Atom], list[Var]]:
        inits = [self.value(self.pick(self.dtypes)) for _ in range(self.below(3))]
        return inits, [Var(ScalarType(a.dtype), "c") for a in inits]

    def _emit(self, name: str, *invars: Atom, blocks: Sequence[Block], **params: object) -> None:
        for out in self.builder.emit(name, *invars, blocks=blocks, **params):
            self.keep(out)

    def _for(self, depth: int) -> None:
        dtype = self.pick([DType.i32, DType.i32, DType.i64])
        trips = self._bounds(*self.pick([(0, 3, 1), (0, 1, 1), (3, -1, -2), (2, 2, 1), (-4, 4, 3)]), dtype=dtype)
        if self.chance(2):
            trips[1] = self.index_below(4, dtype)
        elif self.chance(3):
            trips = self._trips_at_the_ends(dtype)
        inits, params = self._carries()
        unroll = {"unroll": 2} if self.chance(6) else {}
        with self._block([scalar_var(dtype, "k"), *params]) as opened:
            self.statements(depth - 1)
            block = opened.close([self.value(p.dtype) for p in params])
        self._emit("for", *trips, *inits, blocks=[block], **unroll)

    def _trips_at_the_ends(self, dtype: DType) -> list[Atom]:
        """Bounds near the ends of the dtype, where an index plus a step wraps; at most three iterations."""
        low, high = range_of_dtype(dtype)
        far = [(low, high, high), (high, low, low), (0, high, high // 2), (low, high, (high // 2) + 1), (low, -1, high)]
        near = [(high - 3, high, 2), (low + 3, low, -2), (high - 2, high, 1), (low + 2, low, -1), (high, low, 1)]
        trips = self._bounds(*self.pick(near + far), dtype=dtype)
        if self.chance(2):  # three numbers from each other, so any step will do
            ends = [literal(high - 3, dtype), literal(low, dtype)]
            start = self.builder("add", self.pick(ends), self.index_below(4, dtype))
            stop = self.builder("add", start, self.index_below(4, dtype)) if self.chance(2) else trips[1]
            toward = self.builder("sub", stop, start)
            small = [self.builder("ge", toward, literal(-3, dtype)), self.builder("le", toward, literal(3, dtype))]
            falls = [self.builder("lt", stop, start), self.builder("lt", toward, literal(0, dtype))]
            close = self.builder("and", self.builder("and", *small), self.builder("eq", *falls))  # no wrap between
            trips = [start, self.builder("select", close, stop, start), self.pick([*trips[2:], self.value(dtype)])]
        return trips

    def _while(self, depth: int) -> None:
        inits, params = self._carries()
        fuel = literal(self.below(4), DType.i32)
        left, again = scalar_var(DType.i32, "left"), scalar_var(DType.i32, "left")
        others = [Var(p.type, p.hint) for p in params]
        with self._block([left, *params]) as opened:
            enough = self.builder("gt", left, literal(0, DType.i32))
            test = opened.close([self.builder("and", enough, self.value(DType.bool))])
        with self._block([again, *others]) as opened:
            self.statements(depth - 1)
            less = self.builder("sub", again, literal(1, DType.i32))
            body = opened.close([less, *(self.value(p.dtype) for p in others)])
        self._emit("while", fuel, *inits, blocks=[test, body])

    def _if(self, depth: int) -> None:
        condition = self.value(DType.bool)
        dtypes = [self.pick(self.dtypes) for _ in range(self.below(3))]
        blocks = []
        for side in range(2):
            with self._block() as opened:
                if side == 0 or self.chance(2):
                    self.statements(depth - 1)
                blocks.append(opened.close([self.value(d) for d in dtypes]))
        self._emit("if", condition, blocks=blocks)

    # Memory.

    def _place(self, ref: Var, row: Atom | None = None) -> list[Atom] | None:
        """Indices in range, with that row; None when the buffer is empty."""
        shape = ref_type(ref).shape
        if 0 in shape:
            return None
        first = [] if row is None else [row]
        return first + [self.index_below(n) for n in shape[len(first) :]]

    def _some_load(self) -> None:
        refs = [(r, a) for r, a in self.access.items() if a.mode in ("read", "own", "free")]
        if refs and (place := self._place(*self._row(self.pick(refs)))) is not None:
            self.keep(self.builder.load(self.chosen, *place))

    def _row(self, pair: tuple[Var, _Access]) -> tuple[Var, Atom | None]:
        self.chosen = pair[0]
        return pair[0], pair[1].row

    def _some_write(self) -> None:
        refs = [r for r, a in self.access.items() if a.mode in ("own", "free", "accum", "atomic")]
        if refs:
            ref = self.pick(refs)
            self._store(ref) if self.access[ref].mode in ("own", "free") and self.chance(2) else self._update(ref)

    def _store(self, ref: Var) -> None:
        place = self._place(ref, self.access[ref].row)
        if place is not None:
            self.builder.store(ref, self.value(ref.dtype), *place)

    def _update(self, ref: Var) -> None:
        """An accumulation or atomic, as the mode allows."""
        access, dtype = self.access[ref], ref.dtype
        place = self._place(ref, access.row)
        if place is None:
            return
        alone = access.mode in ("own", "free")
        if access.mode == "atomic":
            self.builder("atomic", ref, self.value(dtype), *place, op=access.op)
        elif alone and self.options.atomics and not dtype.is_float and self.chance(2):
            op = self.pick([*commuting_atomics(dtype), "exchange", "cas"])
            values = [self.value(dtype) for _ in range(2 if op == "cas" else 1)]
            self.keep(self.builder("atomic", ref, *values, *place, op=op))
        elif self.options.accums and ref in self.combined:
            op = access.op or self.pick(accumulations(dtype))
            self.builder.accum(ref, self.value(ref.dtype), *place, op=op)

    def _sum(self) -> None:
        ref = self.pick([r for r in self.sums if self.access[r].mode == "sum"] or [None])
        if ref is None or (place := self._place(ref)) is None:
            return
        value, dtype = self.value(ref.dtype), ref.dtype
        most, steps = SUMMANDS.get(dtype, (8, 8))
        low = self.builder("max", value, literal(-most, dtype))
        bounded = self.builder("min", low, literal(most, dtype))
        whole = self.builder("round_even", self.builder("mul", bounded, literal(steps, dtype)))
        exact = self.builder("mul", whole, literal(1 / steps, dtype))
        number = self.builder("eq", value, value)
        summand = self.builder("select", number, exact, literal(0, dtype))
        self.builder.accum(ref, summand, *place)

    def _function(self) -> None:
        ref = self.pick(self.fns)
        name = self.pick(FUNCTIONS)
        operands = [self.value(ref.dtype) for _ in range(2 if name in ("pow", "atan2") else 1)]
        if name in ("lgamma", "digamma"):  # between the negative poles are zeros, where few digits can be right
            operands = [self.builder("abs", operands[0])]
        self.builder.store(ref, self.builder(name, *operands), self.index)

    def _make_cell(self) -> None:
        dtype, shape = self.pick(self.dtypes), self.pick([(), (), (3,), (2, 2)])
        cell = self.builder.cell(dtype, shape, hint="cell")
        for flat in range(ref_type(cell).size):
            place = [literal(flat // 2, DType.i32), literal(flat % 2, DType.i32)] if len(shape) == 2 else []
            place = [literal(flat, DType.i32)] if len(shape) == 1 else place
            self.builder.store(cell, self.value(dtype), *place)
        self.cells.append(cell)

    def _use_cell(self) -> None:
        if not self.cells:
            return self._make_cell()
        cell = self.pick(self.cells)
        place = self._place(cell)
        if self.chance(2):
            return self.keep(self.builder.load(cell, *place))
        if self.options.accums and self.chance(3):
            value = self.value(cell.dtype)
            return self.builder.accum(cell, value, *place, op=self.pick(accumulations(cell.dtype)))
        return self.builder.store(cell, self.value(cell.dtype), *place)
