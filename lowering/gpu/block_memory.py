"""Buffers in shared memory of a block: those that only the tasks of one series use.

Shared memory is faster than memory of the device, and a program without other buffers needs no scratch, a result that
XLA allocates in each call: 1.5 us of 40.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.gpu.commands import BLOCK, filled_before, steps_of
from lowering.runtime.layout import Place, pack_buffers
from lowering.simt.series import FILL_BYTES, HELD_BYTES, BlockMemory
from lowering.tables import CACHE_LINE, round_up
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowering.runtime.layout import Layout
    from lowering.simt.series import Series
    from qdtrace.ir.program import Var


def held_in_blocks(layout: Layout, series: Iterable[Series]) -> dict[Var, Place]:
    """Returns the places in shared memory of the buffers that need no scratch."""
    found: dict[Var, Place] = {}
    for one in series:
        found |= {v: Place(BLOCK, offset) for v, offset in _held(layout, one.tasks).items()}
    return found


def _held(layout: Layout, tasks: range) -> dict[Var, int]:
    used = [layout.task_refs[k] for k in tasks]
    others = {v for k, refs in enumerate(layout.task_refs) if k not in tasks for v in refs}
    if filled_before(layout).get(tasks.start, 0) > FILL_BYTES:  # by commands, which reach memory of the device only
        others.update(v for v in layout.task_refs[tasks.start] if v in layout.program.initial)
    inside = {v for refs in used for v in refs if v in layout.program.buffers and v not in layout.written} - others
    kept = sorted((v for v in inside if ref_type(v).nbytes), key=lambda v: ref_type(v).nbytes)
    while kept:
        offsets, nbytes = pack_buffers(used, kept)
        if nbytes <= HELD_BYTES:
            return offsets
        kept.pop()
    return {}


def block_memory(layout: Layout, tasks: range) -> BlockMemory:
    """Returns the offsets in shared memory of the arguments of a series' kernel, and the bytes of all."""
    offsets: dict[int, int] = {}
    end = taken = 0
    for step in steps_of(layout, tasks):
        if isinstance(step, int):
            pieces = [(layout.places[v], ref_type(v).nbytes) for v in layout.task_refs[step]]
        else:
            pieces = [(step.place, step.nbytes)]
        for place, nbytes in pieces:
            if place.slot == BLOCK:
                offsets[taken] = place.offset
                end = max(end, place.offset + nbytes)
            taken += 1
    return BlockMemory(offsets, round_up(end, CACHE_LINE))
