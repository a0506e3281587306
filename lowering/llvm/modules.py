"""LLVM modules with contexts of their own, which may be dropped at any moment and in any order.

LLVM destroys a context's modules with it, so a module has to go first. llvmlite leaves that to the order in which
Python drops the two. Python's garbage collector has none: an exception that leaves a compilation, as Ctrl-C does,
holds frames that hold both, and of such a cycle the older object, the context, is finalised first.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

# llvmlite has no types, and what tells that an object is disposed of by another one is private.
# pyright: reportPrivateUsage=false


class _Module(llvm.ModuleRef):
    """A module that disposes of its context behind itself."""

    def _dispose(self) -> None:
        super()._dispose()
        context: Any = self._context
        context._owned = False
        context.close()


def parsed(text: str) -> llvm.ModuleRef:
    """Returns the module of a text, in a context that nothing else uses. LLVM raises RuntimeError of a wrong text."""
    context: Any = llvm.create_context()
    context._owned = True  # from here on, it stays in memory where an interrupt comes before the next line
    module: Any = llvm.parse_assembly(text, context)
    module.__class__ = _Module
    return module
