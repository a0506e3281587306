"""Interruptible kernels: loops that may run long poll a word of the process, and return if it is not 0.

The word's address follows the references of a task (`tables.STOP`). A function loads it once; a poll is then a load, a
comparison and a branch that is not taken. An interrupted function records that as checks do, so the call fails (0023).
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
"""The fewest scalar operations of a loop that polls: shorter ones end before anybody wants to interrupt them."""


def open_polls(f: Frame) -> None:
    """Loads the address of the word, and polls once, so that the remaining chunks of a loop end soon."""
    text = f.text
    place = text.op(f"getelementptr ptr, ptr %refs, i64 {f.table_length + STOP}")
    f.stop = text.op(f"load ptr, ptr {place}, align 8")
    f.parameters |= {"%refs": "ptr", f.stop: "ptr"}
    poll(f)


def poll_in_step(f: Frame) -> None:
    """Polls in a step of lanes, unless the body has no loops: then chunks are short."""
    if f.facts.has_loops:
        poll(f)


def poll(f: Frame) -> None:
    """Emits a return if the word is set; nothing if the function does not poll."""
    if not f.stop:
        return
    text = f.text
    word = text.op(f"load atomic i64, ptr {f.stop} monotonic, align 8")
    with checks.failing(f, text.op(f"icmp ne i64 {word}, 0")):
        checks.note(f, INTERRUPTED)


def poll_in(f: Frame, loop: Eqn) -> None:
    """Polls in an iteration of a loop, unless the loop is known to be short."""
    if f.stop and may_run_long(loop):
        poll(f)


def may_run_long(loop: Eqn) -> bool:
    """Returns False if a loop is known to be short, else True."""
    if loop.primitive is not FOR:
        return True
    trips = trip_count(*loop.bounds)
    return trips is None or trips * sum(map(operations, loop.blocks)) > LONG
