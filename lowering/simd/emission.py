"""The emitters for a processor: of tasks, and of maths functions that are never inlined.

A process that finds all its code in the cache never loads this module.
"""

from __future__ import annotations

from lowering.llvm.maths.definitions import without_calls
from lowering.llvm.maths.library import module_of
from lowering.simd.emit import emit_task

__all__ = ["emit_task", "module_of", "without_calls"]
