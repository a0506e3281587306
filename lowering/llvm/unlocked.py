"""LLVM's two long-running calls without llvmlite's process-wide lock.

llvmlite lets one thread at a time into LLVM. LLVM itself only asks that a context is used by one thread at a time,
and every module here has a context of its own, so tasks can be compiled side by side. The library's functions are
taken from a second handle to it, which knows nothing of the lock. If llvmlite does not reveal its library's file, the
locked calls are used: slower, and otherwise the same.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from llvmlite.binding import ffi as _ffi

if TYPE_CHECKING:
    import llvmlite.binding as llvm


# llvmlite has no types, and its handles of LLVM objects are private.
# pyright: reportPrivateUsage=false
ffi: Any = _ffi


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(ffi.lib._name)
        passes, emit = library.LLVMPY_RunNewModulePassManager, library.LLVMPY_TargetMachineEmitToMemory
    except (AttributeError, OSError, TypeError):
        return None
    passes.argtypes, passes.restype = [ctypes.c_void_p] * 3, None
    emit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    emit.restype = ctypes.c_void_p
    return library


def run_passes(manager: llvm.ModulePassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    """Runs `manager.run(module, builder)` beside other threads, and closes the builder: what it has found out about the
    module has to go before the module. The module must not share its context."""
    library = _library()
    try:
        if library is None:
            manager.run(module, builder)
        else:
            library.LLVMPY_RunNewModulePassManager(manager._ptr, module._ptr, builder._ptr)
    finally:
        builder.close()


def emit_object(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """Runs `machine.emit_object(module)` beside other threads. Raises RuntimeError if LLVM fails."""
    library = _library()
    if library is None:
        return machine.emit_object(module)
    with ffi.OutputString() as message:
        buffer = library.LLVMPY_TargetMachineEmitToMemory(machine._ptr, module._ptr, 1, message._as_parameter_)
        if not buffer:
            raise RuntimeError(str(message))
    memory = ctypes.cast(buffer, ffi.LLVMMemoryBufferRef)
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(memory), ffi.lib.LLVMPY_GetBufferSize(memory))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)
