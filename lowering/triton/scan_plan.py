"""How a scan is divided into tiles, and where they leave what they add.

iterations                      kernels
fit into one tile               one, of one program
a number that is known          a tile is a block; a program takes the next tile, reads it once, and gets from the
                                tiles before it what is carried into it
known only on the device        a fixed number of tiles, each of as many blocks as it takes; a program walks through
                                its tile twice, the second time through what the first left in a cache
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER_BITS
from lowering.tables import CACHE_LINE, FIELD, round_up
from qdtrace.analysis.cost import peak_live
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from lowering.triton.plan import Tiling
    from lowering.triton.scan import Scan

_THREADS = 128
"""Of a program, about: few, as all of them wait for what one asks."""
_HELD = 96
"""Registers of a thread for values of a tile that live while it waits."""
_FEWEST = 16
"""Iterations of a thread."""
_MANY = 256
"""Tiles that a device can use at a time, about: with fewer, smaller ones are quicker."""
_SMALLEST = 1024


@dataclass(frozen=True, slots=True)
class Slots:
    """Where tiles leave what they add to one carried value; `look_back` says how it is divided."""

    offset: int
    """Bytes into the scratch."""
    far: int
    """Words from the first 32 bits of a value to the others; 0 where there are no others."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The division of one scan."""

    block: int
    """Iterations of a block."""
    tiles: int
    """Of all iterations; programs of the launch."""
    walks: bool
    """Whether a tile has as many blocks as the device finds, else one."""
    group: int
    """Tiles of a group, and groups of a larger one."""
    slots: tuple[Slots, ...]
    """Of each carried value."""
    words: int
    """Of eight bytes in the scratch: the counter of tiles, and all slots."""
    registers: int = 0
    """Of a thread, at most: so many that three or four programs share a multiprocessor, where the body does with them
    (code for masks, which the last tile alone runs, would take more); 0: as many as the code takes."""

    @property
    def groups(self) -> int:
        """Groups of tiles."""
        return -(-self.tiles // self.group)

    @property
    def alone(self) -> bool:
        """Whether one program runs all iterations."""
        return self.tiles == 1 and not self.walks

    @property
    def warps(self) -> int:
        """Of a program, of 32 lanes."""
        return max(1, min(_THREADS // 32, self.block // 256))


def plan_scan(scan: Scan, tiling: Tiling) -> ScanPlan:
    """The division of a scan; it depends on the scan alone, so that sums have the same bits on every device."""
    held, count = _held(scan), scan.count
    block = min(tiling.scan, _THREADS * max(_FEWEST, 1 << (_HELD // held).bit_length() - 1))
    if count is None:  # a smaller block: code for masks too, and nothing of it is held while it waits
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
    """Registers for what a thread holds of an iteration while it waits."""
    later = {v for e in scan.rest for v in used_vars(e)}
    kept = [v for e in scan.terms for v in e.outvars if v in later and v in scan.blocks]
    values = [*kept, *(c.param for c in scan.carried)]
    return max(sum(REGISTER_BITS[v.dtype] // 32 for v in values), peak_live(scan.body) - len(scan.body.params))


def _with_slots(scan: Scan, block: int, tiles: int, group: int, *, walks: bool) -> ScanPlan:
    """Adds the slots: what is carried into each group and behind the last one, sums of groups, sums of tiles."""
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
    """How a scan is made, in words."""
    ops = ", ".join(c.op for c in scan.carried)
    if plan.walks:
        return f"scan by {ops}: iterations known on the device in {plan.tiles} tiles of blocks of {plan.block}"
    tiles = "one tile" if plan.alone else f"{plan.tiles} tiles"
    return f"scan by {ops}: {scan.count} iterations in {tiles} of {plan.block}"
