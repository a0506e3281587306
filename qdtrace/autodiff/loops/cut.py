"""Cuts loops with the option `most`, so that their reverse keeps at most so many states whatever the checks said.

    n: u32 = ...                                  # the trip count of lo : hi
    p: bool = le n 64:u32
    h: i32 = select p hi lo                       # no iteration where the primal's check has failed
    for[most=64] k in lo : h : 1:i32

A derivative leaves out checks that the primal has made. Where calls run on several devices, it runs although one of
them failed, and must not write behind its memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import CountedLoop, trip_count
from qdtrace.ir.primitives import FOR
from qdtrace.ir.program import literal
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn, Program


def with_cut_loops(program: Program) -> Program:
    """Returns the program in which no loop has more iterations than its `most`."""
    if not any("most" in eqn.params for eqn in program.all_eqns):
        return program
    return replace(program, tasks=tuple(_Cut().rebuild_task(task) for task in program.tasks))


class _Cut(Rebuilder):
    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; a `for` with `most` gets its start as end where it has more iterations."""
        if "most" not in eqn.params or eqn.primitive is not FOR or trip_count(*eqn.bounds) is not None:
            super().visit(eqn)
            return
        made = self.rebuild_eqn(eqn)
        self.loc = eqn.loc
        stop = cut_end(self, CountedLoop.of_for(made), int(eqn.params["most"]))
        self.append(replace(made, invars=(made.invars[0], stop, *made.invars[2:])))


def cut_end(builder: Builder, loop: CountedLoop, most: int) -> Atom:
    """Emits the end of a loop that has no iterations if there are more than `most`, and returns it."""
    count = loop.emit_count(builder)
    fits = builder("le", count, literal(most, count.dtype))
    return builder("select", fits, loop.stop, loop.start)
