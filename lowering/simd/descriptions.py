"""What emission in lanes passes around: masks, addresses, rows.

Plain data without behaviour, so that the emitters of constructs need not import each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.analysis.index.affine import Form, Quotient
    from qdtrace.ir.program import Eqn, Var


@dataclass(frozen=True, slots=True)
class Mask:
    """Which lanes are active. `vectors` is None when all are."""

    vectors: tuple[str, ...] | None = None
    nonempty: bool = True
    """At least one lane is known to be active, so scalar effects may happen."""


ALL = Mask()


@dataclass(frozen=True, slots=True)
class Component:
    """One component of neighbouring records, one record a lane."""

    number: int
    size: int
    """Elements of a record."""
    first: Form
    """The first element of lane 0's record; equal where the records are the same."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the lanes of an access are: `stride` elements apart from `pointer`, or at `pointer[offsets]`."""

    pointer: str
    stride: int | None
    offsets: list[str] | None = None
    """Element numbers per vector, when there is no constant stride."""
    offset_type: str = "i32"
    record: Component | None = None
    """Where lanes are in neighbouring records of `stride` elements."""


@dataclass(frozen=True, slots=True)
class Row:
    """Iterations f with equal `(f + offset) // length`."""

    length: int
    offset: int
    quotient: Quotient
    uniform: frozenset[Var]
    """Variables that are this quotient (plus a constant)."""


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """Where a function under masks counts what one loop does: stack slots of i64."""

    loop: Eqn
    iterations: str
    """Of single vectors."""
    lanes: str
