"""The kernels of a task whose blocks run in parts (`spans`), and the functions that they call, which LLVM inlines.

A block looks at its spans. If they are consecutive, the first kernel takes as many iterations at a time as fit the
block's memory, and runs their parts, with a wait behind each. Else it says so in a word of the scratch, and the second
kernel runs each thread's iteration.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.prologue import alias_metadata
from lowering.llvm.types import MEMORY, REGISTER
from lowering.simt.devices import BUFFER_ALIGNMENT, GLOBAL, SHARED
from lowering.simt.kernel import Kernel
from lowering.simt.spans import FREE, WORD, WORDS
from qdtrace.ir.faults import may_fail
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lowering.llvm.options import EmitOptions
    from lowering.llvm.text import Module
    from lowering.simt.plan import Plan

_SPACE = f"ptr addrspace({GLOBAL})"
_ENDS, _HELD = "@qd_ends", "@qd_held"
"""Shared memory: words, first positions and ends of the spans; what is kept of the positions."""
APART, BEFORE, ROWS, AFTER = range(4)
"""Words of a block in shared memory: not 0 if its spans are not consecutive, or if a check failed in a part."""


def emit_span_kernels(
    plan: Plan, module: Module, aliases: tuple[dict[Var, str], str], options: EmitOptions
) -> list[str]:
    """Returns the texts of `qd_kernel`, for blocks that run in parts, and `qd_written`, for the others. Functions that
    they call are added to the module."""
    spans = plan.spans
    assert spans is not None
    parts = {"qd_before": spans.before, "qd_rows": spans.rows, "qd_after": spans.after}
    for name, facts in parts.items():
        if facts is not None:
            module.parts.append(_Part(replace(plan, facts=facts, in_series=True), module, options).function(name))
    return [kind(plan, module, aliases, options).main(name) for name, kind in KERNELS.items()]


class _Part(Kernel):
    """Emits a function that runs one iteration of a part, or of the whole task."""

    def __init__(self, plan: Plan, module: Module, options: EmitOptions) -> None:
        own, _ = alias_metadata(plan.facts, module)
        super().__init__(plan, module, (own, ""), options)

    def function(self, name: str) -> str:
        """Returns the text of the function; it takes the iteration's index, and sets the word `%failed` if a check
        fails."""
        f, text, task = self.frame, self.text, self.facts.task
        f.leave = "br label %failing"
        self._open(self.facts.used, checks=True)
        with f.region():
            self._bind("%index", None)
            f.emit(task.body.eqns)
        text.jump("end")
        text.begin("failing")
        text.do(f"store i32 1, ptr %failed, align {WORD}")
        text.jump("end")
        text.begin("end")
        text.do("ret void")
        refs = "".join(f"ptr noalias %r{n}, " for n in range(len(self.facts.refs)))
        text.attributes = f"nounwind alwaysinline {text.module.form.attributes}"
        return text.render(
            f"define internal void @{name}({refs}i64 %index, {_SPACE} %failure, {_SPACE} %memory, ptr %failed)"
        )


class _InParts(Kernel):
    """Emits the kernel of the blocks that run in parts."""

    def __init__(
        self, plan: Plan, module: Module, aliases: tuple[dict[Var, str], str], options: EmitOptions
    ) -> None:
        super().__init__(plan, module, aliases, options)
        assert plan.spans is not None
        self.spans = plan.spans
        self.position = REGISTER[self.spans.parts.first.dtype]
        _shared(module, _ENDS, WORDS + 2 * self.spans.ends)
        self.thread = self.count = self.index = self.inside = ""
        """Registers: the thread's number in its block, the iterations of the block, the thread's iteration, and whether
        there is one."""

    def main(self, name: str = "qd_kernel") -> str:
        """Returns the text of the kernel."""
        f, text = self.frame, self.text
        f.leave = "br label %end"
        self._look()
        is_together, together = self._is_zero(APART), text.fresh_label("together")
        with text.when(text.op(f"icmp eq i64 {self.thread}, 0")):
            text.do(f"store i32 {text.op(f'zext i1 {is_together} to i32')}, ptr {_told(self)}, align {WORD}")
        text.branch(is_together, together, "end")
        text.begin(together)
        _shared(text.module, _HELD, self.spans.places[-1])
        with self._some_at_once() as (low, high, is_own):
            self._parts(low, high, text.op(f"and i1 {self.inside}, {is_own}"))
        text.jump("end")
        text.begin("end")
        text.do("ret void")
        return self._render(name, self.plan.threads)

    def _look(self) -> None:
        """Emits the beginning: afterwards all threads know whether the block is apart."""
        f, text, plan, spans = self.frame, self.text, self.plan, self.spans
        looked = {a for e in spans.look for a in used_vars(e)} | {spans.parts.first, spans.parts.last}
        self._open(looked, checks=False)
        start, stop = (int(a.value) for a in (plan.facts.task.start, plan.facts.task.stop) if isinstance(a, Literal))
        block, thread = (text.op(f"zext i32 {x} to i64") for x in (f.block(), f.thread()))
        first = text.op(f"add i64 {text.op(f'mul i64 {block}, {plan.threads}')}, {start}")
        count = f.scalar.intrinsic("smin", "i64", text.op(f"sub i64 {stop}, {first}"), str(plan.threads))
        self.thread, self.count, self.index = thread, count, text.op(f"add i64 {first}, {thread}")
        self.inside = text.op(f"icmp slt i64 {thread}, {count}")
        own = [text.slot(self.position), text.slot(self.position)]
        with text.when(text.op(f"icmp eq i64 {thread}, 0")):
            for word in range(4):
                text.do(f"store i32 0, ptr {self._word(word)}, align {WORD}")
        with text.when(self.inside), f.region():
            self._bind(self.index, None)
            f.emit(spans.look)
            for end, value in enumerate((spans.parts.first, spans.parts.last)):
                register = f.scalar_of(value)
                text.do(f"store {self.position} {register}, ptr {own[end]}")
                text.do(f"store {self.position} {register}, ptr {self._end(end, thread)}")
        f.wait()
        total = text.op(f"sub i64 {self._ends(1, text.op(f'sub i64 {count}, 1'))}, {self._ends(0, '0')}")
        with text.when(self.inside):
            self._mark(own, total)
        f.wait()

    def _word(self, number: int) -> str:
        return _address(_ENDS, number * WORD)

    def _is_zero(self, number: int) -> str:
        return self.text.op(f"icmp eq i32 {self.text.op(f'load i32, ptr {self._word(number)}, align {WORD}')}, 0")

    def _end(self, which: int, row: str) -> str:
        """Returns a pointer to the first position (`which` 0) or end (1) of a span of the block."""
        first = _address(_ENDS, WORDS + which * self.spans.ends)
        return self.text.op(f"getelementptr {self.position}, ptr {first}, i64 {row}")

    def _wide(self, pointer: str) -> str:
        found = self.text.op(f"load {self.position}, ptr {pointer}")
        return self.frame.scalar.cast("sext", self.position, found, "i64")

    def _ends(self, which: int, row: str) -> str:
        return self._wide(self._end(which, row))

    def _mark(self, own: Sequence[str], total: str) -> None:
        """Marks the block as apart if the span of this thread does not touch the next one, or is long."""
        text, o, thread, count = self.text, self.frame.scalar, self.thread, self.count
        low, high = map(self._wide, own)
        following = o.intrinsic("smin", "i64", text.op(f"add i64 {thread}, 1"), text.op(f"sub i64 {count}, 1"))
        is_last = text.op(f"icmp eq i64 {following}, {thread}")
        after = o.select(is_last, "i64", high, self._ends(0, following))
        held = o.intrinsic("smin", "i64", total, str(self.spans.most))
        most = text.op(f"sdiv i64 {held}, {self.spans.share}")
        most = o.intrinsic("smax", "i64", most, str(min(FREE, self.spans.most)))
        tests = [
            f"icmp slt i64 {high}, {low}",
            f"icmp ne i64 {high}, {after}",
            f"icmp slt i64 {low}, 0",
            f"icmp sgt i64 {high}, {self.spans.parts.limit}",
            f"icmp sgt i64 {text.op(f'sub i64 {high}, {low}')}, {most}",
        ]
        apart = "false"
        for test in tests:
            apart = text.op(f"or i1 {apart}, {text.op(test)}")
        with text.when(apart):
            text.do(f"store i32 1, ptr {self._word(APART)}, align {WORD}")

    @contextmanager
    def _some_at_once(self) -> Generator[tuple[str, str, str]]:
        """Opens a loop over groups of consecutive spans that fit the memory; yields the first position of the group,
        the end of the last, and whether the thread's iteration is in it."""
        text, o, thread, count = self.text, self.frame.scalar, self.thread, self.count
        loop, before = text.fresh_label("some"), text.label
        text.jump(loop)
        text.begin(loop)
        row, hole = text.name(), text.hole()
        low = self._ends(0, row)
        limit = text.op(f"add i64 {low}, {self.spans.most}")
        # the largest end that fits: all, or by bisection, as ends grow
        fits = text.op(f"icmp sle i64 {self._ends(1, text.op(f'sub i64 {count}, 1'))}, {limit}")
        begun, from_ = text.label, o.select(fits, "i64", count, text.op(f"add i64 {row}, 1"))
        search, halve, found = (text.fresh_label(name) for name in ("search", "halve", "found"))
        text.jump(search)
        text.begin(search)
        least, most, least_hole, most_hole = text.name(), text.name(), text.hole(), text.hole()
        text.branch(text.op(f"icmp slt i64 {least}, {most}"), halve, found)
        text.begin(halve)
        both = text.op(f"add i64 {least}, {most}")
        middle = text.op(f"lshr i64 {text.op(f'add i64 {both}, 1')}, 1")
        good = text.op(f"icmp sle i64 {self._ends(1, text.op(f'sub i64 {middle}, 1'))}, {limit}")
        raised = o.select(good, "i64", middle, least)
        lowered = o.select(good, "i64", most, text.op(f"sub i64 {middle}, 1"))
        text.fill(least_hole, f"{least} = phi i64 [ {from_}, %{begun} ], [ {raised}, %{halve} ]")
        text.fill(most_hole, f"{most} = phi i64 [ {count}, %{begun} ], [ {lowered}, %{halve} ]")
        text.jump(search)
        text.begin(found)
        high = self._ends(1, text.op(f"sub i64 {least}, 1"))
        reached = text.op(f"icmp sge i64 {thread}, {row}")
        yield low, high, text.op(f"and i1 {reached}, {text.op(f'icmp slt i64 {thread}, {least}')}")
        again, done = text.op(f"icmp slt i64 {least}, {count}"), text.fresh_label("done")
        text.fill(hole, f"{row} = phi i64 [ 0, %{before} ], [ {least}, %{text.label} ]")
        text.branch(again, loop, done)
        text.begin(done)

    def _parts(self, low: str, high: str, is_own: str) -> None:
        """Emits the parts for a group of spans. A failed check ends the block, as what is kept may be anything."""
        f, text, spans = self.frame, self.text, self.spans
        span = text.slot(f"[2 x {self.position}]")
        for k, end in enumerate((low, high)):
            value = end if self.position == "i64" else text.op(f"trunc i64 {end} to {self.position}")
            place = text.op(f"getelementptr {self.position}, ptr {span}, i64 {k}")
            text.do(f"store {self.position} {value}, ptr {place}")
        back = text.op(f"sub i64 0, {low}")
        kept = [span]
        for ref, place in zip(spans.parts.kept, spans.places, strict=False):  # to where position 0 would be
            kept.append(text.op(f"getelementptr {MEMORY[ref.dtype]}, ptr {_address(_HELD, place)}, i64 {back}"))
        for name, facts, word, where in (
            ("qd_before", spans.before, BEFORE, None),
            ("qd_rows", spans.rows, ROWS, is_own),
            ("qd_after", spans.after, AFTER, None),
        ):
            if facts is None:
                continue
            if where is None:
                self._call(name, self.thread, word, kept)
            else:
                with text.when(where):
                    self._call(name, self.index, word, kept)
            f.wait()
            if may_fail(facts.task.all_eqns):
                fine = text.fresh_label("fine")
                text.branch(self._is_zero(word), fine, "end")
                text.begin(fine)

    def _call(self, name: str, index: str, word: int, kept: Sequence[str]) -> None:
        f = self.frame
        pointers = [f.globals[ref].pointer for ref in self.facts.refs]
        refs = "".join(f"ptr {pointer}, " for pointer in (*pointers, *kept))
        more = f"{_SPACE} %failure, {_SPACE} %memory, ptr {self._word(word)}"
        self.text.do(f"call void @{name}({refs}i64 {index}, {more})")


class _Written(Kernel):
    """Emits the kernel of the other blocks."""

    def main(self, name: str = "qd_written") -> str:
        """Returns the text of the kernel."""
        text = self.text
        self.frame.leave = "br label %end"
        self._open(self.facts.used, checks=True)
        mine = text.fresh_label("mine")
        together = text.op(f"load i32, ptr {_told(self)}, align {WORD}")
        text.branch(text.op(f"icmp eq i32 {together}, 0"), mine, "end")
        text.begin(mine)
        self._once()
        text.jump("end")
        text.begin("end")
        text.do("ret void")
        return self._render(name, self.plan.threads)


KERNELS = {"qd_kernel": _InParts, "qd_written": _Written}
"""Kernels by name, in the order of their launches."""


def _told(kernel: Kernel) -> str:
    """Returns a pointer to the word of the scratch that says whether the block runs in parts."""
    block = kernel.text.op(f"zext i32 {kernel.frame.block()} to i64")
    return kernel.text.op(f"getelementptr i32, ptr %scratch, i64 {block}")


def _shared(module: Module, name: str, nbytes: int) -> None:
    """Declares shared memory."""
    kind = f"[{nbytes} x i8] undef, align {BUFFER_ALIGNMENT}"
    module.helpers[name] = f"{name} = internal addrspace({SHARED}) global {kind}"


def _address(name: str, offset: int) -> str:
    there = f"getelementptr (i8, ptr addrspace({SHARED}) {name}, i64 {offset})"
    return f"addrspacecast (ptr addrspace({SHARED}) {there} to ptr)"
