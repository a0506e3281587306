"""How many states of a loop reverse mode keeps, and why: a choice a loop, within the memory that a lane may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qdtrace.autodiff.thinning import slots_for

if TYPE_CHECKING:
    from qdtrace.errors import Loc

STACK_BYTES = 1 << 14
"""Bytes of the stack of one loop and one lane; what needs more thins."""
LEAST_BITS, MOST_BITS = 5, 12
"""Logarithms of the number of states that a stack that thins keeps, whatever their size."""
LANE_LIMIT = 1 << 26
"""Bytes of private memory that an iteration may have in reverse mode, however much is free."""


@dataclass(frozen=True, slots=True)
class StorageChoice:
    """What is kept of one loop."""

    loc: Loc | None
    """Where the loop is."""
    reason: str
    slots: int
    """Of the stack."""
    nbytes: int
    """Of the stack of one lane."""
    thinned_bits: int | None = None
    """Logarithm of the number of states that are kept, where they are thinned out as the loop runs on."""

    def __str__(self) -> str:
        return self.reason if self.loc is None else f"{self.loc}: {self.reason}"


def choose_storage(trips: int | None, state: int, budget: int, loc: Loc | None = None) -> StorageChoice:
    """The choice for a loop of at most `trips` iterations (None: not known) whose state has `state` bytes.

    `budget` is the memory that a lane has left. What thins takes less than that, as far as a stack can.
    """
    if not state:
        return StorageChoice(loc, "it carries nothing from one iteration to the next: nothing is kept", 1, 0)
    allowed = min(STACK_BYTES, budget)
    if trips is not None and trips * state <= allowed:
        reason = f"all of at most {trips} states of {_bytes(state)} are kept: {_bytes(trips * state)} a lane"
        return StorageChoice(loc, reason, max(trips, 1), max(trips, 1) * state)
    bits = LEAST_BITS
    while bits < MOST_BITS and slots_for(bits + 1) * state <= allowed:
        bits += 1
    if trips is None:
        why = "the number of iterations is known only at run time"
    else:
        limit = "a stack may have" if budget >= STACK_BYTES else "ad_stack_memory leaves"
        why = f"{trips} iterations would keep {_bytes(trips * state)} a lane, more than the {_bytes(allowed)} {limit}"
    nbytes = slots_for(bits) * state
    kept = f"at most {1 << bits} states of {_bytes(state)} are kept, the others are run again: {_bytes(nbytes)} a lane"
    return StorageChoice(loc, f"{why}; {kept}", slots_for(bits), nbytes, bits)


@dataclass(slots=True)
class Stacks:
    """The memory of a lane for the loops of a program, and the choices made so far."""

    budget: int = LANE_LIMIT
    """Bytes of one task."""
    choices: list[StorageChoice] = field(default_factory=list[StorageChoice])

    def choose(self, trips: int | None, state: int, used: int, loc: Loc | None) -> StorageChoice:
        """The choice for the next loop of a task that uses some memory already: half of what is left, for loops inside
        need some too."""
        self.choices.append(choose_storage(trips, state, (self.budget - used) // 2, loc))
        return self.choices[-1]


def _bytes(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1024:.4g} KiB"
