"""The bodies of random tasks: accesses that do not meet those of other iterations, values, control flow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.program import Atom, Var, literal, ref_type
from qdtrace.ir.types import DType
from tests.differential.places import Place

F32, I32 = DType.f32, DType.i32


class Touch(NamedTuple):
    """One access of the task being made: what each iteration touches."""

    kind: tuple[str, str]
    elements: list[frozenset[int]]


def meet(a: Touch, b: Touch) -> bool:
    """Whether the two are a race of different iterations."""
    kinds = {a.kind[0], b.kind[0]}
    if kinds == {"load"} or (kinds == {"accum"} and a.kind == b.kind):
        return False
    owners: dict[int, set[int]] = {}
    for i, elements in enumerate(a.elements):
        for e in elements:
            owners.setdefault(e, set()).add(i)
    return any(owners.get(e, set()) - {i} for i, elements in enumerate(b.elements) for e in elements)


@dataclass
class Bodies:
    """Draws statements into the open block of a builder."""

    draw: Callable[[int], int]
    """A number from 0 to below the argument."""
    builder: Builder = field(default_factory=Builder)
    scope: dict[DType, list[Atom]] = field(default_factory=dict)
    touched: dict[Var, list[Touch]] = field(default_factory=dict)
    index: Var | None = None
    iterations: range = range(1)
    checked: bool = True
    """Accesses that meet those of other iterations are not drawn."""
    held: list[Atom] = field(default_factory=list)
    """Integers of the head."""

    # What the program has.

    n: int = 0
    """Iterations of the usual range."""
    dtypes: Sequence[DType] = ()
    params: Sequence[Var] = ()
    refs: Sequence[Var] = ()
    edges: Var = field(init=False)
    """A list of indices."""
    scalar: Var = field(init=False)
    favoured: Sequence[Place] = ()
    others: Sequence[Place] = ()

    # Choices.

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return self.draw(n) if n > 1 else 0

    def chance(self, n: int) -> bool:
        """True once in n."""
        return self.below(n) == n - 1

    def pick(self, choices: Sequence):
        """One of the choices; earlier ones are simpler."""
        return choices[self.below(len(choices))]

    # Statements.

    def _statements(self) -> None:
        for _ in range(self.below(3)):
            self._load()
        for _ in range(self.below(3)):
            self._arithmetic()
        for _ in range(1 + self.below(3)):
            self.pick(
                [self._write, self._write, self._write, self._update, self._update, self._conditional, self._rows,
                 self._reduce, self._while, self._load, self._write_edges, self._again]
            )()  # fmt: skip

    def _literal(self, dtype: DType) -> Atom:
        return literal(self.pick([0, 1, 2, -3, 5]), dtype)

    def _keep_value(self, atom: Atom) -> None:
        self.scope[atom.dtype].append(atom)

    def _value(self, dtype: DType) -> Atom:
        have = self.scope[dtype]
        choice = self.below(len(have) + 1)
        if choice < len(have):
            return have[-1 - choice]
        other = self.scope[I32 if dtype is F32 else F32]
        if other and self.chance(2):
            value = self.pick(other[::-1])
            # A large integer is not exact as a float.
            value = self._clamped(value) if dtype is F32 else value
            return self.builder.convert(value, dtype)
        return self._literal(dtype)

    def _clamped(self, value: Atom) -> Atom:
        low = self.builder("max", value, literal(-8, value.dtype))
        return self.builder("min", low, literal(8, value.dtype))

    def _whole(self, value: Atom) -> Atom:
        """What can be added to memory in any order."""
        if value.dtype is not F32:
            return value
        return self.builder("add", self.builder("round_even", self._clamped(value)), literal(0, F32))

    def _arithmetic(self) -> None:
        dtype = self.pick(self.dtypes)
        name = self.pick(["add", "sub", "mul", "min", "max"])
        value = self.builder(name, self._value(dtype), self._value(dtype))
        if dtype is F32:
            value = self.builder("add", self._clamped(value), literal(0, F32))
        self._keep_value(value)

    def _place(self, ref: Var, kind: str, op: str = "") -> list[Atom] | None:
        """Indices in range that no other iteration of the task meets; None when none was found."""
        shape = ref_type(ref).shape
        if 0 in shape:
            return None
        if not shape:
            return [] if self._touch(ref, kind, lambda i: (0,), op) else None
        if self.index is None:
            where = [self.below(min(s, 3)) for s in shape]
            return [literal(w, I32) for w in where]
        if len(shape) == 1 and self.chance(8):
            return self._loaded(ref, shape[0], kind, op)
        if len(shape) == 1 and self.held and self.chance(3):
            return self._held(ref, shape[0], kind, op)
        for _ in range(3):
            chosen = [self._form(s) for s in shape] if len(shape) == 1 or self.chance(3) else self._pair(shape)
            if chosen is None or any(c is None for c in chosen):
                continue
            forms: list[Place] = chosen  # type: ignore[assignment]
            if self._touch(ref, kind, lambda i, forms=forms: (_flat([f.at(i) for f in forms], shape),), op):
                return [f.write(self.builder, self.index) for f in forms]
        return None

    def _form(self, size: int) -> Place | None:
        for _ in range(3):
            form = self.pick(self.favoured) if not self.chance(4) else self.pick(self.others)
            if form.fits(self.iterations, size):
                return form
        return None

    def _pair(self, shape: tuple[int, ...]) -> list[Place] | None:
        """Two indices that belong together: a flat index split, an element of the row, a row."""
        rows, columns = shape

        def by(name: str, c: int, at: Callable[[int], int]) -> Place:
            return Place(f"{name} {c}", lambda b, i: b(name, i, literal(c, i.dtype)), at)

        def fixed(k: int) -> Place:
            return Place(str(k), lambda b, i: literal(k, i.dtype), lambda i: k)

        i = self.others[0]
        quotient, remainder = by("div", columns, lambda i: i // columns), by("rem", columns, lambda i: i % columns)
        row, rest = by("rem", rows, lambda i: i % rows), by("div", rows, lambda i: i // rows)
        after = Place(
            "next", lambda b, i: b("add", quotient.write(b, i), literal(1, i.dtype)), lambda i: i // columns + 1
        )
        first, second = fixed(0), fixed(min(1, columns - 1))
        pairs = [
            (i, first), (i, second), (quotient, remainder), (i, remainder), (row, rest), (after, remainder),
            (quotient, first),
        ]  # fmt: skip
        pair = self.pick(pairs)
        return list(pair) if all(p.fits(self.iterations, s) for p, s in zip(pair, shape, strict=True)) else None

    def _loaded(self, ref: Var, size: int, kind: str, op: str) -> list[Atom] | None:
        """An index of the edge list, which any iteration may have."""
        assert self.index is not None
        if ref is self.edges or not self._touch(self.edges, "load", lambda i: (i,)):
            return None
        if not self._touch(ref, kind, lambda i: range(size), op):
            return None
        remainder = self.builder("rem", self.builder.load(self.edges, self.index), literal(size, I32))
        return [self.builder("abs", remainder)]

    def _held(self, ref: Var, size: int, kind: str, op: str) -> list[Atom] | None:
        """The index plus a value of the head (0 or 1)."""
        assert self.index is not None
        if not self.others[1].fits(self.iterations, size) or not self._touch(ref, kind, lambda i: (i, i + 1), op):
            return None
        return [self.builder("add", self.index, self.builder.convert(self.pick(self.held), self.index.dtype))]

    def _touch(self, ref: Var, kind: str, at: Callable[[int], Sequence[int]], op: str = "") -> bool:
        """Notes an access unless it may race with one before."""
        made = Touch((kind, op), [frozenset(at(i)) for i in self.iterations])
        before = self.touched.setdefault(ref, [])
        if self.checked and self.index is not None and any(meet(made, other) for other in (*before, made)):
            return False
        before.append(made)
        return True

    def _load(self) -> None:
        ref = self.pick(self.refs)
        place = self._place(ref, "load")
        if place is not None:
            self._keep_value(self.builder.load(ref, *place))

    def _write(self) -> None:
        ref = self.pick(self.refs)
        value = self._value(ref.dtype)
        place = self._place(ref, "store")
        if place is not None:
            self.builder.store(ref, value, *place)

    def _write_edges(self) -> None:
        """Memory that indices are loaded from."""
        value = self._value(I32)
        place = self._place(self.edges, "store")
        if place is not None:
            self.builder.store(self.edges, value, *place)

    def _update(self) -> None:
        """An accumulation, or an atomic at a place of its own."""
        ref = self.pick(self.refs)
        number = ref.dtype is not F32
        op = self.pick(["add", "add", "min", "max", "mul"] if number else ["add", "add", "min", "max"])
        value = self._whole(self._value(ref.dtype))
        if number and self.chance(4):
            place = self._place(ref, "atomic", op)
            if place is not None:
                op = self.pick([op, "xor", "exchange", "cas"])
                values = [self._literal(I32), value] if op == "cas" else [value]
                self._keep_value(self.builder("atomic", ref, *values, *place, op=op))
            return
        place = self._place(ref, "accum", op)
        if place is not None:
            self.builder.accum(ref, value, *place, op=op)

    # Control flow.

    def _inside(self, statements: Sequence[Callable[[], None]]) -> None:
        """Some statements whose values stay inside."""
        outer = self.scope
        self.scope = {d: list(v) for d, v in outer.items()}
        for _ in range(1 + self.below(2)):
            self.pick(statements)()
        self.scope = outer

    def _loop(self, count: int | Atom, body: Callable[[Var], None]) -> None:
        j = scalar_var(I32, "j")
        stop = literal(count, I32) if isinstance(count, int) else count
        with self.builder.block([j]) as inner:
            body(j)
        self.builder.emit("for", literal(0, I32), stop, literal(1, I32), blocks=[inner.close()])

    def _conditional(self) -> None:
        if self.index is not None and self.chance(2):
            half = self.builder("rem", self.index, literal(2, self.index.dtype))
            condition = self.builder("eq", half, literal(0, self.index.dtype))
        else:
            dtype = self.pick(self.dtypes)
            condition = self.builder("gt", self._value(dtype), self._literal(dtype))
        blocks = []
        for side in range(2):
            with self.builder.block() as opened:
                if side == 0 or self.chance(3):
                    self._inside([self._write, self._update, self._load])
                blocks.append(opened.close())
        self.builder.emit("if", condition, blocks=blocks)

    def _rows(self) -> None:
        """An inner loop over the row of this iteration: of a matrix, or of a flat array."""
        found = [r for r in self.refs if len(ref_type(r).shape) == 2 or (ref_type(r).size >= 2 * self.n)]
        if not found or self.index is None:
            return
        ref = self.pick(found)
        shape = ref_type(ref).shape
        width = shape[-1] if len(shape) == 2 else 2
        if any(not 0 <= i < ref_type(ref).size // width for i in self.iterations):
            return
        kind = self.pick(["store", "load", "accum"])
        if not self._touch(ref, kind, lambda i: range(i * width, (i + 1) * width), "add" if kind == "accum" else ""):
            return
        value = self._whole(self._value(ref.dtype))
        row = self.builder.convert(self.index, I32)

        def body(j: Var) -> None:
            flat = [self.builder("add", self.builder("mul", row, literal(width, I32)), j)]
            place = [row, j] if len(shape) == 2 else flat
            if kind == "load":
                old = self.builder.load(ref, *place)
                if self.scalar.dtype is ref.dtype and self._touch(self.scalar, "accum", lambda i: (0,), "add"):
                    self.builder.accum(self.scalar, self._whole(old))
            elif kind == "store":
                self.builder.store(ref, value, *place)
            else:
                self.builder.accum(ref, value, *place)

        self._loop(width, body)

    def _again(self) -> None:
        """Goes over its row twice in one loop: stores the first time, reads the second time."""
        found = [r for r in self.refs if len(ref_type(r).shape) == 2]
        local = [r for r in found if r not in self.params]
        if not found or self.index is None:
            return
        ref = self.pick(local or found)
        rows, width = ref_type(ref).shape
        if not self.others[0].fits(self.iterations, rows):
            return
        if not self._touch(ref, "store", lambda i: range(i * width, (i + 1) * width)):
            return
        total = self.builder.cell(ref.dtype)
        self.builder.store(total, literal(0, ref.dtype))

        def body(m: Var) -> None:
            j = self.builder("rem", m, literal(width, I32))
            first = self.builder("lt", m, literal(width, I32))
            with self.builder.block() as stores:
                self.builder.store(ref, self.builder.convert(m, ref.dtype), self.index, j)  # type: ignore[arg-type]
            with self.builder.block() as loads:
                old = self._whole(self.builder.load(ref, self.index, j))  # type: ignore[arg-type]
                self.builder.accum(total, old)
            self.builder.emit("if", first, blocks=[stores.close(), loads.close()])

        self._loop(2 * width, body)
        value = self._whole(self.builder.load(total))
        self._keep_value(value)
        if self.scalar.dtype is ref.dtype and self._touch(self.scalar, "accum", lambda i: (0,), "add"):
            self.builder.accum(self.scalar, value)

    def _reduce(self) -> None:
        """A loop over all of a buffer, in each iteration."""
        ref = self.pick(self.refs)
        shape = ref_type(ref).shape
        size = shape[0] if shape else 1
        if not self._touch(ref, "load", lambda i: range(ref_type(ref).size)):
            return
        j, total = scalar_var(I32, "j"), scalar_var(ref.dtype, "t")
        with self.builder.block([j, total]) as inner:
            indices = [j, *(literal(0, I32) for _ in shape[1:])][: len(shape)]
            value = self._whole(self.builder.load(ref, *indices))
            block = inner.close([self.builder("add", total, value)])
        bounds = [literal(v, I32) for v in (0, size, 1)]
        (total,) = self.builder.emit("for", *bounds, self._literal(ref.dtype), blocks=[block])
        self._keep_value(self._whole(total))

    def _while(self) -> None:
        """A loop that each iteration leaves at its own time."""
        left = self.builder("and", self._value(I32), literal(3, I32))
        tested, again = scalar_var(I32, "left"), scalar_var(I32, "left")
        with self.builder.block([tested]) as opened:
            test = opened.close([self.builder("gt", tested, literal(0, I32))])
        with self.builder.block([again]) as opened:
            self._inside([self._arithmetic, self._update, self._write, self._load])
            body = opened.close([self.builder("sub", again, literal(1, I32))])
        self._keep_value(*self.builder.emit("while", left, blocks=[test, body]))


def _flat(index: Sequence[int], shape: Sequence[int]) -> int:
    flat = 0
    for i, n in zip(index, shape, strict=True):
        flat = flat * n + i
    return flat
