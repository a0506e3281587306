"""From a task to the text of an LLVM module: the driver.

The module exports `qd_task(refs, lo, hi)`, which runs iterations lo .. hi-1, and `qd_bounds(refs, out)`, which stores
the task's start and stop. `refs` points to data pointers in the order of `TaskCode.refs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm import atomics, control, elementary, memory
from lowering.llvm.arithmetic import RULES
from lowering.llvm.facts import MATHS, TaskFacts
from lowering.llvm.frame import Frame
from lowering.llvm.text import Module, Text
from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import ALL, Mask, Value
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from lowering.llvm.ops import Ops
    from lowering.llvm.target import Target
    from qdtrace.ir.program import Atom, Block, Eqn, Task

TWICE_COST = 100
"""Bodies without loops up to this cost are emitted twice: full vectors without masks, and one masked rest."""
LIGHT_BODY = 40
"""Bodies without loops up to this cost get several vectors a step."""
LONG_BODY = 500
"""Innermost loop bodies above this cost get one vector a step."""
PRIVATE_BUDGET = 1 << 18
"""Bytes of private memory that the lanes of one step may take on the stack."""


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """What the user may choose."""

    fast_math: bool = True
    vectors: int | None = None
    """Vectors side by side; None lets the number of live values decide."""


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


def emit_task(task: Task, target: Target, options: EmitOptions = EmitOptions()) -> TaskCode:
    """The code of a task for a target."""
    facts = TaskFacts(task)
    width, vectors, reason = choose_shape(facts, target, options)
    module = Module()
    aliases = _alias_metadata(facts, module)
    task_text = _Function(Frame(Text(module), facts, target, width, vectors, options.fast_math), aliases).task()
    bounds_text = _Function(Frame(Text(module), facts, target, 1, 1, options.fast_math), aliases).bounds()
    return TaskCode(module.render([task_text, bounds_text]), facts.refs, facts.cost, width * vectors, reason)


def choose_shape(facts: TaskFacts, target: Target, options: EmitOptions) -> tuple[int, int, str]:
    """Lanes of a vector, vectors side by side, and the reason."""
    if facts.task.kind == "serial" or facts.task.index is None:
        return 1, 1, "serial task: one thread, scalar"
    if not target.vector_bits:
        return 1, 1, "target without vectors: scalar"
    width = max(2, target.vector_bits // facts.element_bits)
    while width > 2 and facts.private_bytes * width > PRIVATE_BUDGET:
        width //= 2
    pressure = facts.pressure
    if options.vectors is not None:
        vectors = options.vectors
    else:
        vectors = _side_by_side(facts, target, pressure)
        while vectors > 1 and facts.private_bytes * width * vectors > PRIVATE_BUDGET:
            vectors //= 2
    parts = [f"{width} lanes of {facts.element_bits} bits x {vectors} vectors", f"{pressure} live values"]
    if facts.divergent_loops:
        parts.append("divergent loops under masks")
    return width, vectors, ", ".join(parts)


def _side_by_side(facts: TaskFacts, target: Target, pressure: int) -> int:
    """Vectors side by side hide the latency of dependent operations.

    Measured: two pay even when their values do not quite fit the registers (LLVM orders the operations anew); four
    pay when they fit and no lane waits long for others. Long loop bodies have enough independent operations of their
    own.
    """
    if not facts.has_loops:
        # a sum in registers is a chain of dependent additions; without one, two only save loop overhead
        return 4 if facts.reductions and facts.cost <= LIGHT_BODY else 2 if facts.cost <= LIGHT_BODY else 1
    if facts.loop_body_cost > LONG_BODY:
        return 1
    if 4 * pressure <= target.registers and all(map(control.is_quiet, facts.divergent_loops)):
        return 4
    return 2 if 2 * pressure <= 3 * target.registers else 1


class _Function:
    """Emits one function of a task."""

    def __init__(self, frame: Frame, aliases: tuple[dict[Var, str], str]) -> None:
        self.frame = frame
        self.aliases = aliases
        self.facts = frame.facts
        self.target = frame.target
        self.text = frame.text

    def _attributes(self) -> str:
        return f'nounwind "prefer-vector-width"="{max(128, self.target.vector_bits)}"'

    def _open(self, needed: set[Var]) -> None:
        """Loads the pointers and evaluates the part of the head that is needed."""
        f, text = self.frame, self.text
        aliases, constant = self.aliases
        for n, ref in enumerate(self.facts.refs):
            slot = text.op(f"getelementptr ptr, ptr %refs, i64 {n}")
            pointer = text.op(f"load ptr, ptr {slot}, align 8{constant}")
            invariant = "" if ref in self.facts.written else constant
            f.globals[ref] = memory.Global(pointer, ref.type, aliases[ref], invariant)  # type: ignore[arg-type]
        for eqn in _slice(self.facts.task, needed):
            emit_eqn(f, eqn, head=True)

    def bounds(self) -> str:
        """`qd_bounds`."""
        task, text = self.facts.task, self.text
        atoms: list[Atom] = [] if task.kind == "serial" else [task.start, task.stop]
        self._open({a for a in atoms if isinstance(a, Var)})
        values = [_wide(self.frame, a) for a in atoms] or ["0", "1"]
        text.do(f"store i64 {values[0]}, ptr %out")
        text.do(f"store i64 {values[1]}, ptr {text.op('getelementptr i64, ptr %out, i64 1')}")
        text.do("ret void")
        return text.render(f"define void @qd_bounds(ptr noalias %refs, ptr noalias %out) {self._attributes()}")

    def task(self) -> str:
        """`qd_task`."""
        f, text, task = self.frame, self.text, self.facts.task
        self._open(_needed(task))
        atomics.open_accumulators(f)
        if task.kind == "serial":
            emit_block(f, task.body)
        elif f.is_scalar or (not self.facts.has_loops and self.facts.cost <= TWICE_COST):
            self._full_vectors_then_rest()
        else:
            self._masked_vectors()
        atomics.close_accumulators(f)
        text.do("ret void")
        return text.render(f"define void @qd_task(ptr noalias %refs, i64 %lo, i64 %hi) {self._attributes()}")

    def _iteration(self, index: str, mask: Mask) -> None:
        f, task = self.frame, self.facts.task
        assert task.index is not None
        with f.region(mask):
            f.bind_index(task.index, index)
            emit_block(f, task.body)

    def _loop(self, stop: str, masked: bool) -> None:
        """Steps of all lanes from %lo while below `stop`."""
        text, step = self.text, self.frame.width * self.frame.vectors
        loop, done, before = text.fresh_label("step"), text.fresh_label("end"), text.label
        text.branch(text.op(f"icmp slt i64 %lo, {stop}"), loop, done)
        text.begin(loop)
        index, hole = text.name(), text.hole()
        self._iteration(index, self._rest(index) if masked else ALL)
        following = text.op(f"add nsw i64 {index}, {step}")
        again = text.op(f"icmp slt i64 {following}, {stop}")
        text.fill(hole, f"{index} = phi i64 [ %lo, %{before} ], [ {following}, %{text.label} ]")
        text.branch(again, loop, done)
        text.begin(done)

    def _rest(self, index: str) -> Mask:
        """Lanes below %hi."""
        f, text, i32 = self.frame, self.text, self.frame.lanes.of("i32")
        text.module.declare("llvm.smin.i64", "i64", "i64, i64")
        left = text.op(f"sub i64 %hi, {index}")
        left = text.op(f"call i64 @llvm.smin.i64(i64 {left}, i64 {f.width * f.vectors})")
        left = text.op(f"trunc i64 {left} to i32")
        single = text.op(f"insertelement {i32} poison, i32 {left}, i64 0")
        limit = text.op(f"shufflevector {i32} {single}, {i32} poison, {i32} zeroinitializer")
        return Mask(tuple(text.op(f"icmp slt {i32} {f.steps('i32', v)}, {limit}") for v in range(f.vectors)))

    def _masked_vectors(self) -> None:
        self._loop("%hi", masked=True)

    def _full_vectors_then_rest(self) -> None:
        text, step = self.text, self.frame.width * self.frame.vectors
        if step == 1:
            self._loop("%hi", masked=False)
            return
        count = text.op("sub i64 %hi, %lo")
        whole = text.op(f"and i64 {count}, {-step}")
        stop = text.op(f"add i64 %lo, {whole}")
        self._loop(stop, masked=False)
        rest, done = text.fresh_label("rest"), text.fresh_label("finish")
        text.branch(text.op(f"icmp slt i64 {stop}, %hi"), rest, done)
        text.begin(rest)
        self._iteration(stop, self._rest(stop))
        text.jump(done)
        text.begin(done)


def _alias_metadata(facts: TaskFacts, module: Module) -> tuple[dict[Var, str], str]:
    """What is attached to accesses of each reference, and to loads of constant memory.

    References never overlap: each written one is a scope of its own, that accesses of the others are not in.
    """
    constant = module.node("!{}")
    domain = module.node(f"distinct !{{!{len(module.metadata)}}}")
    written = [r for r in facts.refs if r in facts.written]
    scopes = {r: module.node(f"distinct !{{!{len(module.metadata)}, {domain}}}") for r in written}
    aliases = {}
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


def _slice(task: Task, needed: set[Var]) -> list[Eqn]:
    """The equations of the head on which the variables depend (and its effects)."""
    kept: list[Eqn] = []
    for eqn in reversed(task.head):
        if not eqn.outvars or not needed.isdisjoint(eqn.outvars):
            needed.update(used_vars(eqn))
            kept.append(eqn)
    return kept[::-1]


# Equations


def emit_block(f: Frame, block: Block) -> None:
    """The equations of a block under the current mask."""
    for eqn in block.eqns:
        emit_eqn(f, eqn)


def emit_eqn(f: Frame, eqn: Eqn, *, head: bool = False) -> None:
    """One equation."""
    name = eqn.primitive.name
    special = _SPECIAL.get(name)
    if special is not None:
        special(f, eqn)
    elif name == "cell":
        memory.allocate(f, eqn, shared=head)
    elif name == "select":
        _select(f, eqn)
    else:
        _elementwise(f, eqn)


def _elementwise(f: Frame, eqn: Eqn) -> None:
    name, atoms, params = eqn.primitive.name, eqn.invars, eqn.params
    d, out = atoms[0].dtype, eqn.outvars[0]
    if name in MATHS:

        def rule(o: Ops, d, values, params, atoms) -> str:
            return elementary.call(o, name, d, values)

    else:
        rule = RULES[name]
    if f.is_uniform(out):
        scalars = [f.scalar_of(a) for a in atoms]
        f.env[out] = Value(out.dtype, scalar=rule(f.scalar, d, scalars, params, atoms))
        return
    vectors = []
    for v in range(f.vectors):
        vectors.append(rule(f.vector, d, [f.vector_of(a, v) for a in atoms], params, atoms))
    f.env[out] = Value(out.dtype, vectors=vectors)


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


_SPECIAL = {
    "load": memory.load, "store": memory.store, "accum": atomics.accum, "atomic": atomics.atomic,
    "if": lambda f, eqn: control.emit_if(f, eqn, emit_block),
    "for": lambda f, eqn: control.emit_for(f, eqn, emit_block),
    "while": lambda f, eqn: control.emit_while(f, eqn, emit_block),
}  # fmt: skip
