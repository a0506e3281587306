"""Private memory that is too large for a thread's stack: it is allocated once per call of a task's function.

The function takes every large array as a parameter of its own, so LLVM knows that they do not overlap; a function
around it allocates all of them at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.checks import FAIL
from lowering.tables import CACHE_LINE, NO_MEMORY, round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.text import Module

ON_STACK = 1 << 20
"""Bytes of private memory that the function of a task may have on the stack; threads have 8 MiB as a rule."""


def allocating(module: Module, name: str, parameters: str, arrays: Mapping[str, int], linkage: str = "") -> str:
    """Returns a function that calls `{name}_in` with its parameters (`type register, ...`) and memory for `arrays`.

    The sizes are in bytes. The task fails if there is no memory: the module needs the function that records failures.
    """
    module.declare("aligned_alloc", "ptr", "i64, i64")
    module.declare("free", "void", "ptr")
    lines: list[str] = []
    given = [" ".join((*p.split()[:1], p.split()[-1])) for p in parameters.split(", ")]
    offset = 0
    for number, nbytes in enumerate(arrays.values()):
        lines.append(f"  %array{number} = getelementptr i8, ptr %memory, i64 {offset}")
        given.append(f"ptr %array{number}")
        offset += round_up(nbytes, CACHE_LINE)
    allocated = "\n".join(lines)
    return f"""define {linkage}void @{name}({parameters}) nounwind {{
entry:
  %memory = call ptr @aligned_alloc(i64 {CACHE_LINE}, i64 {offset})
  %failed = icmp eq ptr %memory, null
  br i1 %failed, label %none, label %some
none:
  call void @{FAIL}(ptr %refs, i64 {NO_MEMORY}, i64 {offset})
  ret void
some:
{allocated}
  call void @{name}_in({", ".join(given)})
  call void @free(ptr %memory)
  ret void
}}"""
