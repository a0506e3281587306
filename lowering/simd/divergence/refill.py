"""Lane refill: a lane that has left its loop takes the next element of the task, so lanes do not wait for the slowest.

It applies to a task whose body is: arithmetic, loads and private arrays, one divergent loop, stores. Lanes hold
elements that are not neighbours, so loads outside the loop become gathers. Between steps of the loop the service block
runs if enough lanes are idle: it stores the results of finished lanes, assigns the next elements to them, and evaluates
the equations before the loop for those. With geometric trip counts 16 lanes in step are busy 30 % of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.polls import poll
from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import Value
from lowering.simd.descriptions import Mask
from lowering.simd.lane_facts import LaneFacts, is_quiet
from qdtrace.analysis.cost import operations
from qdtrace.analysis.index.trips import trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params
from qdtrace.ir.primitives import CELL, FOR, LANE_MAX, LOAD
from qdtrace.ir.program import Block, Literal, Var, is_global
from qdtrace.ir.walk import free_vars, used_vars, walk_all, walk_often

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.target import Target
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Eqn

SURE_COST = 200
"""Bodies of at least this cost always refill, as the service is cheap beside them. Others measure trip counts first."""
SHORT_COST = 256
"""The largest cost of a loop beside the divergent one, which the service runs for the few lanes that it serves."""
FOR_COST, WHILE_COST = 20, 100
"""The same limits for tasks that reduce, which cannot switch at run time: trip counts of a `for` over loaded bounds
differ more than those of a short `while` that converges (measured: 0.67 and 1.24 of the time with masks)."""
IDLE_PART = 8
"""The service runs if at least one in this many lanes is idle."""


@frozen(eq=False)
class Refill:
    """The parts of a task's body that lane refill distinguishes."""

    before: tuple[Eqn, ...]
    loop: Eqn
    after: tuple[Eqn, ...]
    measures: bool
    """True if the task decides at run time whether to refill (`spread`)."""

    @property
    def in_lanes(self) -> frozenset[Var]:
        """Parameters of the loop, which are uniform only while lanes run in step."""
        return frozenset(p for block in self.loop.blocks for p in block.params)


def find_refill(lanes: LaneFacts, target: Target, *, reduces: bool) -> Refill | None:
    """Returns the parts of a task to refill, or None if its body has another form or gains nothing, or by a hint."""
    task = lanes.facts.task
    hint = task.hints.get("refill")
    if task.kind != "range_for" or target.vector_bits < 512 or hint is False:
        return None
    loops = [k for k, e in enumerate(task.body.eqns) if e in lanes.divergent_loops]
    if len(loops) != 1:
        return None
    before, loop, after = task.body.eqns[: loops[0]], task.body.eqns[loops[0]], task.body.eqns[loops[0] + 1 :]
    around = Block((), (*before, *after), ())
    if any(e.primitive.loops and not _is_short(e) for e in walk_often(around)):
        return None
    if any(e.primitive is CELL for e in walk_all(after)):
        return None
    if any(e.primitive is LANE_MAX for e in walk_all(task.body.eqns)):
        return None
    if any(e.primitive.writes and is_global(e.invars[0]) for e in walk_all(before)):
        return None
    if not _uniform_part_is_simple(lanes, before):
        return None
    if loop.primitive is FOR and not (isinstance(loop.step, Literal) and int(loop.step.value) == 1):
        return None
    cost = sum(map(operations, loop.blocks))
    if hint or cost >= SURE_COST:
        return Refill(before, loop, after, measures=False)
    if not reduces:
        return Refill(before, loop, after, measures=True)
    if is_quiet(loop) or cost < (FOR_COST if loop.primitive is FOR else WHILE_COST):
        return None
    return Refill(before, loop, after, measures=False)


def _is_short(loop: Eqn) -> bool:
    """Returns whether a loop beside the divergent one has few iterations, as one that clears a stack."""
    trips = trip_count(*loop.bounds) if loop.primitive is FOR else None
    return trips is not None and trips * sum(map(operations, loop.blocks)) <= SHORT_COST


def _uniform_part_is_simple(lanes: LaneFacts, eqns: Sequence[Eqn]) -> bool:
    """Returns whether uniform equations before the loop can be evaluated once, ahead of everything else."""
    for eqn in eqns:
        uniform = [lanes.uniformity.is_uniform(v) for v in eqn.outvars]
        if any(uniform) and (eqn.primitive.structured or not all(uniform)):
            return False
        if any(uniform) and eqn.primitive is LOAD and eqn.invars[0] in lanes.facts.written:
            return False
    return True


class _Slots:
    """Values that lanes keep from step to step, in stack slots that LLVM turns into registers."""

    def __init__(self, f: LaneFrame) -> None:
        self.f = f
        self.slots: dict[object, tuple[str, list[str]]] = {}

    def add(self, key: object, type_: str) -> None:
        """Allocates a slot per vector and stores zeros."""
        self.slots[key] = (type_, [self.f.text.slot(type_) for _ in range(self.f.vectors)])
        self.store(key, ["zeroinitializer"] * self.f.vectors)

    def load(self, key: object) -> list[str]:
        """Loads the current vectors."""
        type_, slots = self.slots[key]
        return [self.f.text.op(f"load {type_}, ptr {s}") for s in slots]

    def store(self, key: object, registers: Sequence[str]) -> None:
        """Stores new vectors."""
        type_, slots = self.slots[key]
        for slot, register in zip(slots, registers, strict=True):
            self.f.text.do(f"store {type_} {register}, ptr {slot}")


_HELD, _LIVE = "held", "live"


def emit_refilled(f: LaneFrame, refill: Refill) -> None:
    """Emits iterations %lo .. %hi-1 of a task with lane refill."""
    _Emission(f, refill).run()


class _Emission:
    def __init__(self, f: LaneFrame, refill: Refill) -> None:
        self.f = f
        self.refill = refill
        self.text = f.text
        self.slots = _Slots(f)
        self.next = ""
        loop = refill.loop
        self.is_for = loop.primitive is FOR
        self.initial = loop.initials
        self.body: Block = loop.blocks[-1]
        self.params = carried_params(loop, self.body)
        assert f.facts.task.index is not None
        self.index = f.facts.task.index
        self.kept = self._kept()

    def _kept(self) -> list[Var]:
        """Returns varying values from before the loop that the loop or later equations read."""
        read: dict[Var, None] = {}
        for block in self.refill.loop.blocks:
            read |= free_vars(block)
        if self.is_for:
            read |= {a: None for a in self.refill.loop.invars[1:2] if isinstance(a, Var)}
        for eqn in self.refill.after:
            read |= dict.fromkeys(used_vars(eqn))
        made = {v for e in self.refill.before for v in e.outvars}
        return [v for v in read if v in made and not self.f.is_uniform(v)]

    def _is_shared(self, eqn: Eqn) -> bool:
        """Returns whether an equation is evaluated once: a uniform one, but no check, as that has no result."""
        return bool(eqn.outvars) and all(map(self.f.is_uniform, eqn.outvars))

    def run(self) -> None:
        f, text = self.f, self.text
        begin, header, service, step, done = map(text.fresh_label, ("begin", "lanes", "service", "step", "end"))
        text.branch(text.op("icmp slt i64 %lo, %hi"), begin, done)
        text.begin(begin)
        f.emit([e for e in self.refill.before if self._is_shared(e)])
        self._make_slots()
        text.jump(header)
        text.begin(header)
        live = self.slots.load(_LIVE)
        anybody = f.any(live)
        idle, count = self._idle(live)
        following = text.op(f"load i64, ptr {self.next}")
        more = text.op(f"icmp slt i64 {following}, %hi")
        enough = text.op(f"icmp uge i64 {count}, {max(2, f.width * f.vectors // IDLE_PART)}")
        refills = text.op(f"and i1 {more}, {enough}")
        nobody = text.op(f"xor i1 {anybody}, true")
        text.branch(text.op(f"or i1 {refills}, {nobody}"), service, step)
        text.begin(service)
        self._service(live, idle, count, following, more, header, done)
        text.begin(step)
        with f.region(Mask(tuple(live))):
            self._step(live)
        poll(f)
        text.jump(header)
        text.begin(done)

    def _make_slots(self) -> None:
        f = self.f
        self.slots.add(self.index, f.vector.type(self.index.dtype))
        for key in (_HELD, _LIVE):
            self.slots.add(key, f.vector.bits)
        carries = self.body.params if self.is_for else self.params
        for var in (*carries, *self.kept):
            self.slots.add(var, f.vector.type(var.dtype))
        self.next = self.text.slot("i64", 8)
        self.text.do(f"store i64 %lo, ptr {self.next}")

    def _idle(self, live: list[str]) -> tuple[list[str], str]:
        """Returns masks of idle lanes, and their number as i64."""
        f, text = self.f, self.text
        true = f.lanes.splat("i1", "true")
        idle = [text.op(f"xor {f.vector.bits} {m}, {true}") for m in live]
        total = f.active(idle[0])
        for mask in idle[1:]:
            total = text.op(f"add i64 {total}, {f.active(mask)}")
        return idle, total

    # Bindings of variables

    def _bind(self, var: Var, registers: list[str]) -> None:
        self.f.env[var] = Value(var.dtype, vectors=registers)

    def _bind_lanes(self) -> None:
        """Binds each lane's element and the values computed for it before the loop."""
        for var in (self.index, *self.kept):
            self._bind(var, self.slots.load(var))

    # Blocks

    def _service(
        self, live: list[str], idle: list[str], count: str, following: str, more: str, header: str, done: str
    ) -> None:
        f, text = self.f, self.text
        finish, fill_or_not, fill, check = map(text.fresh_label, ("finish", "next", "fill", "check"))
        bits = f.vector.bits
        finished = tuple(text.op(f"and {bits} {h}, {i}") for h, i in zip(self.slots.load(_HELD), idle, strict=True))
        self.slots.store(_HELD, live)
        text.branch(f.any(finished), finish, fill_or_not)
        text.begin(finish)
        with f.region(Mask(finished)):
            self._bind_lanes()
            for out, param in zip(self.refill.loop.outvars, self.params, strict=True):
                self._bind(out, self.slots.load(param))
            f.emit(self.refill.after)
        text.jump(fill_or_not)
        text.begin(fill_or_not)
        text.branch(more, fill, check)
        text.begin(fill)
        with f.region():
            self._fill(idle, count, following)
        text.jump(check)
        text.begin(check)
        held = f.any(self.slots.load(_HELD))
        left = text.op(f"icmp slt i64 {text.op(f'load i64, ptr {self.next}')}, %hi")
        text.branch(text.op(f"or i1 {held}, {left}"), header, done)

    def _fill(self, idle: list[str], count: str, following: str) -> None:
        """Assigns the next elements to idle lanes and evaluates the equations before the loop for those."""
        f, text, o = self.f, self.text, self.f.vector
        ranks = self._ranks(idle)
        left = f.scalar.intrinsic("smin", "i64", text.op(f"sub i64 %hi, {following}"), str(f.width * f.vectors))
        limit = f.spread("i32", text.op(f"trunc i64 {left} to i32"))
        i32 = f.lanes.of("i32")
        below = [text.op(f"icmp slt {i32} {r}, {limit}") for r in ranks]
        fills = tuple(text.op(f"and {o.bits} {i}, {b}") for i, b in zip(idle, below, strict=True))
        text.do(f"store i64 {text.op(f'add i64 {following}, {count}')}, ptr {self.next}")
        kind = REGISTER[self.index.dtype]
        first = f.spread(kind, following if kind == "i64" else text.op(f"trunc i64 {following} to {kind}"))
        wide = [r if kind == "i32" else o.cast("zext", "i32", r, kind) for r in ranks]
        with f.region(Mask(fills)):
            self._bind(self.index, [o.binary("add", o.type(self.index.dtype), first, w) for w in wide])
            f.emit([e for e in self.refill.before if not self._is_shared(e)])
            state = {v: f.vectors_of(v) for v in (self.index, *self.kept)}
            state |= {p: f.vectors_of(a) for p, a in zip(self.params, self.initial, strict=True)}
            if self.is_for:
                state[self.body.params[0]] = f.vectors_of(self.refill.loop.invars[0])
            entered = self._test(state, Mask(fills))
        for var, registers in state.items():
            old = self.slots.load(var)
            self.slots.store(var, f.blended(Mask(fills), var.dtype, registers, old))
        for key, masks in ((_LIVE, entered), (_HELD, fills)):
            old = self.slots.load(key)
            self.slots.store(key, [text.op(f"or {o.bits} {a}, {b}") for a, b in zip(old, masks, strict=True)])

    def _ranks(self, idle: list[str]) -> list[str]:
        """Returns the number of idle lanes before each lane, as vectors of i32 that are valid in idle lanes."""
        f, text = self.f, self.text
        i32, bits = f.lanes.of("i32"), f.vector.bits
        numbers = text.slot(i32)
        text.do(f"store {i32} {f.lanes.range('i32')}, ptr {numbers}")
        symbol = f"llvm.masked.expandload.v{f.width}i32"
        text.module.declare(symbol, i32, f"ptr, {bits}, {i32}")
        ranks: list[str] = []
        before = ""
        for mask in idle:
            rank = text.op(f"call {i32} @{symbol}(ptr {numbers}, {bits} {mask}, {i32} zeroinitializer)")
            if before:
                rank = text.op(f"add {i32} {rank}, {f.spread('i32', before)}")
            ranks.append(rank)
            count = text.op(f"trunc i64 {f.active(mask)} to i32")
            before = text.op(f"add i32 {before}, {count}") if before else count
        return ranks

    def _test(self, state: dict[Var, list[str]], mask: Mask) -> tuple[str, ...]:
        """Returns the lanes that run another iteration with the given carries."""
        f = self.f
        if self.is_for:
            k = self.body.params[0]
            kind = f.vector.type(k.dtype)
            ends = f.vectors_of(self.refill.loop.bounds[1])
            conditions = [f.vector.compare("icmp slt", kind, a, b) for a, b in zip(state[k], ends, strict=True)]
        else:
            test = self.refill.loop.blocks[0]
            for param, carried in zip(test.params, self.params, strict=True):
                self._bind(param, state[carried])
            f.emit(test.eqns)
            conditions = f.vectors_of(test.results[0])
        return f.narrowed(mask, conditions)

    def _step(self, live: list[str]) -> None:
        """Emits one iteration of the loop in the lanes that are in it."""
        f, mask = self.f, Mask(tuple(live))
        self._bind_lanes()
        old = {p: self.slots.load(p) for p in self.body.params}
        for param, registers in old.items():
            self._bind(param, registers)
        f.emit(self.body.eqns)
        state: dict[Var, list[str]] = {}
        for param, result in zip(self.params, self.body.results, strict=True):
            state[param] = f.blended(mask, param.dtype, f.vectors_of(result), old[param])
        if self.is_for:
            k = self.body.params[0]
            one = f.vector.constant(1, k.dtype)
            state[k] = [f.vector.binary("add", f.vector.type(k.dtype), r, one) for r in old[k]]
        stays = self._test(state, mask)
        for param, registers in state.items():
            self.slots.store(param, registers)
        self.slots.store(_LIVE, stays)
