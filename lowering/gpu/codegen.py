"""The meaning of the option `codegen`, and the kernels of Triton's emitter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.options import emit_options
from lowering.triton.installed import NEEDED, triton_version
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from lowering.triton.code import TritonCode
    from lowering.triton.compile import MachineCode
    from qdtrace.config import Options


@frozen(slots=True)
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
    if options.deterministic:
        if options.codegen == "triton":
            rule = "deterministic=True needs code by LLVM, got codegen='triton'"
            raise BackendError(rule, help="leave `codegen` out")
        return "deterministic=True"
    if triton_version() is None:
        if options.codegen == "triton":
            raise BackendError(f"codegen='triton' needs {NEEDED}", help="pip install 'qdtrace[gpu]'")
        return f"without {NEEDED}"
    return None


def content_of(options: Options) -> tuple[object, ...]:
    """Returns the options and versions that a task's code depends on, besides the task and the device."""
    if left_to_llvm(options) is not None:
        return emit_options(options), options.block_dim
    return emit_options(options), options.block_dim, options.codegen, triton_version()
