"""The memory pass: keeps values that one iteration of a task stores and loads in registers.

Before:  store b 0.0:f32 i                             After:  t: f32 = for k in 0:i32 : 8:i32 : 1:i32 carry c = 0.0:f32
         for k in 0:i32 : 8:i32 : 1:i32                          a: f32 = load r i k
           a: f32 = load r i k                                   d: f32 = add c a
           accum[op=add] b a i                                   yield d
         v: f32 = load b i                                     store b t i
         store y v i                                           store y t i

Three passes, once each: elements that loops keep using into registers (`scalar_replacement`), first because what is
loaded before a loop and stored after it can then be forwarded; loads forwarded from stores (`store_forwarding`); and
the stores that nobody reads any more (`dead_stores`). It looks at one task at a time, as values never stay in registers
across tasks, and takes time linear in the size of the task times its depth.

`per_task=False` follows the need for buffers through all tasks of the program; only dead stores know a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.passes.base import Pass
from qdtrace.passes.dead_stores import without_dead_stores
from qdtrace.passes.memory_report import MemoryReport
from qdtrace.passes.scalar_replacement import ScalarReplacement
from qdtrace.passes.store_forwarding import StoreForwarding

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.ir.program import Program


@frozen
class Memory(Pass):
    """Keeps values of memory in registers, and removes stores that are dead then."""

    name: ClassVar[str] = "memory"
    fast_math: bool = False
    per_task: bool = True
    on_report: Callable[[Program, str], None] | None = None
    """Function that is called with the program and the report of the analysis as text."""

    def __call__(self, program: Program) -> Program:
        """Returns the program with less traffic between registers and memory."""
        carried = ScalarReplacement(self.fast_math)(program)
        if self.on_report is None:
            return without_dead_stores(StoreForwarding()(carried), per_task=self.per_task)
        report = MemoryReport(carried, per_task=self.per_task)
        made = without_dead_stores(report.forwarded(), per_task=self.per_task, note=report.borders)
        self.on_report(program, report.text())
        return made
