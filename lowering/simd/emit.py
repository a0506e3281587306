"""The driver of emission: turns a task into the text of an LLVM module.

The module exports `qd_task(refs, lo, hi, slot)`, which runs iterations lo .. hi-1, and `qd_bounds(refs, out)`, which
stores the task's start and stop. `refs` points to data pointers in the order of `TaskCode.refs`. A task that reduces
leaves its results in the slot; `qd_combine(refs, slots, count)` combines those of all chunks with memory. If a task
accumulates into large arrays, the word after the pointers is not 0 if no other thread sees them, and `qd_merge` merges
copies of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import checks
from lowering.llvm.heap import ON_STACK, allocating
from lowering.llvm.options import DEFAULTS, EmitOptions
from lowering.llvm.parts import is_long
from lowering.llvm.polls import open_polls
from lowering.llvm.prologue import alias_metadata, head_for, open_function
from lowering.llvm.text import Module, Text
from lowering.llvm.types import REGISTER
from lowering.plan.renewal import large, sources_of
from lowering.simd.accumulation.rules import close_accumulators, open_accumulators
from lowering.simd.accumulation.slots import emit_combine
from lowering.simd.accumulation.thread_copies import emit_merge
from lowering.simd.divergence.blocks import KEPT_BYTES, define_rows_in_parts, emit_blocks, shared_memory
from lowering.simd.divergence.ordering import define_order_numbers
from lowering.simd.divergence.probe import ProbePlan, plan_probe
from lowering.simd.divergence.spread import counted_loop, define_driver
from lowering.simd.frame import LaneFrame
from lowering.simd.plan import Plan, plan_task
from lowering.simd.rules import SCALAR_RULES, emit_eqns
from lowering.simd.steps import emit_step, emit_steps
from lowering.tables import CACHE_LINE
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.frozen import frozen
from qdtrace.ir.program import Atom, Task, Var

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lowering.llvm.target import Target
    from lowering.plan.sums import Slot
    from lowering.simd.divergence.block_plan import PartPlan


@frozen(slots=True)
class TaskCode:
    """The code of one task."""

    text: str
    """An LLVM IR module."""
    refs: tuple[Var, ...]
    """References that the functions take, in order."""
    cost: int
    """Estimated scalar operations of one iteration."""
    lanes: int
    """Iterations of one step of vectors."""
    reason: str
    """The shape and strategies in words, for reports."""
    slot_bytes: int
    """Bytes for the partial results of a chunk; 0 if there is no `qd_combine`."""
    updates: int
    """Accumulations of one iteration that need locks, unless the word after the references is set."""
    copies: Slot
    """Arrays whose copies `qd_merge` merges."""
    pieces: int = 0
    """Largest number of pieces of the loop on any number of threads; 0: that of threads."""


def emit_task(task: Task, target: Target, options: EmitOptions = DEFAULTS) -> TaskCode:
    """Returns the code of a task for a target."""
    plan = plan_task(task, target, options)
    facts, shape, accumulation, module = plan.facts, plan.shape, plan.accumulation, Module()
    divergence, blocks = (plan.apart or plan).divergence, plan.divergence.blocks
    refill, refilled = divergence.refill, divergence.refilled
    worth = large(facts.refs) if options.knows_lengths else []
    aliases, renewed = alias_metadata(facts, module), sources_of(task, worth) if worth else ()

    def function(of: PartPlan | Plan = plan, lanes: tuple[int, int] | None = None) -> _Function:
        width, vectors = lanes or (of.shape.width, of.shape.vectors)
        frame = LaneFrame(
            Text(module, f"nounwind {target.vector_attributes}"), of.facts, target, options.fast_math, emit_eqns,
            width=width, vectors=vectors, uniformity=of.uniformity, row=of.shape.row,
            accumulation=of.accumulation if isinstance(of, ProbePlan) else accumulation,
        )  # fmt: skip
        frame.inner, frame.renewed = of.shape.inner, renewed
        return _Function(frame, plan, aliases if of is plan else alias_metadata(of.facts, module))

    if refill is None or refilled is None:
        functions = [function(plan if blocks is None else blocks.rows).task()]
    elif not refill.measures and plan.apart is None:
        functions = [function(refilled).task(refills=True)]
    else:
        functions = [
            function(plan_probe(plan, counted_loop(plan, refill))).task("qd_probe"),
            function().task("qd_masked"),
            function(refilled).task("qd_refilled", refills=True),
        ]
        define_driver(plan, refill, module, target)
    if blocks is not None:
        define_order_numbers(module, blocks.gain, shape.width * shape.vectors, shape.width)
        if blocks.spans is not None:
            define_rows_in_parts(module, blocks.spans, shape.width * shape.vectors)
        functions += [function(part).part(name) for name, part in blocks.functions.items()]
    if static_bounds(task) is None:  # else they are in the handler's table, so that code does not depend on the length
        functions.append(function(lanes=(1, 1)).bounds())
    if accumulation.slot.nbytes:
        functions.append(function(lanes=(shape.width, 1)).combine())
    if accumulation.thread_copies.nbytes:
        functions.append(function(lanes=(shape.width, 1)).merge())
    text, lanes, slot_bytes = module.render(functions), shape.width * shape.vectors, accumulation.slot.nbytes
    updates, copies, pieces = accumulation.updates, accumulation.thread_copies, accumulation.pieces
    return TaskCode(text, facts.refs, facts.cost, lanes, plan.reason, slot_bytes, updates, copies, pieces)


class _Function:
    """Emits one function of a task."""

    def __init__(self, frame: LaneFrame, plan: Plan, aliases: tuple[dict[Var, str], str]) -> None:
        self.frame = frame
        self.plan = plan
        self.aliases = aliases
        self.facts = frame.facts
        self.target = frame.target
        self.text = frame.text
        self.shared: Sequence[str] = ()
        """Pointers to what parts of the task share, which follow its references."""

    def _open(self, needed: Iterable[Var], *, checks: bool = False) -> None:
        """Loads the pointers and emits the part of the head that is needed, and all its checks if `checks`."""
        text, constant = self.text, self.aliases[1]

        def pointer(n: int) -> str:
            if n >= self.frame.table_length:
                return self.shared[n - self.frame.table_length]
            slot = text.op(f"getelementptr ptr, ptr %refs, i64 {n}")
            return text.op(f"load ptr, ptr {slot}, align 8{constant}")

        open_function(self.frame, self.aliases, pointer, head_for(self.facts.task.head, needed, checks), SCALAR_RULES)

    def bounds(self) -> str:
        """Returns `qd_bounds`."""
        task, text, f = self.facts.task, self.text, self.frame
        atoms: list[Atom] = [] if task.kind == "serial" else [task.start, task.stop]
        f.leave = "store [2 x i64] zeroinitializer, ptr %out\n  ret void"
        self._open({a for a in atoms if isinstance(a, Var)}, checks=True)
        values = [f.scalar.cast("sext", REGISTER[a.dtype], f.scalar_of(a), "i64") for a in atoms] or ["0", "1"]
        text.do(f"store i64 {values[0]}, ptr %out")
        text.do(f"store i64 {values[1]}, ptr {text.op('getelementptr i64, ptr %out, i64 1')}")
        text.do("ret void")
        return text.render("define void @qd_bounds(ptr noalias %refs, ptr noalias %out)")

    def combine(self) -> str:
        """Returns `qd_combine`."""
        slot = self.plan.accumulation.slot
        self._open({a for p in slot.parts for a in p.indices or () if isinstance(a, Var)})
        checks.leave_if_failed(self.frame)
        emit_combine(self.frame, slot)
        self.text.do("ret void")
        header = "define void @qd_combine(ptr noalias %refs, ptr noalias %slots, i64 %count)"
        return self.text.render(header)

    def merge(self) -> str:
        """Returns `qd_merge`."""
        self.text.do("%refs = load ptr, ptr %job")
        self._open(set())
        emit_merge(self.frame, self.plan.accumulation.thread_copies)
        self.text.do("ret void")
        header = "define void @qd_merge(ptr noalias %job, i64 %lo, i64 %hi, ptr %slot)"
        return self.text.render(header)

    def part(self, name: str) -> str:
        """Returns the function of a part of the task."""
        f, text = self.frame, self.text
        if self._private_bytes() > ON_STACK:
            text.heap = {}
        self.shared = [f"%kept{n}" for n in range(len(self.facts.refs) - self.facts.ref_count)]
        self._open(self.facts.used)
        if self.facts.accums:
            open_accumulators(f, self.aliases[1], clear=False)
        f.parameters = dict.fromkeys(("%refs", *self.shared), "ptr")
        open_polls(f)
        f.split = is_long(f, self.facts.task.body)
        emit_steps(f)
        text.do("ret void")
        more = "".join(f", ptr noalias {register}" for register in self.shared)
        return self._rendered(name, f"ptr noalias %refs, i64 %lo, i64 %hi, ptr noalias %slot{more}")

    def task(self, name: str = "qd_task", *, refills: bool = False) -> str:
        """Returns `qd_task` or a variant of it."""
        f, text, task, blocks = self.frame, self.text, self.facts.task, self.plan.divergence.blocks
        kept = KEPT_BYTES if blocks is not None and blocks.spans is not None else 0
        if self._private_bytes() + kept > ON_STACK:
            text.heap = {}
        # `qd_bounds` has evaluated and checked dynamic bounds before: a chunk may already see stores of other chunks.
        bounds = self.plan.facts.task.start, self.plan.facts.task.stop
        asked = any(isinstance(a, Var) for a in bounds) and task.kind != "serial"
        if refills:
            self.shared = [text.slot("[2 x i64]", 8)]
        else:
            measured = ["%slot"] * (len(self.facts.refs) - self.facts.ref_count)
            self.shared = measured if blocks is None else shared_memory(f, blocks)
        self._open(self.facts.used, checks=not asked)
        open_accumulators(f, self.aliases[1])
        f.parameters = dict.fromkeys(self.shared, "ptr")
        open_polls(f)
        f.split = is_long(f, task.body)
        if task.kind == "serial":
            f.emit(task.body.eqns)
        elif refills:
            for n, end in enumerate(("%lo", "%hi")):
                text.do(f"store i64 {end}, ptr {text.op(f'getelementptr i64, ptr {self.shared[0]}, i64 {n}')}")
            emit_step(f, "0")
        elif blocks is not None:
            emit_blocks(f, blocks, self.shared)
        else:
            emit_steps(f)
        close_accumulators(f)
        text.do("ret void")
        return self._rendered(name, "ptr noalias %refs, i64 %lo, i64 %hi, ptr noalias %slot")

    def _private_bytes(self) -> int:
        """Returns the bytes of private memory of all lanes that run side by side."""
        f = self.frame
        return (self.facts.private_bytes + self.plan.accumulation.panel_bytes) * f.width * f.vectors

    def _rendered(self, name: str, parameters: str) -> str:
        """Returns the function, with one around it that allocates if private memory is not on the stack."""
        text, crossings = self.text, self.frame.crossings
        if crossings.nbytes:
            if crossings.nbytes > ON_STACK and text.heap is None:
                text.heap = {}
            text.memory(crossings.pointer, crossings.nbytes)
        linkage = "" if name == "qd_task" else "internal "
        if not text.heap:
            return text.render(f"define {linkage}void @{name}({parameters})")
        arrays = "".join(f", ptr noalias align {CACHE_LINE} {register}" for register in text.heap)
        whole = text.render(f"define internal void @{name}_in({parameters}{arrays})")
        checks.require_failure(self.frame)
        return f"{whole}\n{allocating(text.module, name, parameters, text.heap, linkage)}"
