"""Descriptions of memory and of divisors, which emission functions share.

They are plain data, so that the emitters of constructs need not import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.ir.types import RefType


@frozen(slots=True)
class GlobalMemory:
    """A buffer of the call, with its pointer and its metadata."""

    pointer: str
    type: RefType
    alias: str
    """Metadata of accesses that says which references the buffer does not overlap."""
    invariant: str
    """Metadata of loads if the task never writes the buffer."""


@frozen(slots=True)
class PrivateMemory:
    """Private memory: for each element V vectors of W lanes."""

    pointer: str
    type: RefType
    shared: bool
    """True if all lanes share one copy, made in the head of the task."""
    stride: int = 1
    """Distance of neighbouring elements, if the copies of several threads are interleaved."""


@frozen(slots=True)
class OddDivisor:
    """The test whether a divisor is odd: it or its reciprocal is not a normal number."""

    lanes: tuple[str, ...]
    """Masks of the active lanes with an odd divisor; empty if the divisor is uniform."""
    some: str
    """Register of i1 that is true if some active lane has an odd divisor."""
