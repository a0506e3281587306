"""The emitters of tasks for one device, by LLVM or Triton. A process that finds all its code in the cache never loads
this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.gpu.block_memory import block_memory
from lowering.gpu.codegen import TritonKernels, left_to_llvm
from lowering.gpu.commands import steps_of
from lowering.llvm.options import emit_options
from lowering.simt.assembly import assembly
from lowering.simt.emit import emit_kernels
from lowering.simt.emit_series import emit_series
from lowering.simt.series import Filling
from lowering.triton.choice import Choice, choose, text_of
from lowering.triton.compile import TritonError, compile_kernels
from lowering.triton.emit import emit_triton
from qdtrace.backend import TaskReport
from qdtrace.errors import warn

if TYPE_CHECKING:
    from lowering.runtime.layout import Layout
    from lowering.simt.code import KernelCode
    from lowering.simt.devices import Device
    from lowering.simt.series import Series
    from qdtrace.config import Options
    from qdtrace.ir.program import Task


class Emission:
    """The code of tasks and series for a device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def choice(self, task: Task, options: Options) -> Choice:
        """Returns the emitter of a task, with the reason. Raises BackendError if Triton is forced and refuses."""
        if (reason := left_to_llvm(options)) is not None:
            return Choice("llvm", reason)
        threads = task.hints.get("block_dim") or options.block_dim
        if options.codegen == "auto" and threads:
            return Choice("llvm", f"block_dim={threads}")  # Triton's kernels ignore it
        return choose(task, options.codegen, self.device.family.name, emit_options(options))

    def task(self, task: Task, options: Options) -> KernelCode | TritonKernels:
        """Returns the kernels of a task by the emitter that is chosen for it, or by LLVM if that emitter fails."""
        made = self._by_triton(task, options) if self.choice(task, options).codegen == "triton" else None
        return made or self.by_llvm(task, options)

    def by_llvm(self, task: Task, options: Options) -> KernelCode:
        """Returns the kernels of a task by LLVM, before its passes."""
        return emit_kernels(task, self.device, emit_options(options), options.block_dim)

    def _by_triton(self, task: Task, options: Options) -> TritonKernels | None:
        """Returns the kernels of a task that Triton is chosen for, or None, with a warning, if it fails to compile
        them. Raises TritonError instead if Triton is forced."""
        code = emit_triton(task, emit_options(options))
        try:
            return TritonKernels(code, compile_kernels(code, self.device.name))
        except TritonError as error:
            if options.codegen == "triton":
                raise
            warn(f"{task.name}: LLVM makes this task in place of Triton: {error.rule}", task.loc)
            return None

    def series(self, layout: Layout, series: Series, options: Options) -> KernelCode:
        """Returns the kernel of a series."""
        steps = [
            layout.program.tasks[step] if isinstance(step, int) else Filling(step.nbytes, step.value)
            for step in steps_of(layout, series.tasks)
        ]
        inside = block_memory(layout, series.tasks)
        return emit_series(steps, self.device, series.threads, emit_options(options), inside)

    def text(self, code: KernelCode | TritonKernels, dialect: str) -> str:
        """Returns code as text: before LLVM's passes (`llvm`), or the device's assembly."""
        if isinstance(code, TritonKernels):
            return "\n".join(kernel.assembly for kernel in code.kernels)
        return code.text if dialect == "llvm" else assembly(code.text, self.device)

    def text_of_task(self, task: Task, options: Options, dialect: str) -> str:
        """Returns the code of a task by the emitter that is chosen for it; `triton` shows Triton source."""
        if dialect == "triton":
            return text_of(task, self.device.family.name, emit_options(options))
        return self.text(self.by_llvm(task, options) if dialect == "llvm" else self.task(task, options), dialect)

    def report(self, task: Task, options: Options) -> TaskReport:
        """Returns how a task is launched."""
        chosen = self.choice(task, options)
        if chosen.codegen == "triton":
            threads = self.device.multiprocessors * self.device.threads
            made = emit_triton(task, emit_options(options))
            return TaskReport("triton", chosen.reason, threads, made.scratch_bytes)
        code = self.by_llvm(task, options)
        shared = code.scratch_bytes - code.stack_bytes
        return TaskReport("llvm", f"{code.reason}; {chosen.reason}", code.lanes, shared)
