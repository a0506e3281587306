"""Random programs for `two_modes`: free of races and of indices out of bounds by construction.

In one task every buffer has one role: read anywhere, written by its own thread only (`own`, at the loop's index), or
accumulated into with one operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.api.two_modes import Callee

SHAPES = ((1,), (3,), (16,), (17,), (30,), (300,), (4, 3), (3, 20))
OPS = ("add", "add", "add", "min", "max", "mul")
WAYS = ("at", "plus", "plus", "minus", "object", "atomic")
INDICES = {"int32": 300, "int8": 127, "uint8": 255, "int16": 300, "uint16": 300, "uint32": 300}
"""Integers that index, with the longest axis that a test may use them for."""
MOST_ROUNDS = 3
ARITHMETIC = ("+", "-", "*", "min", "max")
small = st.integers(-4, 5)


@dataclass
class Scope:
    """Names that may be used here."""

    buffers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    scalars: list[str] = field(default_factory=list)
    arrays: dict[str, tuple[int, ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    """The buffer that a second name stands for."""

    def child(self) -> Scope:
        return Scope(dict(self.buffers), list(self.scalars), dict(self.arrays), dict(self.aliases))

    def flat(self) -> list[str]:
        return [b for b, s in self.buffers.items() if len(s) == 1]

    def tables(self) -> list[str]:
        return [b for b, s in self.buffers.items() if len(s) == 2]


@dataclass
class Roles:
    """What one task may do."""

    reads: list[str]
    own: dict[str, int]
    """Written at the loop index; the number of its indices."""
    sums: dict[str, str]


class Generator:
    """Draws one program."""

    def __init__(self, draw: Any, depth: int, callees: tuple[Callee, ...], tasks_only: bool = False) -> None:
        self.draw = draw
        self.depth = depth
        self.callees = callees
        self.count = 0

    def one(self, items: Any) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def maybe(self, likely: int = 2) -> bool:
        return self.draw(st.integers(0, likely)) == 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    # ------------------------------------------------------------------ expressions
    def key(
        self, shape: tuple[int, ...], scope: Scope, roles: Roles | None, depth: int, axes: int | None = None,
        *, of_array: bool = False,
    ) -> Any:  # fmt: skip
        """An index of all axes, or of the first ones; that of a JAX array has values only."""
        out = []
        for n in shape[:axes]:
            if self.maybe(1):
                out.append(self.draw(st.integers(-n, n - 1)))
            elif not of_array and self.open_counters and n > MOST_ROUNDS and self.maybe():
                out.append(("counter", self.one(self.open_counters)))
            else:
                kind = self.index_kind(n, may_be_cell=roles is not None and not of_array)
                out.append((self.scalar(scope, roles, depth - 1), n, kind))
        return tuple(out)

    def scalar(self, scope: Scope, roles: Roles | None, depth: int) -> Any:
        """An expression; `roles` is None between loops, where loads have statements of their own."""
        choices = ["const"]
        if scope.scalars:
            choices += ["s", "s"]
        if roles is not None:
            choices += ["i"] * 2
            choices += ["cell"] * (2 * self.cells) + ["table"] * (2 * len(self.tables))
            choices += ["at"] * (2 * bool(roles.reads)) + ["own"] * (2 * bool(roles.own))
            choices += ["arr"] * bool(scope.arrays)
        if depth > 0:
            choices += ["binary"] * 3 + ["where"]
            choices += ["fori", "cond"] * (roles is not None)
            if roles is not None and any(len(scope.buffers[b]) == 2 for b in roles.reads):
                choices.append("sum")
        match self.one(choices):
            case "const":
                return self.draw(small)
            case "s":
                return ("s", self.one(scope.scalars))
            case "i":
                return ("i", self.draw(st.integers(0, self.indices - 1)))
            case "cell":
                return ("cell", self.draw(st.integers(0, self.cells - 1)))
            case "table":
                which = self.draw(st.integers(0, len(self.tables) - 1))
                return ("table", which, ((self.scalar(scope, roles, depth - 1), self.tables[which], "int32"),))
            case "fori":
                start = self.scalar(scope, roles, depth - 1)
                self.indices += 1
                step = self.scalar(scope, roles, depth - 1)
                self.indices -= 1
                return ("fori", self.draw(st.integers(0, 3)), start, step)
            case "cond":
                branches = (self.scalar(scope, roles, depth - 1) for _ in range(2))
                return ("cond", self.test(scope, roles, depth - 1), *branches)
            case "at":
                b = self.one(roles.reads)  # type: ignore[union-attr]
                return ("at", b, self.key(scope.buffers[b], scope, roles, depth))
            case "own":
                b = self.one(roles.own)  # type: ignore[union-attr]
                return ("at", b, self.own_key(b, scope, roles, depth))  # type: ignore[arg-type]
            case "arr":
                a = self.one(scope.arrays)
                return ("arr", a, self.key(scope.arrays[a], scope, roles, depth, of_array=True))
            case "sum":
                b = self.one([b for b in roles.reads if len(scope.buffers[b]) == 2])  # type: ignore[union-attr]
                return ("sum", b, self.key(scope.buffers[b], scope, roles, depth, axes=1))
            case "where":
                branches = (self.scalar(scope, roles, depth - 1) for _ in range(2))
                return ("where", self.test(scope, roles, depth - 1), *branches)
        return (self.one(ARITHMETIC), self.scalar(scope, roles, depth - 1), self.scalar(scope, roles, depth - 1))

    indices = 0
    cells = 0
    tables: tuple[int, ...] = ()

    def own_key(self, buffer: str, scope: Scope, roles: Roles, depth: int) -> Any:
        """The thread's own element: its indices first, any index for the axes behind."""
        shape, given = scope.buffers[buffer], roles.own[buffer]
        mine = tuple((("i", k), shape[k], self.index_kind(shape[k])) for k in range(given))
        return (*mine, *self.key(shape[given:], scope, roles, depth))

    def index_kind(self, n: int, *, may_be_cell: bool = True) -> str:
        """A form for an index below n."""
        fitting = [k for k, most in INDICES.items() if n <= most]
        return self.one(("int32", "int32", "int32", *fitting, *("cell",) * may_be_cell))

    def test(self, scope: Scope, roles: Roles | None, depth: int) -> Any:
        return (self.one(("<", "<", "==", "odd")), self.scalar(scope, roles, depth), self.scalar(scope, roles, depth))

    def array(self, scope: Scope, shape: tuple[int, ...], depth: int) -> Any:
        choices = ["fill"]
        choices += ["buffer"] * (3 * any(s == shape for s in scope.buffers.values()))
        choices += ["array"] * (2 * any(s == shape for s in scope.arrays.values()))
        if depth > 0:
            choices += ["binary", "with", "with", "roll", "flip", "cumsum"]
        match kind := self.one(choices):
            case "fill":
                return ("fill", shape, self.scalar(scope, None, 1))
            case "buffer":
                return ("buffer", self.one(b for b, s in scope.buffers.items() if s == shape))
            case "array":
                return ("array", self.one(a for a, s in scope.arrays.items() if s == shape))
            case "with":
                return ("with", self.one(ARITHMETIC), self.array(scope, shape, depth - 1), self.scalar(scope, None, 1))
            case "roll":
                return ("roll", self.array(scope, shape, depth - 1), self.draw(small))
            case "flip" | "cumsum":
                return (kind, self.array(scope, shape, depth - 1))
        return (self.one(ARITHMETIC), self.array(scope, shape, depth - 1), self.array(scope, shape, depth - 1))

    # ------------------------------------------------------------------ threads
    def roles(self, scope: Scope, extent: int | None = None, shape: tuple[int, ...] | None = None) -> Roles:
        """A role for each buffer; `own` ones are long enough for the loop."""
        reads, own, sums = [], {}, {}
        for b in [b for b in scope.buffers if b not in scope.aliases]:
            role = self.one(("read", "read", "own", "own", "sum"))
            fits = scope.buffers[b] == shape if shape else scope.buffers[b][0] >= extent  # type: ignore[operator]
            if role == "own" and fits:
                own[b] = len(shape or (0,))
            elif role == "sum":
                sums[b] = self.one(OPS)
            else:
                reads.append(b)
        reads += [b for b, other in scope.aliases.items() if other in reads]
        return Roles(reads, own, sums)

    def body(self, scope: Scope, roles: Roles, depth: int) -> Any:
        return tuple(self.in_thread(scope, roles, depth) for _ in range(self.draw(st.integers(1, 3))))

    def in_thread(self, scope: Scope, roles: Roles, depth: int) -> Any:
        choices = ["put"] * (4 * bool(roles.own)) + ["change"] * (2 * bool(roles.sums))
        choices += ["row"] * any(len(scope.buffers[b]) == 2 and k == 1 for b, k in roles.own.items())
        choices += ["set"] * (2 * len(self.tables))
        if depth > 0:
            choices += ["when", "loop", "until", "table"]
        if not choices:
            choices = ["when"]
        match self.one(choices):
            case "put":
                b = self.one(roles.own)
                return ("put", b, self.own_key(b, scope, roles, 1), self.scalar(scope, roles, 2))
            case "change":
                b = self.one(roles.sums)
                key = self.key(scope.buffers[b], scope, roles, 2)
                if roles.sums[b] == "add" and self.maybe():
                    inner = (self.key(scope.buffers[b], scope, roles, 1), self.scalar(scope, roles, 1))
                    return ("add_inside", b, key, self.scalar(scope, roles, 2), inner)
                return ("change", b, key, roles.sums[b], self.scalar(scope, roles, 2), self.one(WAYS))
            case "row":
                b = self.one(b for b, k in roles.own.items() if len(scope.buffers[b]) == 2 and k == 1)
                return ("row", b, ((("i", 0), scope.buffers[b][0], "int32"),), self.scalar(scope, roles, 2))
            case "set":
                which = self.draw(st.integers(0, len(self.tables) - 1))
                key = ((self.scalar(scope, roles, 1), self.tables[which], self.index_kind(5)),)
                return ("set", which, key, self.one(("put", "add")), self.scalar(scope, roles, 2))
            case "table":
                size, start = self.draw(st.integers(1, 5)), self.scalar(scope, roles, 1)
                self.tables = (*self.tables, size)
                body = self.body(scope, roles, depth - 1)
                self.tables = self.tables[:-1]
                return ("table", size, start, body)
            case "until":
                start, limit = self.scalar(scope, roles, 1), self.draw(st.integers(-1, 4))
                self.cells += 1
                body, step = self.body(scope, roles, depth - 1), self.scalar(scope, roles, 1)
                self.cells -= 1
                return ("until", start, limit, step, body)
            case "loop":
                start, count = self.scalar(scope, roles, 1), self.scalar(scope, roles, 1)
                self.cells += 1
                self.indices += 1
                leave, skip = self.test(scope, roles, 1), self.test(scope, roles, 1)
                update = self.scalar(scope, roles, 2)
                self.indices -= 1
                body = self.body(scope, roles, depth - 1)
                self.cells -= 1
                return ("loop", start, count, leave, skip, update, body)
        if depth <= 0:
            return ("when", self.test(scope, roles, 1), (), None)
        other = self.body(scope, roles, depth - 1) if self.maybe() else None
        return ("when", self.test(scope, roles, 1), self.body(scope, roles, depth - 1), other)

    def task(self, scope: Scope) -> Any:
        if scope.tables() and self.maybe(3):
            shape = scope.buffers[self.one(scope.tables())]
            self.indices = 2
            body = self.body(scope, self.roles(scope, shape=shape), 2)
            self.indices = 0
            return ("product", shape, body)
        extent = scope.buffers[self.one(scope.buffers)][0]
        dynamic = scope.scalars and self.maybe()
        low: Any = self.draw(st.integers(0, 2)) if self.maybe() else 0
        high: Any = self.scalar(scope, None, 1) if dynamic else self.one((extent, extent, max(extent - 1, 0)))
        if dynamic and self.maybe():
            low = self.scalar(scope, None, 1)
        if isinstance(low, int) and not 0 <= low <= extent:
            low = 0
        if isinstance(high, int) and not 0 <= high <= extent:
            high = extent
        step = self.one((1, 1, 1, 2, 3, -1, -2))
        self.indices = 1
        serial = self.maybe(5)
        roles = self.roles(scope, extent)
        body = self.body(scope, roles, 2)
        self.indices = 0
        return ("task", low, high, step, extent, body, serial)

    # ------------------------------------------------------------------ between loops
    def block(self, scope: Scope, depth: int, length: int, *, least: int = 1, arrays: bool = True) -> Any:
        return tuple(self.statement(scope, depth, arrays) for _ in range(self.draw(st.integers(least, length))))

    def statement(self, scope: Scope, depth: int, arrays: bool) -> Any:
        kinds = ["task"] * (6 if arrays else 14)
        kinds += ["get", "get", "put", "put", "change", "change", "let", "swap", "reduce", "fold", "branch"]
        kinds += ["assign", "assign", "array_of", "assign_part", "row", "inplace"]
        kinds += ["alloc", "alloc", "alias"] * arrays
        kinds += ["call", "call"] * bool(self.callees)
        kinds += ["jump", "jump"] * (self.loops > 0)
        if depth > 0:
            kinds += ["when", "when", "repeat", "repeat", "unrolled"]
        while True:
            made = getattr(self, f"make_{self.one(kinds)}")(scope, depth, arrays)
            if made is not None:
                return made

    def make_task(self, scope: Scope, depth: int, arrays: bool) -> Any:
        return self.task(scope)

    def make_alloc(self, scope: Scope, depth: int, arrays: bool) -> Any:
        how = self.one(("zeros", "ones", "full", "empty", "copy", "copy_method", "zeros_like"))
        like = self.one(scope.buffers)
        shape = scope.buffers[like] if "copy" in how or how == "zeros_like" else self.one(SHAPES)
        fill, name = self.scalar(scope, None, 1), self.name("b")
        scope.buffers[name] = shape
        return ("alloc", name, how, shape, fill, like)

    def make_alias(self, scope: Scope, depth: int, arrays: bool) -> Any:
        other, name = self.one(scope.buffers), self.name("b")
        scope.buffers[name] = scope.buffers[other]
        scope.aliases[name] = scope.aliases.get(other, other)
        return ("alias", name, other)

    def make_get(self, scope: Scope, depth: int, arrays: bool) -> Any:
        b = self.one(scope.buffers)
        made = ("get", self.name("s"), b, self.key(scope.buffers[b], scope, None, 1))
        scope.scalars.append(made[1])
        return made

    def make_let(self, scope: Scope, depth: int, arrays: bool) -> Any:
        made = ("let", self.name("s"), self.scalar(scope, None, 2))
        scope.scalars.append(made[1])
        return made

    def make_reduce(self, scope: Scope, depth: int, arrays: bool) -> Any:
        shape = scope.buffers[self.one(scope.buffers)]
        made = ("reduce", self.name("s"), self.one(("sum", "max", "min")), self.array(scope, shape, 1))
        scope.scalars.append(made[1])
        return made

    def make_put(self, scope: Scope, depth: int, arrays: bool) -> Any:
        b = self.one(scope.buffers)
        return ("put", b, self.key(scope.buffers[b], scope, None, 1), self.scalar(scope, None, 2))

    def make_change(self, scope: Scope, depth: int, arrays: bool) -> Any:
        b, op, way = self.one(scope.buffers), self.one(OPS), self.one(WAYS)
        key, value = self.key(scope.buffers[b], scope, None, 1), self.scalar(scope, None, 2)
        name = self.name("s")
        if way == "atomic" and op != "mul":
            scope.scalars.append(name)
        return ("change", b, key, op, value, way, name)

    def make_swap(self, scope: Scope, depth: int, arrays: bool) -> Any:
        b, name = self.one(scope.buffers), self.name("s")
        made = ("swap", b, self.key(scope.buffers[b], scope, None, 1), self.scalar(scope, None, 1), name)
        scope.scalars.append(name)
        return made

    def make_fold(self, scope: Scope, depth: int, arrays: bool) -> Any:
        if not scope.flat():
            return None
        b = self.one(scope.flat())
        made = ("fold", self.name("s"), b, min(scope.buffers[b][0], 5), self.scalar(scope, None, 1))
        scope.scalars.append(made[1])
        return made

    def make_branch(self, scope: Scope, depth: int, arrays: bool) -> Any:
        if not scope.flat():
            return None
        b = self.one(scope.flat())
        at = st.integers(0, scope.buffers[b][0] - 1)
        made = ("branch", self.name("s"), self.test(scope, None, 1), b, self.draw(at), self.draw(at))
        scope.scalars.append(made[1])
        return made

    def make_assign(self, scope: Scope, depth: int, arrays: bool) -> Any:
        b = self.one(scope.buffers)
        return ("assign", b, self.array(scope, scope.buffers[b], 2))

    def make_array_of(self, scope: Scope, depth: int, arrays: bool) -> Any:
        shape = scope.buffers[self.one(scope.buffers)]
        made = ("array_of", self.name("a"), self.array(scope, shape, 2))
        scope.arrays[made[1]] = shape
        return made

    def make_assign_part(self, scope: Scope, depth: int, arrays: bool) -> Any:
        b = self.one(scope.buffers)
        n = scope.buffers[b][0]
        start = self.draw(st.integers(0, n - 1))
        return ("assign_part", b, (start, self.draw(st.integers(start, n))), self.scalar(scope, None, 1))

    def make_inplace(self, scope: Scope, depth: int, arrays: bool) -> Any:
        return ("inplace", self.one(scope.buffers), self.one(("add", "mul")), self.scalar(scope, None, 1))

    def make_row(self, scope: Scope, depth: int, arrays: bool) -> Any:
        if not scope.tables():
            return None
        b = self.one(scope.tables())
        key = self.key(scope.buffers[b], scope, None, 1, axes=1)
        if self.maybe(1):
            return ("row_put", b, key, self.array(scope, scope.buffers[b][1:], 1))
        name = self.name("a")
        scope.arrays[name] = scope.buffers[b][1:]
        return ("row_get", name, b, key)

    def make_when(self, scope: Scope, depth: int, arrays: bool) -> Any:
        other = self.block(scope.child(), depth - 1, 2, arrays=False) if self.maybe(1) else None
        test = self.test(scope, None, 1)
        return ("when", test, self.block(scope.child(), depth - 1, 3, arrays=False), other)

    def make_repeat(self, scope: Scope, depth: int, arrays: bool) -> Any:
        """A loop needs a counter that nothing else stores into: `wrap` puts it in front of the outermost statement."""
        count = self.name("n")
        self.counters.append(count)
        limit = self.one((0, 1, 2, 3, *(("min", ("s", s), MOST_ROUNDS) for s in scope.scalars)))
        extra = self.test(scope, None, 1) if self.maybe() else None
        self.loops += 1
        self.open_counters = (*self.open_counters, count)
        body = self.block(scope.child(), depth - 1, 3, arrays=False)
        self.open_counters = self.open_counters[:-1]
        self.loops -= 1
        return ("repeat", count, limit, extra, body)

    counters: list[str]
    open_counters: tuple[str, ...] = ()
    """Of the loops around: from 1 to MOST_ROUNDS."""
    loops = 0

    def make_jump(self, scope: Scope, depth: int, arrays: bool) -> Any:
        return ("jump", self.maybe(1), self.test(scope, None, 1))

    def make_unrolled(self, scope: Scope, depth: int, arrays: bool) -> Any:
        return ("unrolled", 2, self.block(scope, depth - 1, 2, arrays=arrays))

    def make_call(self, scope: Scope, depth: int, arrays: bool) -> Any:
        which = self.draw(st.integers(0, len(self.callees) - 1))
        callee = self.callees[which]
        args = []
        for name, shape in zip(callee.names, callee.shapes, strict=True):
            if name.startswith("s"):
                if not scope.scalars:
                    return None
                args.append(("s", self.one(scope.scalars)))
            else:
                fitting = [b for b, s in scope.buffers.items() if s == shape]
                if not fitting:
                    return None
                args.append(("b", self.one(fitting)))
        results = []
        for kind, shape in callee.result_shapes:
            # outside of loops and conditions an array comes back as a buffer
            kind = "s" if kind == "s" else "b" if arrays else "a"
            name = self.name(kind)
            results.append((kind, name))
            if kind == "s":
                scope.scalars.append(name)
            else:
                (scope.buffers if arrays else scope.arrays)[name] = shape
        return ("call", which, tuple(args), tuple(results))

    # ------------------------------------------------------------------ functions
    def function(self, shapes: tuple[tuple[int, ...], ...], scalars: int, length: int) -> Callee:
        """A function of arrays with these shapes and of so many scalars."""
        self.counters = []
        scope = Scope()
        names = [self.name("b") for _ in shapes] + [self.name("s") for _ in range(scalars)]
        scope.buffers = dict(zip(names, shapes, strict=False))
        scope.scalars = names[len(shapes) :]
        statements = self.block(scope, self.depth, length, least=max(1, length - 3))
        statements = tuple(("alloc", n, "zeros", (), 0, "") for n in self.counters) + statements
        pool = [("b", b) for b in scope.buffers] + [("s", s) for s in scope.scalars] + [("a", a) for a in scope.arrays]
        results = tuple(pool if self.maybe(1) else self.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4)))
        callee = Callee(statements, results, self.callees, tuple(names))
        callee.shapes = (*shapes, *((),) * scalars)
        callee.result_shapes = tuple(
            (k, () if k == "s" else {"b": scope.buffers, "a": scope.arrays}[k][n]) for k, n in results
        )
        return callee


@st.composite
def programs(draw: Any, *, length: int = 8, depth: int = 2, nested: bool = True) -> Callee:
    """A function, with up to two functions that it may call."""
    callees: tuple[Callee, ...] = ()
    if nested:
        for _ in range(draw(st.integers(0, 2))):
            generator = Generator(draw, 1, callees)
            shapes = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2)))
            callees = (*callees, generator.function(shapes, draw(st.integers(0, 1)), 3))
    generator = Generator(draw, depth, callees)
    shapes = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
    if callees:
        shapes = (*shapes, *(s for s in callees[0].shapes if s))
    return generator.function(shapes, draw(st.integers(0, 2)), length)
