"""Lanes, values and masks: the spelling of a value of many elements.

A value is either one uniform scalar or V vectors of W lanes side by side. With W = 1 everything is a scalar and there
is no mask, so the same emitter writes plain scalar code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import SUFFIX
from qdtrace.frozen import frozen, mutable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.types import DType


@frozen(slots=True)
class Lanes:
    """A vector width; 1 stands for scalars."""

    width: int

    def of(self, scalar: str) -> str:
        """Returns the type of `width` scalars."""
        return scalar if self.width == 1 else f"<{self.width} x {scalar}>"

    def splat(self, scalar: str, constant: str) -> str:
        """Returns a constant in every lane, as an operand."""
        return constant if self.width == 1 else f"splat ({scalar} {constant})"

    def suffix(self, scalar: str) -> str:
        """Returns the suffix of intrinsics for this type."""
        base = SUFFIX.get(scalar, scalar)
        return base if self.width == 1 else f"v{self.width}{base}"

    def sequence(self, scalar: str, values: Sequence[object]) -> str:
        """Returns a constant vector."""
        return f"<{', '.join(f'{scalar} {v}' for v in values)}>"

    def range(self, scalar: str, start: int = 0, step: int = 1) -> str:
        """Returns the constant vector `start, start + step, ...`."""
        return self.sequence(scalar, [start + step * k for k in range(self.width)])


SCALAR = Lanes(1)


@mutable(slots=True)
class Value:
    """A graph value in registers: `scalar` if it is uniform, else one register per vector in `vectors`."""

    dtype: DType
    scalar: str | None = None
    vectors: list[str] | None = None

    @property
    def is_uniform(self) -> bool:
        """Returns whether the value is one scalar for all lanes."""
        return self.scalar is not None
