"""The state of emitting one kernel: that of one lane, the device, and where a thread or block accumulates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.frame import Frame

if TYPE_CHECKING:
    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.frame import EmitEqns
    from lowering.llvm.privatisation import Place
    from lowering.llvm.text import Text
    from lowering.simt.devices import Device
    from lowering.simt.plan import Plan
    from qdtrace.ir.program import Var


class KernelFrame(Frame):
    """Everything an emission function needs."""

    def __init__(self, text: Text, plan: Plan, fast_math: bool, emit: EmitEqns) -> None:
        super().__init__(text, plan.facts, plan.device.target, fast_math, emit)
        self.plan = plan
        self.sums: dict[Place, str] = {}
        """Stack slots of sums, one a place, which LLVM turns into registers."""
        self.copies: dict[Var, GlobalMemory] = {}
        """Copies of arrays in shared memory."""

    @property
    def device(self) -> Device:
        """What the kernel is for."""
        return self.plan.device

    def thread(self) -> str:
        """The number of the thread in its block, as i32."""
        return self._number(self.device.family.thread)

    def block(self) -> str:
        """The number of the block in the launch, as i32."""
        return self._number(self.device.family.block)

    def _number(self, intrinsic: str) -> str:
        self.text.module.declare(intrinsic, "i32", "")
        return self.cached(intrinsic, lambda: self.text.op(f"call i32 @{intrinsic}()"))

    def wait(self) -> None:
        """Waits for all threads of the block, which see each other's stores to shared memory then."""
        family = self.device.family
        if family.fence:
            self.text.do(f'fence syncscope("{family.fence}") release')
        self.text.module.declare(family.barrier, "void", "")
        self.text.do(f"call void @{family.barrier}()")
        if family.fence:
            self.text.do(f'fence syncscope("{family.fence}") acquire')
