"""From a task to the text of an LLVM module: the driver.

The module exports `qd_task(refs, lo, hi, slot)`, which runs iterations lo .. hi-1, and `qd_bounds(refs, out)`, which
stores the task's start and stop. `refs` points to data pointers in the order of `TaskCode.refs`. A task that reduces
leaves its results in the slot; `qd_combine(refs, slots, count)` brings those of all chunks into memory. Where a task
accumulates into large arrays, the word after the pointers is not 0 when nobody else sees them; `copies` has `qd_merge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm import atomics, checks, control, elementary, memory, private
from lowering.llvm.addresses import Global
from lowering.llvm.arithmetic import RULES
from lowering.llvm.copies import emit_merge, plan_copies
from lowering.llvm.facts import TaskFacts
from lowering.llvm.frame import Frame
from lowering.llvm.options import DEFAULTS, EmitOptions
from lowering.llvm.partials import emit_combine, plan_partials
from lowering.llvm.quotients import emit_quotient, note_divisor
from lowering.llvm.reductions import close_reductions, open_reductions
from lowering.llvm.refill import emit_refilled, find_refill
from lowering.llvm.shape import choose_shape
from lowering.llvm.spread import close_counts, driver, open_counts
from lowering.llvm.text import Module, Text
from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import ALL, Mask, Value
from qdtrace.ir.primitives import FUNCTIONS, Effect
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowering.llvm.arithmetic import Rule
    from lowering.llvm.copies import Copies
    from lowering.llvm.partials import Partials
    from lowering.llvm.refill import Refill
    from lowering.llvm.rows import Row
    from lowering.llvm.target import Target
    from qdtrace.ir.program import Atom, Block, Eqn, Task

TWICE_COST = 100
"""Bodies without loops up to this cost are emitted twice: full vectors without masks, and one masked rest."""


@dataclass(frozen=True, slots=True)
class TaskCode:
    """The code of one task."""

    text: str
    """An LLVM IR module."""
    refs: tuple[Var, ...]
    """References it takes, in order."""
    cost: int
    """Estimated scalar operations of one iteration."""
    lanes: int
    """Iterations a vector step takes."""
    reason: str
    """How it was made, and why."""
    slot_bytes: int
    """Memory for the partial results of a chunk; 0 when there is no `qd_combine`."""
    updates: int
    """Accumulations of one iteration that need locks, where the word after the references does not say otherwise."""
    copies: Copies
    """Arrays of which `qd_merge` merges copies."""


def emit_task(task: Task, target: Target, options: EmitOptions = DEFAULTS) -> TaskCode:
    """The code of a task for a target."""
    facts = TaskFacts(task)
    shape = choose_shape(facts, target, options.vectors)
    facts.keep_to(shape.row)
    partials = plan_partials(facts, shape.width)
    refill = find_refill(facts, target, reduces=bool(partials.nbytes)) if shape.width > 1 else None
    module = Module()

    def function(width: int, vectors: int, of: TaskFacts = facts) -> _Function:
        return _Function(Frame(Text(module), of, target, width, vectors, options.fast_math), aliases)

    in_lanes = facts
    if refill is not None:
        in_lanes = TaskFacts(task)
        in_lanes.out_of_step(refill.in_lanes)
    aliases = _alias_metadata(facts, module)
    whole = (shape.width, shape.vectors)
    if refill is None or not refill.measures:
        functions = [function(*whole, in_lanes).task(refill, partials)]
    else:
        probe, masked = function(*whole), function(*whole)
        functions = [
            probe.task(None, partials, "qd_probe", refill.loop),
            masked.task(None, partials, "qd_masked"),
            function(*whole, in_lanes).task(refill, partials, "qd_refilled"),
            driver(facts, in_lanes, module, shape, refill, probe.attributes()),
        ]
    functions.append(function(1, 1).bounds())
    if partials.nbytes:
        functions.append(function(shape.width, 1).combine(partials))
    copies = plan_copies(facts)
    if copies.nbytes:
        functions.append(function(shape.width, 1).merge(copies))
    text, lanes = module.render(functions), shape.width * shape.vectors
    how = "under masks" if refill is None else "with lane refill"
    if refill is not None and refill.measures:
        how = "under masks or with lane refill, as trip counts spread"
    reason = shape.reason.replace("under masks", how)
    reason += _reduces(facts)
    return TaskCode(text, facts.refs, facts.cost, lanes, reason, partials.nbytes, facts.updates, copies)


def _reduces(facts: TaskFacts) -> str:
    large = "arrays with copies a thread or locks" if plan_copies(facts).nbytes else "arrays with locks"
    parts = [
        (len(facts.reductions), "sums in registers"),
        (len(facts.copied), "arrays with copies a chunk"),
        (len(facts.shared), large),
    ]
    return "".join(f", {count} {what}" for count, what in parts if count)


class _Function:
    """Emits one function of a task."""

    def __init__(self, frame: Frame, aliases: tuple[dict[Var, str], str]) -> None:
        self.frame = frame
        self.aliases = aliases
        self.facts = frame.facts
        self.target = frame.target
        self.text = frame.text

    def attributes(self) -> str:
        """What LLVM is told of the function."""
        return f'nounwind "prefer-vector-width"="{max(128, self.target.vector_bits)}"'

    def _open(self, needed: set[Var], *, checks: bool = False) -> None:
        """Loads the pointers and evaluates the part of the head that is needed, or checked."""
        f, text = self.frame, self.text
        aliases, constant = self.aliases
        for n, ref in enumerate(self.facts.refs):
            slot = text.op(f"getelementptr ptr, ptr %refs, i64 {n}")
            pointer = text.op(f"load ptr, ptr {slot}, align 8{constant}")
            invariant = "" if ref in self.facts.written else constant
            f.globals[ref] = Global(pointer, ref.type, aliases[ref], invariant)  # type: ignore[arg-type]
        for eqn in _slice(self.facts.task, needed, checks):
            emit_eqn(f, eqn, head=True)

    def bounds(self) -> str:
        """`qd_bounds`."""
        task, text = self.facts.task, self.text
        atoms: list[Atom] = [] if task.kind == "serial" else [task.start, task.stop]
        self.frame.leave = "store [2 x i64] zeroinitializer, ptr %out\n  ret void"
        self._open({a for a in atoms if isinstance(a, Var)}, checks=True)
        values = [_wide(self.frame, a) for a in atoms] or ["0", "1"]
        text.do(f"store i64 {values[0]}, ptr %out")
        text.do(f"store i64 {values[1]}, ptr {text.op('getelementptr i64, ptr %out, i64 1')}")
        text.do("ret void")
        return text.render(f"define void @qd_bounds(ptr noalias %refs, ptr noalias %out) {self.attributes()}")

    def combine(self, partials: Partials) -> str:
        """`qd_combine`."""
        self._open({a for p in partials.parts for a in p.indices or () if isinstance(a, Var)})
        checks.leave_if_failed(self.frame)
        emit_combine(self.frame, partials)
        self.text.do("ret void")
        header = "define void @qd_combine(ptr noalias %refs, ptr noalias %slots, i64 %count)"
        return self.text.render(f"{header} {self.attributes()}")

    def merge(self, copies: Copies) -> str:
        """`qd_merge`."""
        self.text.do("%refs = load ptr, ptr %job")
        self._open(set())
        emit_merge(self.frame, copies)
        self.text.do("ret void")
        header = "define void @qd_merge(ptr noalias %job, i64 %lo, i64 %hi, ptr %slot)"
        return self.text.render(f"{header} {self.attributes()}")

    def task(
        self, refill: Refill | None, partials: Partials, name: str = "qd_task", counted: Eqn | None = None
    ) -> str:
        """`qd_task`, or one of the ways to do what it does; one may count the iterations of a loop."""
        f, text, task = self.frame, self.text, self.facts.task
        f.partials = partials.parts
        # Bounds that have to be asked for were found, and checked, before: a chunk may see what others have stored.
        asked = any(isinstance(a, Var) for a in (task.start, task.stop)) and task.kind != "serial"
        self._open(_needed(task), checks=not asked)
        if self.facts.shared:
            word = text.op(f"getelementptr i64, ptr %refs, i64 {len(self.facts.refs)}")
            f.alone = text.op(f"icmp ne i64 {text.op(f'load i64, ptr {word}, align 8{self.aliases[1]}')}, 0")
        open_reductions(f)
        f.counts = open_counts(f, counted) if counted is not None else None
        if task.kind == "serial":
            emit_block(f, task.body)
        elif refill is not None:
            f.neighbours = False
            emit_refilled(f, refill, emit_eqns)
        else:
            twice = f.is_scalar or (not self.facts.has_loops and self.facts.cost <= TWICE_COST)
            steps = self._full_vectors_then_rest if twice else self._masked_vectors
            if self.facts.row is None:
                steps("%lo", "%hi")
            else:
                self._rows(self.facts.row, steps)
        close_reductions(f)
        if f.counts is not None:
            close_counts(f, f.counts)
        text.do("ret void")
        linkage = "" if name == "qd_task" else "internal "
        more = ", ptr noalias %counts" if counted is not None else ""
        header = f"define {linkage}void @{name}(ptr noalias %refs, i64 %lo, i64 %hi, ptr noalias %slot{more})"
        return text.render(f"{header} {self.attributes()}")

    def _iteration(self, index: str, mask: Mask) -> None:
        f, task = self.frame, self.facts.task
        assert task.index is not None
        with f.region(mask):
            f.bind_index(task.index, index)
            emit_block(f, task.body)

    def _loop(self, start: str, stop: str, masked: bool) -> None:
        """Steps of all lanes from `start` while below `stop`."""
        text, step = self.text, self.frame.width * self.frame.vectors
        loop, done = text.fresh_label("step"), text.fresh_label("end")
        text.branch(text.op(f"icmp slt i64 {start}, {stop}"), loop, done)
        before = text.label
        text.begin(loop)
        index, hole = text.name(), text.hole()
        self._iteration(index, self._rest(index, stop) if masked else ALL)
        following = text.op(f"add nsw i64 {index}, {step}")
        again = text.op(f"icmp slt i64 {following}, {stop}")
        text.fill(hole, f"{index} = phi i64 [ {start}, %{before} ], [ {following}, %{text.label} ]")
        text.branch(again, loop, done)
        text.begin(done)

    def _rest(self, index: str, stop: str) -> Mask:
        """Lanes below `stop`."""
        f, text, i32 = self.frame, self.text, self.frame.lanes.of("i32")
        text.module.declare("llvm.smin.i64", "i64", "i64, i64")
        left = text.op(f"sub i64 {stop}, {index}")
        left = text.op(f"call i64 @llvm.smin.i64(i64 {left}, i64 {f.width * f.vectors})")
        left = text.op(f"trunc i64 {left} to i32")
        single = text.op(f"insertelement {i32} poison, i32 {left}, i64 0")
        limit = text.op(f"shufflevector {i32} {single}, {i32} poison, {i32} zeroinitializer")
        return Mask(tuple(text.op(f"icmp slt {i32} {f.steps('i32', v)}, {limit}") for v in range(f.vectors)))

    def _masked_vectors(self, start: str, stop: str) -> None:
        self._loop(start, stop, masked=True)

    def _full_vectors_then_rest(self, start: str, stop: str) -> None:
        text, step = self.text, self.frame.width * self.frame.vectors
        if step == 1:
            self._loop(start, stop, masked=False)
            return
        count = text.op(f"sub i64 {stop}, {start}")
        if step & (step - 1):
            whole = text.op(f"sub i64 {count}, {text.op(f'srem i64 {count}, {step}')}")
        else:
            whole = text.op(f"and i64 {count}, {-step}")
        full = text.op(f"add i64 {start}, {whole}")
        self._loop(start, full, masked=False)
        rest, done = text.fresh_label("rest"), text.fresh_label("finish")
        text.branch(text.op(f"icmp slt i64 {full}, {stop}"), rest, done)
        text.begin(rest)
        self._iteration(full, self._rest(full, stop))
        text.jump(done)
        text.begin(done)

    def _rows(self, row: Row, steps: Callable[[str, str], None]) -> None:
        """Row after row from %lo to %hi; the first and the last may be parts."""
        f, text = self.frame, self.text
        loop, done, before = text.fresh_label("row"), text.fresh_label("rows"), text.label
        text.branch(text.op("icmp slt i64 %lo, %hi"), loop, done)
        text.begin(loop)
        start, hole = text.name(), text.hole()
        with f.region():
            f.row_number = text.op(f"udiv i64 {text.op(f'add i64 {start}, {row.offset}')}, {row.length}")
            following = text.op(f"mul i64 {text.op(f'add i64 {f.row_number}, 1')}, {row.length}")
            end = text.op(f"sub i64 {following}, {row.offset}")
            text.module.declare("llvm.smin.i64", "i64", "i64, i64")
            stop = text.op(f"call i64 @llvm.smin.i64(i64 {end}, i64 %hi)")
            steps(start, stop)
        text.fill(hole, f"{start} = phi i64 [ %lo, %{before} ], [ {stop}, %{text.label} ]")
        text.branch(text.op(f"icmp slt i64 {stop}, %hi"), loop, done)
        text.begin(done)


def _alias_metadata(facts: TaskFacts, module: Module) -> tuple[dict[Var, str], str]:
    """What is attached to accesses of each reference, and to loads of constant memory.

    References never overlap: each written one is a scope of its own, that accesses of the others are not in.
    """
    constant = module.node("!{}")
    domain = module.node(f"distinct !{{!{len(module.metadata)}}}")
    written = [r for r in facts.refs if r in facts.written]
    scopes = {r: module.node(f"distinct !{{!{len(module.metadata)}, {domain}}}") for r in written}
    aliases: dict[Var, str] = {}
    for ref in facts.refs:
        own = scopes.get(ref)
        others = [name for name in scopes.values() if name != own]
        text = f", !alias.scope {module.node(f'!{{{own}}}')}" if own else ""
        if others:
            text += f", !noalias {module.node('!{' + ', '.join(others) + '}')}"
        aliases[ref] = text
    return aliases, f", !invariant.load {constant}"


def _wide(f: Frame, atom: Atom) -> str:
    return f.scalar.cast("sext", REGISTER[atom.dtype], f.scalar_of(atom), "i64")


def _needed(task: Task) -> set[Var]:
    needed = {a for a in task.body.results if isinstance(a, Var)}
    for eqn in task.body.eqns:
        needed.update(used_vars(eqn))
    return needed


def _slice(task: Task, needed: set[Var], checks: bool) -> list[Eqn]:
    """The equations of the head on which the variables depend, and its effects; those of checks when asked for."""
    kept: list[Eqn] = []
    for eqn in reversed(task.head):
        wanted = checks if Effect.CHECK in eqn.primitive.effects else not eqn.outvars
        if wanted or not needed.isdisjoint(eqn.outvars):
            needed.update(used_vars(eqn))
            kept.append(eqn)
    return kept[::-1]


# Equations


def emit_block(f: Frame, block: Block) -> None:
    """The equations of a block under the current mask."""
    emit_eqns(f, block.eqns)


def emit_eqns(f: Frame, eqns: Sequence[Eqn]) -> None:
    """Equations one after another, all of what they store with them."""
    here = f.text.here()
    for eqn in eqns:
        if eqn.primitive.structured:
            f.pending.settle(f, None)
            f.updates.settle(f)
        emit_eqn(f, eqn)
        here = f.text.cut(here)
    f.pending.settle(f, None)
    f.updates.settle(f)


def emit_eqn(f: Frame, eqn: Eqn, *, head: bool = False) -> None:
    """One equation."""
    name = eqn.primitive.name
    special = _SPECIAL.get(name)
    if special is not None:
        special(f, eqn)
    elif name == "cell":
        private.allocate(f, eqn, shared=head)
    elif name == "select":
        _select(f, eqn)
    else:
        _elementwise(f, eqn)
        if name == "div":
            note_divisor(f, eqn.outvars[0])


def _elementwise(f: Frame, eqn: Eqn) -> None:
    name, atoms, params = eqn.primitive.name, eqn.invars, eqn.params
    d, out = atoms[0].dtype, eqn.outvars[0]
    if f.facts.row is not None and name in ("div", "rem") and _of_row(f, eqn, f.facts.row):
        return
    maths: Rule = lambda o, d, values, params, atoms: elementary.call(o, name, d, values)  # noqa: E731
    rule = maths if name in FUNCTIONS else RULES[name]
    if f.is_uniform(out):
        scalars = [f.scalar_of(a) for a in atoms]
        f.env[out] = Value(out.dtype, scalar=rule(f.scalar, d, scalars, params, atoms))
        return
    vectors = [rule(f.vector, d, [f.vector_of(a, v) for a in atoms], params, atoms) for v in range(f.vectors)]
    f.env[out] = Value(out.dtype, vectors=vectors)


def _of_row(f: Frame, eqn: Eqn, row: Row) -> bool:
    """The quotient and the remainder of the task's index by the length of a row, without a division."""
    out, form = eqn.outvars[0], f.facts.forms.of(eqn.outvars[0])
    kind = REGISTER[out.dtype]
    if out in row.uniform and not form.constant:
        f.env[out] = Value(out.dtype, scalar=f.scalar.cast("trunc", "i64", f.row_number, kind))
        return True
    if form.terms != {f.facts.task.index: 1, row.quotient: -row.length} or not _is_index(f, eqn.invars[0], row):
        return False
    type_ = f.lanes.of(kind)
    first = f.text.op(f"mul i64 {f.row_number}, {row.length}")
    spread = f.spread(kind, f.scalar.cast("trunc", "i64", first, kind))
    f.env[out] = f.each(out.dtype, lambda v: f.vector.binary("sub", type_, f.vector_of(eqn.invars[0], v), spread))
    return True


def _is_index(f: Frame, atom: Atom, row: Row) -> bool:
    form = f.facts.forms.of(atom)
    return form.terms == {f.facts.task.index: 1} and form.constant == row.offset


def _select(f: Frame, eqn: Eqn) -> None:
    condition, a, b = eqn.invars
    out = eqn.outvars[0]
    if f.is_uniform(out):
        scalars = (f.scalar_of(x) for x in (condition, a, b))
        chosen, yes, no = scalars
        f.env[out] = Value(out.dtype, scalar=f.scalar.select(chosen, f.scalar.type(out.dtype), yes, no))
    elif isinstance(condition, Literal) or f.is_uniform(condition):
        kind, bit = f.vector.type(out.dtype), f.scalar_of(condition)
        f.env[out] = f.each(
            out.dtype, lambda v: f.text.op(f"select i1 {bit}, {kind} {f.vector_of(a, v)}, {kind} {f.vector_of(b, v)}")
        )
    else:
        kind = f.vector.type(out.dtype)
        f.env[out] = f.each(
            out.dtype, lambda v: f.vector.select(f.vector_of(condition, v), kind, f.vector_of(a, v), f.vector_of(b, v))
        )


def _load(f: Frame, eqn: Eqn) -> None:
    ref, out = eqn.invars[0], eqn.outvars[0]
    if ref in f.privates:
        f.env[out] = private.load_private(f, f.privates[ref], eqn.invars[1:])
    else:
        memory.load(f, eqn)


def _store(f: Frame, eqn: Eqn) -> None:
    ref, value = eqn.invars[0], eqn.invars[1]
    if ref in f.privates:
        private.store_private(f, f.privates[ref], f.value(value), eqn.invars[2:])
    else:
        memory.store(f, eqn)


_SPECIAL: dict[str, Callable[[Frame, Eqn], None]] = {
    "quotient": emit_quotient, "load": _load, "store": _store, "accum": atomics.accum, "atomic": atomics.atomic,
    "bound": checks.bound, "check": checks.check,
    "if": lambda f, eqn: control.emit_if(f, eqn, emit_block),
    "for": lambda f, eqn: control.emit_for(f, eqn, emit_block),
    "while": lambda f, eqn: control.emit_while(f, eqn, emit_block),
}  # fmt: skip
