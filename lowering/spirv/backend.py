"""The SPIR-V backend: the kernels of tasks for OpenCL. Nothing calls them from XLA, so a program cannot run by it."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from lowering.gpu.backend import GpuBackend
from lowering.llvm.target import Target
from lowering.simt.devices import Device, Family
from lowering.spirv.generate import PRIVATE, TRIPLE, assembly, layout
from qdtrace.analysis.machine import GPU
from qdtrace.backend import Backend, TaskReport
from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from qdtrace.config import Options
    from qdtrace.ir.program import Task


def _number(name: str, function: str) -> str:
    """Returns the definition of a function for a number that OpenCL gives in 64 bits."""
    return (
        f"declare i64 @{function}(i32)\ndefine internal i32 @{name}() alwaysinline nounwind {{\n"
        f"  %wide = call i64 @{function}(i32 0)\n  %narrow = trunc i64 %wide to i32\n  ret i32 %narrow\n}}"
    )


_BARRIER = """declare void @_Z7barrierj(i32) convergent
define internal void @qd.barrier() alwaysinline convergent nounwind {
  call void @_Z7barrierj(i32 3) convergent
  ret void
}"""
"""OpenCL's barrier, for memory of the block and of all."""

OPENCL = Family(
    name="spirv",
    triple=TRIPLE,
    convention="spir_kernel",
    thread="qd.thread",
    block="qd.block",
    barrier="qd.barrier",
    fence="",
    most="",
    active="",
    threads_attribute="",
    scope="device",
    private_space=PRIVATE,
    atomic_promises=(),
    part_half=False,
    has_approximations=False,
    module_flags=(),
    definitions=(
        ("qd.thread", _number("qd.thread", "_Z12get_local_idj")),
        ("qd.block", _number("qd.block", "_Z12get_group_idj")),
        ("qd.barrier", _BARRIER),
    ),
)
PROCESSORS, THREADS, WARP = 32, 1024, 32
"""A machine of middle size: OpenCL does not say which one will run the code."""


@functools.cache
def device() -> Device:
    """Returns the kind of device. Raises BackendError if this build of LLVM lacks its code generator."""
    try:
        found = layout()
    except RuntimeError as error:
        raise BackendError("this build of llvmlite has no code generator for spirv64", notes=(str(error),)) from None
    machine = replace(GPU, platform=OPENCL.name, lanes=PROCESSORS * THREADS)
    target = Target(
        OPENCL.name, TRIPLE, "spirv64", "",
        vector_bits=0, registers=255, data_layout=found, has_masks=False, has_half=True,
        machine=machine, private_space=PRIVATE, atomic_scope=OPENCL.scope,
    )  # fmt: skip
    return Device(OPENCL, target, PROCESSORS, THREADS, WARP)


def _no_driver() -> NoReturn:
    raise BackendError(
        "XLA has no devices that run SPIR-V", help="look at the code: f.lower(..., target='spirv64').as_text('spirv')"
    )


class SpirvBackend(GpuBackend):
    """Shows the kernels of tasks in SPIR-V."""

    dialects = ("llvm", "spirv")

    def __init__(self) -> None:
        super().__init__(device, _no_driver)

    # of each task: there are no series, which a driver would launch
    texts = Backend.texts
    reports = Backend.reports

    def text(self, task: Task, options: Options, dialect: str) -> str:
        """Returns the code of a task: before LLVM's passes (`llvm`), or SPIR-V assembly.

        Raises BackendError for what LLVM's code generator does not know.
        """
        code = self.emit(task, options)
        if dialect == "llvm":
            return code.text
        made, refusal = assembly(code.text)
        if not made:
            raise BackendError(f"{task.name}: LLVM makes no SPIR-V of this task", loc=task.loc, notes=(refusal,))
        return made

    def describe(self, task: Task, options: Options) -> TaskReport:
        """Returns how a task is launched."""
        code = self.emit(task, options)
        return TaskReport("llvm", code.reason, code.lanes, code.scratch_bytes - code.stack_bytes)
