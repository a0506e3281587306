"""Descriptions of masks, addresses and rows, which emission in lanes shares.

They are plain data, so that the emitters of constructs need not import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import Quotient
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.analysis.index.affine import Form
    from qdtrace.ir.program import Var


@frozen(slots=True)
class Mask:
    """The active lanes; `vectors` is None if all are active."""

    vectors: tuple[str, ...] | None = None
    nonempty: bool = True
    """True if at least one lane is known to be active, so that scalar effects may happen."""
    numbers: tuple[str, ...] | None = None
    """The same lanes as numbers of 32 bits, 0 or -1, if a loop carries those (`live_lanes`)."""
    without_iteration: bool = False
    """True if just lanes past the last iteration are inactive: nobody reads what private memory holds of those."""
    whole: str | None = None
    """Register of i1 that is true if all lanes are active, if stores of all lanes are apart from masked ones."""


ALL = Mask()


@frozen(slots=True)
class Component:
    """One component of neighbouring records, or of pieces of long ones, one record per lane."""

    number: int
    size: int
    """Elements of a record, or of the piece."""
    first: Form
    """Form of the first element of lane 0's record, or of its piece; equal ones have equal forms."""
    is_whole: bool = True
    """True if the array has all elements of a record, or of a piece, that has one of them."""


@frozen(slots=True)
class Address:
    """The addresses of the lanes of an access: `stride` elements apart from `pointer`, or at `pointer[offsets]`."""

    pointer: str
    stride: int | None
    offsets: list[str] | None = None
    """Element numbers, one register per vector, if there is no constant stride."""
    offset_type: str = "i32"
    record: Component | None = None
    """The component that lanes access, if they access neighbouring records of `stride` elements."""


@frozen(slots=True)
class Row:
    """The split of iterations into rows: those f with equal `(f + offset) // length`."""

    length: int
    offset: int
    quotient: Quotient
    uniform: frozenset[Var]
    """Variables equal to a quotient with one value in a row, plus a constant."""

    def keeps(self, term: object) -> bool:
        """Returns whether a term has one value in a row: this quotient, or one of the same by a multiple."""
        own = self.quotient
        if not isinstance(term, Quotient) or term.key != own.key or term.dtype.bits < own.dtype.bits:
            return False
        return term.divisor % self.length == 0
