"""One kernel of a task: references and head, then its iterations by threads, or sums of blocks."""


from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lowering.llvm import rules
from lowering.llvm.atomics import scope
from lowering.llvm.maths.definitions import Form
from lowering.llvm.prologue import head_for, open_function
from lowering.llvm.text import Module, Text
from lowering.llvm.types import REGISTER
from lowering.simt import approximations
from lowering.simt.accumulation import accum, atomic, close_parts, emit_combine, open_parts
from lowering.simt.devices import BUFFER_ALIGNMENT, GLOBAL
from lowering.simt.frame import KernelFrame
from lowering.simt.grouping import early_loads
from lowering.simt.loads_ahead import emit_for
from lowering.simt.plan import COUNTER_AT
from lowering.simt.private import allocate
from lowering.simt.updates import emit_in_groups
from lowering.simt.warps import lane_max
from lowering.tables import FIELD
from qdtrace.ir.program import Atom, Eqn, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowering.llvm.options import EmitOptions
    from lowering.llvm.rules import Rule
    from lowering.llvm.vectors import Value
    from lowering.plan.sums import Part
    from lowering.simt.devices import Device
    from lowering.simt.plan import Plan

RULES: Mapping[str, Rule] = {
    **rules.RULES, "for": emit_for, "lane_max": lane_max, "cell": allocate, "accum": accum, "atomic": atomic,
}  # fmt: skip
_APPROXIMATE = {**RULES, **approximations.RULES}
_emit, _emit_approximate = (rules.emitter(partial(emit_in_groups, table)) for table in (RULES, _APPROXIMATE))
_FLUSH = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
"""Attribute that flushes f32 subnormals to zero."""


def new_module(device: Device, options: EmitOptions) -> Module:
    """Returns a module for the device, without functions."""
    # NVIDIA's GPUs keep subnormals, as XLA does, unless instructions are approximating ones, which flush them; on AMD's
    # additions in memory would be loops, and functions call slow paths
    flushes = options.approximate if device.family.has_approximations else options.fast_math
    module = Module(Form(_FLUSH if flushes else "", inline_cold=True))
    module.flags = device.family.module_flags
    module.declarations.update(device.family.definitions)
    return module


class Kernel:
    """Emits one kernel of a task, or its function in the kernel of a series."""

    def __init__(self, plan: Plan, module: Module, aliases: tuple[dict[Var, str], str], options: EmitOptions) -> None:
        self.plan = plan
        self.facts = plan.facts
        self.aliases = aliases
        attribute = plan.device.family.threads_attribute
        self.attributes = f"nounwind {attribute} {module.form.attributes}"
        self.text = Text(module, "", plan.device.target.private_space)
        self.text.alignment = BUFFER_ALIGNMENT
        approximate = options.approximate and plan.device.family.has_approximations
        self.rules, emit = (_APPROXIMATE, _emit_approximate) if approximate else (RULES, _emit)
        self.frame = KernelFrame(self.text, plan, options.fast_math, emit)
        self.frame.failure = f"ptr addrspace({GLOBAL}) %failure"

    def _open(self, needed: Iterable[Var], *, checks: bool = False) -> None:
        """Binds the references and emits the part of the head that is needed, and all its checks if `checks`."""

        def pointer(n: int) -> str:
            if self.plan.in_series:
                return f"%r{n}"
            return self.text.op(f"addrspacecast ptr addrspace({GLOBAL}) %r{n} to ptr")

        self.text.do(f"%scratch = addrspacecast ptr addrspace({GLOBAL}) %memory to ptr")
        open_function(self.frame, self.aliases, pointer, head_for(self.facts.task.head, needed, checks), self.rules)

    def _render(self, name: str, threads: int) -> str:
        space = f"ptr addrspace({GLOBAL})"
        # XLA's buffers do not overlap
        of_refs = "ptr" if self.plan.in_series else space  # references of a series may be shared memory
        refs = "".join(f"{of_refs} noalias align {BUFFER_ALIGNMENT} %r{n}, " for n in range(len(self.facts.refs)))
        kind = "internal" if self.plan.in_series else self.plan.device.family.convention
        header = f"define {kind} void @{name}({refs}i64 %start, i64 %stop, {space} %failure, {space} %memory)"
        self.text.attributes = self.attributes.format(threads=threads)
        if self.plan.in_series:
            self.text.attributes += " alwaysinline"
        return self.text.render(header)

    def main(self, name: str = "qd_kernel") -> str:
        """Returns the text of `qd_kernel`, or of the function of that name in a series."""
        f, text, task, plan = self.frame, self.text, self.facts.task, self.plan
        f.leave = "br label %end"
        dynamic = plan.iterations is None
        bounds = [a for a in (task.start, task.stop) if isinstance(a, Var)] if dynamic and not plan.bounds_apart else []
        if task.kind == "serial" and plan.in_series:
            text.branch(text.op(f"icmp eq i32 {f.thread()}, 0"), "alone", "end")
            text.begin("alone")
        self._open(self.facts.used.union(bounds), checks=not plan.bounds_apart)
        if task.kind == "serial":
            f.emit(task.body.eqns)
        elif not plan.blocks:
            self._once()
        else:
            open_parts(f)
            self._walk()
            close_parts(f)
        text.jump("end")
        text.begin("end")
        text.do("ret void")
        return self._render(name, plan.threads)

    def _bound(self, atom: Atom, number: int) -> str:
        """Returns the start (`number` 0) or end (1) of the range, as i64."""
        text = self.text
        if isinstance(atom, Literal):
            return str(int(atom.value))
        if self.plan.bounds_apart:
            return text.op(f"load i64, ptr {text.op(f'getelementptr i64, ptr %scratch, i64 {number}')}, align {FIELD}")
        return self.frame.scalar.cast("sext", REGISTER[atom.dtype], self.frame.scalar_of(atom), "i64")

    def _count(self, start: str, stop: str) -> str:
        """Returns the trip count of the range, as i64."""
        if self.plan.iterations is not None:
            return str(self.plan.iterations)
        count = self.text.op(f"sub i64 {stop}, {start}")
        return self.frame.scalar.select(self.frame.scalar.compare("icmp slt", "i64", start, stop), "i64", count, "0")

    def _once(self) -> None:
        """Emits the one group of iterations of the thread, unless it is beyond the range."""
        text, task = self.text, self.facts.task
        inside = text.fresh_label("inside")
        start, stop = self._bound(task.start, 0), self._bound(task.stop, 1)
        number = self._first_of_group()
        text.branch(text.op(f"icmp slt i64 {number}, {self._count(start, stop)}"), inside, "end")
        text.begin(inside)
        self._group(text.op(f"add nsw i64 {number}, {start}"), stop)

    def _walk(self) -> None:
        """Emits a loop over all groups of iterations of this thread."""
        f, text, task, plan = self.frame, self.text, self.facts.task, self.plan
        start, stop = self._bound(task.start, 0), self._bound(task.stop, 1)
        if plan.in_turns:
            self._take_turns(start, stop)
            return
        # counted from 0, so that the counter cannot wrap around if the range ends at its dtype's largest number
        count, step = self._count(start, stop), plan.blocks * plan.threads * plan.group
        with text.counted(self._first_of_group(), count, step, None) as number, f.region():
            self._group(number if start == "0" else text.op(f"add nsw i64 {start}, {number}"), stop)

    def _take_turns(self, start: str, stop: str) -> None:
        """Emits a loop that takes groups of iterations from a shared counter until none is left."""
        f, text, plan = self.frame, self.text, self.plan
        again, inside, done = (text.fresh_label(name) for name in ("again", "inside", "done"))
        counter = text.op(f"getelementptr i8, ptr %scratch, i64 {COUNTER_AT}")
        count = self._count(start, stop)
        text.jump(again)
        text.begin(again)
        taken = text.op(f"atomicrmw add ptr {counter}, i64 {plan.group} {scope(f)}monotonic, align {FIELD}")
        text.branch(text.op(f"icmp slt i64 {taken}, {count}"), inside, done)
        text.begin(inside)
        first = text.op(f"add nsw i64 {start}, {taken}")
        with f.region():
            self._group(first, stop)
        text.jump(again)
        text.begin(done)

    def _first_of_group(self) -> str:
        position, group = self.frame.position(), self.plan.group
        return position if group == 1 else self.text.op(f"mul nuw nsw i64 {position}, {group}")

    def _group(self, first: str, stop: str) -> None:
        """Emits a group of neighbouring iterations that begins at `first`, cut at the end of the range."""
        f, text, group, iterations = self.frame, self.text, self.plan.group, self.plan.iterations
        if group == 1 or (iterations is not None and iterations % group == 0):  # no group reaches beyond the end
            self._bodies(first)
            return
        straight, rest, done = text.fresh_label("whole"), text.fresh_label("rest"), text.fresh_label("done")
        left = text.op(f"sub i64 {stop}, {first}")
        text.branch(text.op(f"icmp uge i64 {left}, {group}"), straight, rest)
        text.begin(straight)
        self._bodies(first)
        text.jump(done)
        text.begin(rest)
        with text.counted(first, stop, 1) as index, f.region():
            self._body(index, self.facts.task.body.eqns)
        text.jump(done)
        text.begin(done)

    def _bodies(self, first: str) -> None:
        """Emits the iterations of a whole group. Their early loads come first, so that LLVM can merge them."""
        f, text, task, group = self.frame, self.text, self.facts.task, self.plan.group
        early = early_loads(self.facts) if group > 1 else []
        rest = [e for e in task.body.eqns if e not in early]
        loaded: list[dict[Var, Value]] = []
        indices = [first if n == 0 else text.op(f"add nsw i64 {first}, {n}") for n in range(group)]
        for n, index in enumerate(indices):
            with f.region():
                self._bind(index, n)
                f.emit(early)
            loaded.append({e.outvars[0]: f.env[e.outvars[0]] for e in early})
        for n, index in enumerate(indices):
            f.env |= loaded[n]
            self._body(index, rest, n)
        f.index_modulo = 1, 0

    def _bind(self, index: str, number: int | None) -> None:
        start, group = self.facts.task.start, self.plan.group
        assert self.facts.task.index is not None
        if number is not None and isinstance(start, Literal):
            self.frame.index_modulo = group, (int(start.value) + number) % group
        self.frame.bind_index(self.facts.task.index, index)

    def _body(self, index: str, eqns: Sequence[Eqn], number: int | None = None) -> None:
        """Emits one iteration. A failed check ends it, not the kernel: sums of the block need all of its threads."""
        f, text = self.frame, self.text
        before, following = f.leave, text.fresh_label("following")
        f.leave = f"br label %{following}"
        with f.region():
            self._bind(index, number)
            f.emit(eqns)
        text.jump(following)
        text.begin(following)
        f.leave = before

    def begin(self) -> str:
        """Returns `qd_begin`: it stores the bounds, if the task changes them, and a counter of 0 into the scratch."""
        f, text, task = self.frame, self.text, self.facts.task
        text.do(f"store [3 x i64] zeroinitializer, ptr addrspace({GLOBAL}) %memory, align {FIELD}")
        f.leave = "ret void"
        if self.plan.bounds_apart:
            atoms = (task.start, task.stop)
            self._open({a for a in atoms if isinstance(a, Var)}, checks=True)
            for n, atom in enumerate(atoms):
                wide = f.scalar.cast("sext", REGISTER[atom.dtype], f.scalar_of(atom), "i64")
                text.do(f"store i64 {wide}, ptr {text.op(f'getelementptr i64, ptr %scratch, i64 {n}')}, align {FIELD}")
        text.do("ret void")
        return self._render("qd_begin", 1)

    def combine(self, name: str, parts: Sequence[Part]) -> str:
        """Returns `qd_combine`, or a later one, for parts that may share elements with those before them."""
        f = self.frame
        f.leave = "ret void"
        # the task may have changed the operands of these checks
        needed = {a for p in parts for a in p.indices or () if isinstance(a, Var)}
        self._open(needed, checks=not self.plan.bounds_apart)
        emit_combine(f, parts)
        self.text.do("ret void")
        return self._render(name, self.plan.threads)
