"""Components of an element that are updated together (`update_groups`): a lane's values side by side, plain updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.combining import combine
from lowering.llvm.ops import Ops
from lowering.llvm.types import BYTES, MEMORY
from lowering.llvm.vectors import Lanes
from lowering.simd.interleave import pick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.frame import LaneFrame


def side_by_side(f: LaneFrame, kind: str, values: Sequence[str]) -> Iterator[str]:
    """Yields as many vectors, in which the values of one lane lie one after another."""
    many, width = len(values), f.width
    for k in range(many):
        wanted = [e % many * width + e // many for e in range(k * width, (k + 1) * width)]
        yield values[0] if many == 1 else pick(f, kind, values, wanted)


def wide(f: LaneFrame, count: int) -> Ops:
    """Returns the operations of so many components."""
    return Ops(f.text, Lanes(count), f.target, f.scalar.fast_math)


def update_components(f: LaneFrame, memory: GlobalMemory, op: str, pointers: tuple[str, str], many: int) -> None:
    """Emits plain updates of so many components from the first pointer on, by the values from the second on."""
    text, d, k = f.text, memory.type.dtype, 0
    target, values = pointers
    kind, size = MEMORY[d], BYTES[MEMORY[d]]
    while k < many:
        count = next(n for n in (4, 2, 1) if n <= many - k)
        o = wide(f, count)
        at, given = ahead(f, kind, target, k), ahead(f, kind, values, k)
        old = text.op(f"load {o.type(d)}, ptr {at}, align {size}{memory.alias}")
        new = combine(o, op, d, old, text.op(f"load {o.type(d)}, ptr {given}, align {size}"))
        text.do(f"store {o.type(d)} {new}, ptr {at}, align {size}{memory.alias}")
        k += count
