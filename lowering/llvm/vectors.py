"""Lanes, values and masks: the one place that knows how a value of many elements is spelled.

A value is either one scalar (the same in all lanes) or V vectors of W lanes side by side. With W = 1 everything is a
scalar and there is no mask, so the same emitter gives plain scalar code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.types import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.types import DType


@dataclass(frozen=True, slots=True)
class Lanes:
    """A vector width; 1 spells scalars."""

    width: int

    def of(self, scalar: str) -> str:
        """The type of `width` scalars."""
        return scalar if self.width == 1 else f"<{self.width} x {scalar}>"

    def splat(self, scalar: str, constant: str) -> str:
        """A constant in every lane, as an operand."""
        return constant if self.width == 1 else f"splat ({scalar} {constant})"

    def suffix(self, scalar: str) -> str:
        """How intrinsics are suffixed for this type."""
        base = SUFFIX.get(scalar, scalar)
        return base if self.width == 1 else f"v{self.width}{base}"

    def sequence(self, scalar: str, values: Sequence[object]) -> str:
        """A constant vector."""
        return f"<{', '.join(f'{scalar} {v}' for v in values)}>"

    def range(self, scalar: str, start: int = 0, step: int = 1) -> str:
        """The constant vector `start, start + step, ...`."""
        return self.sequence(scalar, [start + step * k for k in range(self.width)])


SCALAR = Lanes(1)


@dataclass(slots=True)
class Value:
    """A graph value in registers: `scalar` when uniform, else one register a vector in `vectors`."""

    dtype: DType
    scalar: str | None = None
    vectors: list[str] | None = None

    @property
    def is_uniform(self) -> bool:
        """One scalar for all lanes."""
        return self.scalar is not None
