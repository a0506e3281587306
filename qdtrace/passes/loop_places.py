"""Places of loops in registers (scalar replacement): an element that a loop keeps using is loaded once and stored once.

Before:  for k in 0:i32 : 8:i32 : 1:i32          After:  s: f32 = load b i
           a: f32 = load r i k                           t: f32 = for k in 0:i32 : 8:i32 : 1:i32 carry c = s
           accum[op=add] b a i                             a: f32 = load r i k
                                                           d: f32 = add c a
                                                           yield d
                                                         store b t i

An element goes when its index is the same in all iterations of the loop and everything else that the loop does to
the reference is surely elsewhere (`analysis/places`). The rules:

- `carry`: loaded before the loop, carried, stored after it. The order of operations stays. Where the task accumulates
  into the reference, only at elements that no other iteration of the task touches.
- `sum`: where the loop only accumulates, by one operation, but other iterations of the task may do so too: a sum that
  starts at the neutral value is carried and accumulated after the loop. For floats that changes the order of additions,
  so it needs `fast_math` (but for minima and maxima).

The load before and the accumulation or store after must be allowed: the loop surely runs and surely does the same on
its way (with no check in it, which may be what proves the index), or the iteration has touched the element before, or
the index is in range, the element is set and nobody else touches it. Where only the bounds of a `for` are in doubt,
both stand under `if start < stop`.

The outermost loop is tried first. What the condition of a `while` writes stays, and atomics stay. Relies on
`promote_cells`, which turns the cell that replaces the element into a carried value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.affine import AffineForms
from qdtrace.analysis.places import (
    Meeting,
    Place,
    Places,
    References,
    is_comparable,
    levels_of,
)
from qdtrace.analysis.region_summary import Summaries, surely_runs
from qdtrace.analysis.stored import FullBefore
from qdtrace.ir.builder import Builder
from qdtrace.ir.combining import identity
from qdtrace.ir.memory import MEMORY
from qdtrace.ir.primitives import PRIMITIVES, Effect
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, is_local, ref_type
from qdtrace.ir.types import DType, RefType, Space
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass
from qdtrace.passes.loop_invariant import ranges_of
from qdtrace.passes.promote_cells import PromoteCells

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.analysis.ranges import Ranges
    from qdtrace.analysis.region_summary import Key

_CELL = PRIMITIVES["cell"]
PLACES = 32
"""Elements of one reference in one loop that are looked at; and elements that one loop carries."""


@dataclass(frozen=True)
class LoopPlaces(TaskPass):
    """Carries what loops keep loading and storing."""

    name: ClassVar[str] = "loop_places"
    fast_math: bool = False

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(_has_writing_loop(e) for e in task.body.eqns):
            return task
        forms = AffineForms(task, flips=True)
        references, full = References(task, forms), FullBefore(program, task)
        walker = _Walker(Places(forms), references, levels_of(task), ranges_of(task), full, self.fast_math)
        body = walker.block(task.body, 1)
        return task if body is task.body else PromoteCells().on_task(replace(task, body=body), program)


def _has_writing_loop(eqn: Eqn, *, in_loop: bool = False) -> bool:
    in_loop = in_loop or eqn.primitive.name in ("for", "while")
    if not eqn.blocks:
        return in_loop and eqn.primitive.name in ("store", "accum")
    return any(_has_writing_loop(e, in_loop=in_loop) for b in eqn.blocks for e in b.eqns)


@dataclass(slots=True)
class _Uses:
    """What a loop does to one place."""

    places: list[Place] = field(default_factory=lambda: [])
    """The same element, perhaps by different operands."""
    modes: set[str] = field(default_factory=lambda: set())
    """Names of primitives; of accumulations with the operation."""
    in_test: bool = False
    """Written in the condition of a `while`."""


@dataclass(slots=True)
class _Carried:
    """A place that a loop carries."""

    place: Place
    cell: Var
    op: str
    """Of the rule `sum`; empty for `carry`."""
    guarded: bool
    """Only where the loop runs."""
    loads: bool
    """The value before the loop matters."""


@dataclass(slots=True)
class _Walker:
    places: Places
    references: References
    levels: dict[Var, int]
    ranges: Ranges
    full: FullBefore
    """References of which every element is set before the task."""
    fast_math: bool
    active: dict[Key, Var] = field(default_factory=lambda: {})
    """The cells of places that loops around carry."""
    touched: dict[Key, bool] = field(default_factory=lambda: {})
    """Places that this iteration has surely accessed before; True: written."""
    undo: list[tuple[Key, bool | None]] = field(default_factory=lambda: [])
    summaries: Summaries = field(init=False)

    def __post_init__(self) -> None:
        self.summaries = Summaries(self.places)

    def block(self, block: Block, level: int) -> Block:
        mark = len(self.undo)
        out: list[Eqn] = []
        for eqn in block.eqns:
            name = eqn.primitive.name
            if name == "if":
                blocks = tuple([self.block(b, level + 1) for b in eqn.blocks])
                same = all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
                out.append(eqn if same else replace(eqn, blocks=blocks))
                self._note_region(eqn)
            elif eqn.blocks:
                out += self._loop(eqn, level)
                self._note_region(eqn)
            elif name in MEMORY:
                place = self.places.of(eqn)
                self._note(place.key, written=name != "load")
                cell = self.active.get(place.key)
                values = eqn.invars[1 : len(eqn.invars) - len(place.indices)]
                out.append(eqn if cell is None else replace(eqn, invars=(cell, *values)))
            else:
                out.append(eqn)
        while len(self.undo) > mark:
            key, before = self.undo.pop()
            if before is None:
                del self.touched[key]
            else:
                self.touched[key] = before
        if len(out) == len(block.eqns) and all(a is b for a, b in zip(out, block.eqns, strict=True)):
            return block
        return Block(block.params, tuple(out), block.results)

    def _note(self, key: Key, *, written: bool) -> None:
        before = self.touched.get(key)
        if before is None or (written and not before):
            self.undo.append((key, before))
            self.touched[key] = written

    def _note_region(self, eqn: Eqn) -> None:
        summary = self.summaries.of_eqn(eqn)
        for key in summary.accessed:
            self._note(key, written=key in summary.written)

    # Loops.

    def _loop(self, eqn: Eqn, level: int) -> list[Eqn]:
        if eqn.primitive.name == "for":
            self.ranges.set_index(eqn.blocks[0].params[0], *eqn.invars[:3])
        carried = self._candidates(eqn, level)
        self.active.update({c.place.key: c.cell for c in carried})
        blocks = tuple([self.block(b, level + 1) for b in eqn.blocks])
        for c in carried:
            del self.active[c.place.key]
        same = all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
        loop = eqn if same else replace(eqn, blocks=blocks)
        return _around(loop, carried) if carried else [loop]

    def _candidates(self, eqn: Eqn, level: int) -> list[_Carried]:
        found: list[_Carried] = []
        for ref, uses in self._uses(eqn).items():
            if len(uses) > PLACES or not is_comparable(ref) or self.levels.get(ref, 0) > level:
                continue
            for key, use in uses.items():
                if key in self.active or use.in_test or "atomic" in use.modes or use.modes == {"load"}:
                    continue
                if any(self.levels.get(var, 0) > level for var in use.places[0].variables()):
                    continue
                place = next((p for p in use.places if self._is_outside(p.indices, level)), None)
                if place is None or len(found) >= PLACES:
                    continue
                carried = self._judged(eqn, place, uses)
                if carried is not None:
                    found.append(carried)
        return found

    def _uses(self, eqn: Eqn) -> dict[Var, dict[Key, _Uses]]:
        found: dict[Var, dict[Key, _Uses]] = {}
        pending = [(b, eqn.primitive.name == "while" and k == 0) for k, b in enumerate(eqn.blocks)]
        while pending:
            block, in_test = pending.pop()
            for inner in block.eqns:
                name = inner.primitive.name
                if name in MEMORY:
                    place = self.places.of(inner)
                    use = found.setdefault(place.ref, {}).setdefault(place.key, _Uses())
                    use.places.append(place)
                    use.modes.add(str(inner.params["op"]) if name == "accum" else name)
                    use.in_test = use.in_test or (in_test and name != "load")
                for k, b in enumerate(inner.blocks):
                    pending.append((b, in_test or (name == "while" and k == 0)))
        return found

    def _is_outside(self, atoms: Iterable[Atom], level: int) -> bool:
        return all(isinstance(a, Literal) or self.levels.get(a, 0) <= level for a in atoms)

    def _judged(self, eqn: Eqn, place: Place, uses: dict[Key, _Uses]) -> _Carried | None:
        """How the loop may carry the place; None where it may not."""
        ref, key = place.ref, place.key
        once = self.summaries.of_body(eqn)
        runs = surely_runs(eqn)
        can_guard = eqn.primitive.name == "for" and isinstance(eqn.invars[2], Literal) and bool(eqn.invars[2].value)
        in_range = self._in_range(place)
        before = self.touched.get(key)
        if ref in self.references.tracked:
            if any(self.places.meet(place, u.places[0]) is not Meeting.NEVER for k, u in uses.items() if k != key):
                return None
            free = in_range and self.references.is_private(ref)
            op, loads = "", key in once.exposed or key not in once.written
            may_load = before is not None or (free and ref in self.full)
            may_store = bool(before) or free
            if may_load and may_store:
                guarded, loads = False, loads or not runs
            elif (not loads or may_load or (key in once.first_read and (in_range or not _has_check(eqn)))) and (
                may_store or key in once.written
            ):
                guarded = not runs
            else:
                return None
        else:
            modes = frozenset[str]().union(*(u.modes for u in uses.values()))
            if len(modes) != 1 or not self._may_sum(ref.dtype, *modes):
                return None
            (op,), loads = modes, False
            # An addition of nothing where there was none costs an atomic, but for places that are summed anyway.
            surely = key in once.accessed
            if not surely and not all(isinstance(a, Literal) for a in place.indices):
                return None
            if bool(before) or (in_range and ref in self.full and self.references.modes(ref) == modes):
                guarded = False
            elif surely:
                guarded = not runs
            else:
                return None
        if guarded and not can_guard:
            return None
        return _Carried(place, Var(RefType(ref.dtype, (), Space.LOCAL), ref.hint), op, guarded, loads)

    def _may_sum(self, dtype: DType, op: str) -> bool:
        if op not in ("add", "mul", "min", "max"):
            return False
        return self.fast_math or not dtype.is_float or op in ("min", "max")

    def _in_range(self, place: Place) -> bool:
        if is_local(place.ref):
            return False
        ends = [self.ranges.of(a) for a in place.indices]
        return all(low >= 0 and high < n for (low, high), n in zip(ends, ref_type(place.ref).shape, strict=True))


def _has_check(loop: Eqn) -> bool:
    return any(Effect.CHECK in e.primitive.effects for b in loop.blocks for e in walk_eqns(b))


def _around(loop: Eqn, carried: list[_Carried]) -> list[Eqn]:
    """The loop with what goes before and after it."""
    builder = Builder()
    builder.loc = loop.loc
    for c in carried:
        cell = Eqn(_CELL, (), (c.cell,), {"dtype": c.cell.dtype, "shape": ()}, (), loop.loc)
        builder.current.eqns.append(cell)
    surely = [c for c in carried if not c.guarded]
    guarded = [c for c in carried if c.guarded]
    _before(builder, [c for c in carried if c.op or not c.guarded])
    runs: Var | None = None
    if guarded:
        start, stop, step = loop.invars[:3]
        assert isinstance(step, Literal)
        runs = builder("lt" if step.value > 0 else "gt", start, stop, hint="runs")
        with builder.block() as then:
            _before(builder, [c for c in guarded if not c.op])
        if then.eqns:
            builder.emit("if", runs, blocks=(then.close(), Block()))
    builder.current.eqns.append(loop)
    _after(builder, surely)
    if runs is not None:
        with builder.block() as then:
            _after(builder, guarded)
        builder.emit("if", runs, blocks=(then.close(), Block()))
    return builder.current.eqns


def _before(builder: Builder, carried: list[_Carried]) -> None:
    for c in carried:
        if c.op:
            builder.store(c.cell, identity(c.op, c.cell.dtype))
        elif c.loads:
            builder.store(c.cell, builder.load(c.place.ref, *c.place.indices, hint=c.cell.hint))


def _after(builder: Builder, carried: list[_Carried]) -> None:
    for c in carried:
        value = builder.load(c.cell, hint=c.cell.hint)
        if c.op:
            builder.accum(c.place.ref, value, *c.place.indices, op=c.op)
        else:
            builder.store(c.place.ref, value, *c.place.indices)
