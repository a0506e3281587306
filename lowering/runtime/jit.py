"""Linking of object code into the process through LLVM's ORC linker.

A process has one linker. Nothing is ever unloaded: XLA keeps the address of a registered handler for ever, and an
executable may run at any time.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from lowering.runtime.sheltered import sheltered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowering.llvm.target import Target

_lock = threading.Lock()
_linked: dict[str, tuple[llvm.ResourceTracker, dict[str, int]]] = {}


@functools.cache
def _linker(target: Target) -> llvm.LLJIT:
    """Returns the linker. It uses JITLink rather than the older RuntimeDyld: JITLink places all sections of an object
    together, so that the small code model holds, and makes stubs for far symbols."""
    return llvm.create_lljit_compiler(target.llvm_machine(), use_jit_link=True)


def link(name: str, code: bytes, exports: Sequence[str], imports: Mapping[str, int], target: Target) -> dict[str, int]:
    """Links object code and returns the addresses of `exports`. The same name again returns the same addresses.

    Symbols in neither the object nor `imports` are looked up in the process (the C library).
    LLVM raises RuntimeError if a symbol is missing or the object is unusable.
    """

    def linked() -> dict[str, int]:
        with _lock:
            if name not in _linked:
                builder = llvm.JITLibraryBuilder().add_object_img(code)
                builder.add_current_process()
                for symbol, address in imports.items():
                    builder.import_symbol(symbol, address)
                for symbol in exports:
                    builder.export_symbol(symbol)
                tracker = builder.link(_linker(target), name)
                _linked[name] = tracker, {symbol: tracker[symbol] for symbol in exports}
            return _linked[name][1]

    found = _linked.get(name)
    return found[1] if found else sheltered(linked)
