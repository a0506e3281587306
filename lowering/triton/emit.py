"""The driver of emission: turns a task into Triton source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.options import DEFAULTS, EmitOptions
from lowering.llvm.types import compute_dtype
from lowering.plan.sums import Where, in_turns
from lowering.triton.code import TritonCode, TritonLaunch
from lowering.triton.kernel import Kernel, is_short
from lowering.triton.memory import bins_of, combined, element, from_memory, in_range, ordered_refs, to_memory
from lowering.triton.plan import DEFAULT_TILING, Plan, Tiling, plan_task
from lowering.triton.scan import find_scan
from lowering.triton.scan_kernels import emit_scan
from lowering.triton.scan_plan import describe_scan, plan_scan
from lowering.triton.text import Source
from lowering.triton.types import constant, type_of
from qdtrace.ir.combining import combining
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.plan.sums import Part
    from qdtrace.ir.program import Task


def emit_triton(task: Task, options: EmitOptions = DEFAULTS, tiling: Tiling = DEFAULT_TILING) -> TritonCode:
    """Returns the kernels of a task that `refusals.refusal` accepts."""
    scan = find_scan(task, fast_math=options.fast_math)
    if not isinstance(scan, str):
        return emit_scan(scan, options, tiling)
    return _Emitter(plan_task(task, tiling), options).emit()


class _Emitter:
    """Emits the kernels of a task that is not a scan: a stream, sums, or one iteration."""

    def __init__(self, plan: Plan, options: EmitOptions) -> None:
        self.plan = plan
        self.task = plan.facts.task
        self.fast_math = options.fast_math
        self.module = Source(f"{self.task.name or 'task'}: {_describe(plan)}.")

    def emit(self) -> TritonCode:
        plan = self.plan
        launches: list[TritonLaunch] = []
        if plan.count != 0:
            self._main()
            launches.append(TritonLaunch("qd_kernel", plan.programs, plan.block, plan.warps))
            turns = enumerate(in_turns(plan.totals))
            launches += [self._combine(f"qd_combine_{turn}" if turn else "qd_combine", parts) for turn, parts in turns]
        text = self.module.render()
        return TritonCode(text, plan.facts.refs, tuple(launches), plan.scratch_bytes, self.fast_math)

    def _kernel(self) -> Kernel:
        kernel = Kernel(self.module, self.plan.facts, self.plan.lanes.varying, fast_math=self.fast_math)
        f = kernel.frame
        f.where = where = self.plan.sums.where
        f.ordered = ordered_refs(self.task.body, {e for e in self.plan.facts.accums if where(e) is not Where.OWN})
        kernel.head()
        return kernel

    def _main(self) -> None:
        kernel, plan, task = self._kernel(), self.plan, self.task
        f = kernel.frame
        if task.index is None:
            f.emit(task.body.eqns)
            kernel.close("qd_kernel", "The one iteration.")
            return
        index = task.index
        for part in plan.totals:
            self._open(kernel, part)
        count = kernel.counted(task.start, task.stop) if plan.count is None else plan.count

        def tile(number: str) -> None:
            whole = kernel.lanes(index, task.start, count, number, plan.block)
            kernel.either(whole if is_short(task.body) else "", lambda: f.emit(task.body.eqns))

        kernel.tiles(count, plan.programs, plan.block, tile)
        for part in plan.totals:
            self._leave(kernel, part)
        kernel.close("qd_kernel", "Blocks of iterations.")

    def _open(self, kernel: Kernel, part: Part) -> None:
        """Defines the variable that a part is summed in."""
        f = kernel.frame
        if part.indices is None:
            bins = bins_of(part.ref)
            total = f.text.let(f"counts_{part.ref.hint}", f"tl.full(({bins},), 0, tl.int32)")
        else:
            total = f.text.let(f"sum_{part.ref.hint}", kernel.filled(part.neutral))
        f.sums.update(dict.fromkeys(self.plan.totals[part], total))

    def _leave(self, kernel: Kernel, part: Part) -> None:
        """Stores the sums of this program into its slots."""
        f, programs = kernel.frame, self.plan.programs
        total, slots = f.sums[self.plan.totals[part][0]], kernel.slots(part.offset, part.dtype)
        if part.indices is None:
            bins = f.text.let("bins", f"tl.arange(0, {bins_of(part.ref)})")
            at = f"{slots} + {bins} * {programs} + tl.program_id(0)"
            f.text.line(f"tl.store({at}, {total}, mask={bins} < {part.size})")
            return
        whole = f"tl.reduce({total}, 0, {self._combiner(part)})"
        f.text.line(f"tl.store({slots} + tl.program_id(0), {to_memory(part.dtype, whole)})")

    def _combiner(self, part: Part) -> str:
        return self.module.helper(f"combine_{combining(part.op, part.dtype).name}")

    def _combine(self, name: str, parts: Sequence[Part]) -> TritonLaunch:
        """Emits the kernel that combines the slots of all programs: one program per element."""
        kernel, plan = self._kernel(), self.plan
        text = kernel.text
        number = text.let("element", "tl.program_id(0)")
        lane = text.let("lane", "tl.arange(0, BLOCK)")
        first = 0
        for part in parts:
            last = first + part.size
            one = f"{number} == {first}"
            with text.block(f"if {one if part.size == 1 else f'({number} >= {first}) & ({number} < {last})'}:"):
                self._combine_part(kernel, part, f"({number} - {first})" if first else number, lane)
            first = last
        kernel.close(name, "What all programs left, and memory: an element a program.")
        block = 1 << max(5, (plan.programs - 1).bit_length())
        return TritonLaunch(name, first, block, max(1, min(4, block // 256)))

    def _combine_part(self, kernel: Kernel, part: Part, k: str, lane: str) -> None:
        f, text, programs = kernel.frame, kernel.text, self.plan.programs
        slot = f"{kernel.slots(part.offset, part.dtype)} + {k} * {programs} + {lane}"
        neutral = literal(0, DType.i32) if part.indices is None else part.neutral
        left = from_memory(part.dtype, f"tl.load({slot}, mask={lane} < {programs})")
        # not `other` of the load: for AMD, Triton makes -0.0 there 0.0
        loaded = f"tl.where({lane} < {programs}, {left}, {constant(neutral)})"
        total = text.let("total", f"tl.reduce({loaded}, 0, {self._combiner(part)})")
        d = part.ref.dtype
        conditions = [f.mask] if f.mask else []
        if part.indices is None:
            value = self.plan.totals[part][0].invars[1]
            assert isinstance(value, Literal)
            total = text.let("total", f"{total}.to({type_of(d)}) * {int(value.value)}")
            at = f"{f.env[part.ref]} + {k}"
        else:
            at = element(f, part.ref, part.indices, block=False)
            conditions += in_range(f, part.ref, part.indices)  # an element out of range got no accumulation
        mask = f", mask={text.let('inside', ' & '.join(conditions))}" if conditions else ""
        old = from_memory(d, f"tl.load({at}{mask})")
        text.line(f"tl.store({at}, {to_memory(d, combined(f, part.op, compute_dtype(d), old, total))}{mask})")


def describe(task: Task, options: EmitOptions = DEFAULTS, tiling: Tiling = DEFAULT_TILING) -> str:
    """Returns the kernels of a task in words, for reports."""
    scan = find_scan(task, fast_math=options.fast_math)
    return _describe(plan_task(task, tiling)) if isinstance(scan, str) else describe_scan(scan, plan_scan(scan, tiling))


def _describe(plan: Plan) -> str:
    """Returns the plan of a task in words."""
    if plan.facts.task.index is None:
        return "one iteration, in scalars"
    sums = plan.sums
    atomic = sum(sums.where(e) in (Where.SHARED, Where.ATOMIC) for e in plan.facts.accums)
    what = [
        (len({p.ref for p in sums.of(Where.REGISTERS)}), "sums into places"),
        (len({p.ref for p in sums.of(Where.COPY)}), "histograms"),
        (atomic, "atomic accumulations"),
    ]
    count = "iterations known on the device" if plan.count is None else f"{plan.count} iterations"
    parts = [f"{count} in blocks of {plan.block}", *(f"{n} {text}" for n, text in what if n)]
    if plan.walks:
        parts.append(f"{plan.programs} programs walk over them")
    return ", ".join(parts)
