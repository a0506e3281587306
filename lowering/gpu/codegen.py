"""The choice of a task's emitter by the option `codegen`, and the kernels of Triton's emitter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.options import emit_options
from lowering.triton.installed import NEEDED, triton_version
from qdtrace.errors import BackendError, warn

if TYPE_CHECKING:
    from lowering.simt.devices import Device
    from lowering.triton.choice import Choice
    from lowering.triton.code import TritonCode
    from lowering.triton.compile import MachineCode
    from qdtrace.config import Options
    from qdtrace.ir.program import Task


@dataclass(frozen=True, slots=True)
class TritonKernels:
    """A task that Triton has compiled."""

    code: TritonCode
    kernels: tuple[MachineCode, ...]
    """Machine code of the kernels, in the order of their launches."""


def left_to_llvm(options: Options) -> str | None:
    """Returns why LLVM emits all tasks, or None if each task has its own choice.

    Raises BackendError if Triton is forced and not installed.
    """
    if options.codegen == "llvm":
        return "codegen='llvm'"
    if triton_version() is None:
        if options.codegen == "triton":
            raise BackendError(f"codegen='triton' needs {NEEDED}", help="pip install 'qdtrace[gpu]'")
        return f"without {NEEDED}"
    return None


def choice(task: Task, device: Device, options: Options) -> Choice:
    """Returns the emitter of a task, with the reason. Raises BackendError if Triton is forced and refuses."""
    # Loaded here: a process that finds all its code in the cache never needs the emitters.
    from lowering.triton.choice import Choice, choose

    if (reason := left_to_llvm(options)) is not None:
        return Choice("llvm", reason)
    threads = task.hints.get("block_dim") or options.block_dim
    if options.codegen == "auto" and threads:
        return Choice("llvm", f"block_dim={threads}")  # Triton's kernels ignore it
    return choose(task, options.codegen, device.family.name, emit_options(options))


def content_of(options: Options) -> tuple[object, ...]:
    """Returns the options and versions that a task's code depends on, besides the task and the device."""
    if left_to_llvm(options) is not None:
        return emit_options(options), options.block_dim
    return emit_options(options), options.block_dim, options.codegen, triton_version()


def source_of(task: Task, options: Options) -> TritonCode:
    """Returns Triton source of the kernels of a task that Triton is chosen for."""
    from lowering.triton.emit import emit_triton

    return emit_triton(task, emit_options(options))


def kernels_by_triton(task: Task, device: Device, options: Options) -> TritonKernels | None:
    """Returns the kernels of a task that Triton is chosen for, or None, with a warning, if it fails to compile them.
    Raises TritonError instead if Triton is forced."""
    from lowering.triton.compile import TritonError, compile_kernels

    code = source_of(task, options)
    try:
        return TritonKernels(code, compile_kernels(code, device.name))
    except TritonError as error:
        if options.codegen == "triton":
            raise
        warn(f"{task.name}: LLVM makes this task in place of Triton: {error.rule}", task.loc)
        return None
