"""Kernels that can be interrupted: loops that may run long look at a word of the process, and leave where it is not 0.

The word is behind the references of a task (`tables.STOP`). A function loads its address once; a look is then a load, a
comparison and a branch that is not taken. Who leaves notes it as checks do, so that the call fails (0023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import checks
from lowering.tables import INTERRUPTED, STOP
from qdtrace.analysis.cost import operations
from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.primitives import FOR

if TYPE_CHECKING:
    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Eqn

LONG = 1 << 20
"""Scalar operations that take so long that somebody may want to interrupt them: a loop of fewer does not look."""


def open_polls(f: Frame) -> None:
    """Loads the address of the word, and looks for the first time: what is left of a loop in chunks ends soon."""
    text = f.text
    place = text.op(f"getelementptr ptr, ptr %refs, i64 {f.facts.ref_count + STOP}")
    f.stop = text.op(f"load ptr, ptr {place}, align 8")
    f.parameters |= {"%refs": "ptr", f.stop: "ptr"}
    poll(f)


def poll_in_step(f: Frame) -> None:
    """The look of a step of lanes; chunks of steps without loops are short."""
    if f.facts.has_loops:
        poll(f)


def poll(f: Frame) -> None:
    """Leaves the function where somebody wants that; nothing where the function does not look."""
    if not f.stop:
        return
    text = f.text
    word = text.op(f"load atomic i64, ptr {f.stop} monotonic, align 8")
    with checks.failing(f, text.op(f"icmp ne i64 {word}, 0")):
        checks.note(f, INTERRUPTED)


def poll_in(f: Frame, loop: Eqn) -> None:
    """The look of an iteration of a loop, unless the loop is surely short."""
    if f.stop and may_run_long(loop):
        poll(f)


def may_run_long(loop: Eqn) -> bool:
    """Returns False if a loop is known to be short, else True."""
    if loop.primitive is not FOR:
        return True
    trips = trip_count(*loop.bounds)
    return trips is None or trips * sum(map(operations, loop.blocks)) > LONG
