"""The division of a scan into tiles, and the scratch for their sums.

iterations                      kernels
fit into one tile               one, of one program
a known number                  a tile is a block; a program takes the next tile, reads it once, and gets the
                                carried-in value from the tiles before it
known only on the device        a fixed number of tiles, each with as many blocks as needed; a program walks through
                                its tile twice, the second time mostly in the cache
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER_BITS
from lowering.tables import CACHE_LINE, FIELD, round_up
from qdtrace.analysis.cost import peak_live
from qdtrace.frozen import frozen
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from lowering.triton.plan import Tiling
    from lowering.triton.scan import Scan

_THREADS = 128
"""Approximate threads of a program: few, as all of them wait while one polls."""
_HELD = 96
"""The most registers of a thread for values of a tile that stay live while it waits."""
_FEWEST = 16
"""The fewest iterations of a thread."""
_MANY = 256
"""Approximate tiles that a device runs at a time: with fewer, smaller ones are faster."""
_SMALLEST = 1024


@frozen(slots=True)
class Slots:
    """The words of one carried value in the scratch; `look_back` describes their layout."""

    offset: int
    """Byte offset in the scratch."""
    far: int
    """Words between the low and the high halves of 64-bit values; 0 for 32-bit values."""


@frozen(slots=True)
class ScanPlan:
    """The division of one scan."""

    block: int
    """Iterations of a block."""
    tiles: int
    """Tiles of the whole range, which is also the number of programs."""
    walks: bool
    """True if only the device knows how many blocks a tile has; otherwise a tile is one block."""
    group: int
    """Tiles of a group, and groups of a larger one."""
    slots: tuple[Slots, ...]
    """The slots of each carried value."""
    words: int
    """Eight-byte words in the scratch: the counter of tiles, and all slots."""
    registers: int = 0
    """Limit of registers per thread, so that three or four programs share a multiprocessor, if the body fits into it
    (masked code, which only the last tile runs, would take more); 0: none."""

    @property
    def groups(self) -> int:
        """The number of groups of tiles."""
        return -(-self.tiles // self.group)

    @property
    def alone(self) -> bool:
        """Returns whether one program runs all iterations."""
        return self.tiles == 1 and not self.walks

    @property
    def warps(self) -> int:
        """Warps of a program, as if each had 32 lanes."""
        return max(1, min(_THREADS // 32, self.block // 256))


def plan_scan(scan: Scan, tiling: Tiling) -> ScanPlan:
    """Returns the division of a scan; it depends on the scan alone, so sums have the same bits on every device."""
    held, count = _held(scan), scan.count
    block = min(tiling.scan, _THREADS * max(_FEWEST, 1 << (_HELD // held).bit_length() - 1))
    if count is None:  # a smaller block: it has masked code too, and no value of it is live while it waits
        return _with_slots(scan, max(32, block // 2), tiling.tiles, tiling.group, walks=True)
    if count <= block:
        while block > 32 and block >= 2 * count:
            block //= 2
        return ScanPlan(block, 1, False, tiling.group, (), 0)
    while block > _SMALLEST and block * _MANY > count:
        block //= 2
    made = _with_slots(scan, block, -(-count // block), tiling.group, walks=False)
    wide = any(slots.far for slots in made.slots)
    return replace(made, registers=(168 if wide else 128) if held * _FEWEST <= _HELD else 0)


def _held(scan: Scan) -> int:
    """Returns the registers for an iteration's values that are live while a thread waits."""
    later = {v for e in scan.rest for v in used_vars(e)}
    kept = [v for e in scan.terms for v in e.outvars if v in later and v in scan.blocks]
    values = [*kept, *(c.param for c in scan.carried)]
    return max(sum(REGISTER_BITS[v.dtype] // 32 for v in values), peak_live(scan.body) - len(scan.body.params))


def _with_slots(scan: Scan, block: int, tiles: int, group: int, *, walks: bool) -> ScanPlan:
    """Returns a plan with slots for values carried into groups and out of the last, sums of groups, and of tiles."""
    groups = -(-tiles // group)
    each = round_up(FIELD * (1 + 2 * groups + tiles), CACHE_LINE)
    slots: list[Slots] = []
    end = CACHE_LINE  # the counter
    for c in scan.carried:
        halves = REGISTER_BITS[c.dtype] // 32
        slots.append(Slots(end, each // FIELD if halves == 2 else 0))
        end += halves * each
    return ScanPlan(block, tiles, walks, group, tuple(slots), end // FIELD)


def describe_scan(scan: Scan, plan: ScanPlan) -> str:
    """Returns the division of a scan in words, for reports."""
    ops = ", ".join(c.op for c in scan.carried)
    if plan.walks:
        return f"scan by {ops}: iterations known on the device in {plan.tiles} tiles of blocks of {plan.block}"
    tiles = "one tile" if plan.alone else f"{plan.tiles} tiles"
    return f"scan by {ops}: {scan.count} iterations in {tiles} of {plan.block}"
