"""The state of emitting one kernel: a frame of one lane, the device, and the memory of accumulations."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from lowering.llvm.addresses import MODULAR
from lowering.llvm.frame import Frame
from lowering.simt.devices import BUFFER_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.frame import EmitEqns
    from lowering.llvm.text import Text
    from lowering.plan.sums import Place
    from lowering.simt.devices import Device, Family
    from lowering.simt.plan import Plan
    from qdtrace.ir.program import Atom, Var


def wait_for_block(text: Text, family: Family) -> None:
    """Emits a wait for all threads of the block; then each sees the others' stores to any memory."""
    if family.fence:
        text.do(f'fence syncscope("{family.fence}") release')
    text.module.declare(family.barrier, "void", "")
    text.do(f"call void @{family.barrier}()")
    if family.fence:
        text.do(f'fence syncscope("{family.fence}") acquire')


class KernelFrame(Frame):
    """The state that emission functions of a kernel read and extend."""

    def __init__(self, text: Text, plan: Plan, fast_math: bool, emit: EmitEqns) -> None:
        super().__init__(text, plan.facts, plan.device.target, fast_math, emit)
        self.plan = plan
        self.sums: dict[Place, str] = {}
        """Stack slots of sums, one per place; LLVM turns them into registers."""
        self.copies: dict[Var, GlobalMemory] = {}
        """Privatised copies of arrays in shared memory."""
        self.index_modulo: tuple[int, int] = (1, 0)
        """Modulus and remainder of the task's index."""

    @property
    def device(self) -> Device:
        """The kind of GPU that the kernel is for."""
        return self.plan.device

    def alignment(self, memory: GlobalMemory, indices: Sequence[Atom]) -> int:
        """Returns the alignment in bytes of an element whose address depends on the task's index only, else 0."""
        form, size = self.facts.forms.address(memory.type, indices), memory.type.dtype.itemsize
        index = self.facts.task.index
        factor = form.terms.get(index, 0) if index is not None else 0
        if len(form.terms) > bool(factor) or memory.type.size > MODULAR:
            return 0
        unit, more = self.index_modulo
        return gcd(BUFFER_ALIGNMENT, size * factor * unit, size * (factor * more + form.constant))

    def thread(self) -> str:
        """Returns the number of the thread in its block, as i32."""
        return self._number(self.device.family.thread)

    def block(self) -> str:
        """Returns the number of the block in the launch, as i32."""
        return self._number(self.device.family.block)

    def position(self) -> str:
        """Returns the number of the thread in the launch, as i64."""
        return self.cached("position", self._position)

    def _position(self) -> str:
        text, plan = self.text, self.plan
        if plan.in_series:
            return text.op(f"zext nneg i32 {self.thread()} to i64")
        few = plan.iterations is not None and plan.iterations + plan.threads < MODULAR
        if few or plan.blocks:
            first = text.op(f"mul nuw nsw i32 {self.block()}, {plan.threads}")
            return text.op(f"zext nneg i32 {text.op(f'add nuw nsw i32 {first}, {self.thread()}')} to i64")
        block, thread = (text.op(f"zext i32 {x} to i64") for x in (self.block(), self.thread()))
        return text.op(f"add nuw nsw i64 {text.op(f'mul nuw nsw i64 {block}, {plan.threads}')}, {thread}")

    def _number(self, intrinsic: str) -> str:
        self.text.module.declare(intrinsic, "i32", "")
        return self.cached(intrinsic, lambda: self.text.op(f"call i32 @{intrinsic}()"))

    def wait(self) -> None:
        """Emits a wait for all threads of the block; then each sees the others' stores."""
        wait_for_block(self.text, self.device.family)
