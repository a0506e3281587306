"""The lanes that are still in a divergent loop, as the loop carries them.

A mask is `<W x i1>`. Where there are no registers for masks, LLVM holds one that crosses blocks as a vector of 128
bits. With AVX2 that is half of eight lanes of 32 bits: two instructions pack a mask, and two unpack it at each use.
There a loop carries numbers of 32 bits, 0 or -1. `icmp slt 0` makes a mask of them, which code generation repeats in
each block that uses it, and counters of a lane's iterations subtract them.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lowering.simd.descriptions import Mask
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.carries import Phis
    from lowering.simd.frame import LaneFrame


@frozen(slots=True)
class LiveLanes:
    """One register a vector: a mask, or numbers where those are kept instead."""

    frame: LaneFrame
    registers: tuple[str, ...]

    @staticmethod
    def of(f: LaneFrame, masks: Sequence[str]) -> LiveLanes:
        """Returns the lanes of masks."""
        return LiveLanes(f, tuple(_number(f, mask) for mask in masks) if f.has_numbers else tuple(masks))

    @property
    def type(self) -> str:
        """Returns the type of a register."""
        f = self.frame
        return f.lanes.of("i32") if f.has_numbers else f.vector.bits

    def carried(self, phis: Phis) -> LiveLanes:
        """Adds phis that begin with these lanes, and returns theirs."""
        return LiveLanes(self.frame, tuple(phis.add(self.type, register) for register in self.registers))

    def narrowed(self, conditions: Sequence[str]) -> LiveLanes:
        """Returns the lanes for which a condition holds as well."""
        f = self.frame
        if not f.has_numbers:
            return LiveLanes(f, f.narrowed(Mask(self.registers), conditions))
        found: list[str] = []
        for register, condition in zip(self.registers, conditions, strict=True):
            # the condition may be poison in a lane that has left, which `and` would keep
            known = f.text.op(f"freeze {f.vector.bits} {condition}")
            found.append(f.text.op(f"and {self.type} {register}, {_number(f, known)}"))
        return LiveLanes(f, tuple(found))

    def any(self) -> str:
        """Returns whether there is some lane, as i1."""
        f = self.frame
        if not f.has_numbers:
            return f.any(self.registers)
        total = reduce(lambda a, b: f.text.op(f"or {self.type} {a}, {b}"), self.registers)
        return f.any([self._bits(total)])

    @property
    def masks(self) -> list[str]:
        """Returns a mask for each vector, made in the current block."""
        return list(map(self._bits, self.registers)) if self.frame.has_numbers else list(self.registers)

    def mask(self, *, nonempty: bool = True) -> Mask:
        """Returns these lanes as a mask, made in the current block."""
        return Mask(tuple(self.masks), nonempty, self.registers if self.frame.has_numbers else None)

    def _bits(self, register: str) -> str:
        return self.frame.text.op(f"icmp slt {self.type} {register}, zeroinitializer")


def _number(f: LaneFrame, mask: str) -> str:
    return f.text.op(f"sext {f.vector.bits} {mask} to {f.lanes.of('i32')}")
