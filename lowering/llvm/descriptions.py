"""What emission passes around: descriptions of memory and of divisors.

Plain data without behaviour, so that the emitters of constructs need not import each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.ir.types import RefType


@dataclass(frozen=True, slots=True)
class GlobalMemory:
    """A buffer of the call."""

    pointer: str
    type: RefType
    alias: str
    """Metadata: what it does not overlap."""
    invariant: str
    """Metadata of loads when the task never writes it."""


@dataclass(frozen=True, slots=True)
class PrivateMemory:
    """Memory of each lane: element by element, V vectors of W lanes."""

    pointer: str
    type: RefType
    shared: bool
    """One copy for all lanes (made in the head of the task)."""
    stride: int = 1
    """Elements between neighbours, where threads lie side by side."""


@dataclass(frozen=True, slots=True)
class OddDivisor:
    """What is known of a divisor: whether it, or its reciprocal, is no normal number."""

    lanes: tuple[str, ...]
    """The active lanes where that is so, as masks; empty for a divisor that all lanes share."""
    some: str
    """Some active lane has one (i1)."""
