"""Chooses how many states of each loop reverse mode keeps, within the memory of a lane, and gives the reason."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from qdtrace.analysis.machine import CPU
from qdtrace.autodiff.loops.thinning import slots_for
from qdtrace.frozen import frozen, mutable

if TYPE_CHECKING:
    from qdtrace.analysis.machine import ReverseLimits
    from qdtrace.errors import Loc

LEAST_BITS, MOST_BITS = 5, 12
"""Bounds of the logarithm of the number of states that a thinned stack keeps, whatever their size."""
SAY_MOST = (
    "state the most iterations where you know them, then no state is dropped: `most=64` in qd.range or qd.while_, "
    "`jnp.minimum(n, 64)` as the bound of a loop of lax"
)
"""The way out of a loop of unknown length."""


@frozen(slots=True)
class StorageChoice:
    """The choice of which states of one loop are kept."""

    loc: Loc | None
    """Location of the loop in the user's source."""
    reason: str
    slots: int
    """Number of slots of the stack."""
    nbytes: int
    """Bytes of the stack of one lane."""
    thinned_bits: int | None = None
    """Logarithm of the number of states that are kept, if they are thinned out as the loop runs on."""
    steps: int = 1
    """Iterations of a segment, of which one state is kept at most (`segments`)."""
    rest: int = 0
    """Additional slots for the iterations after the last whole segment."""
    ran: int | None = None
    """Most iterations in calls with `debug=True` so far, or None if there was none."""
    help: str = ""
    """Text on what the user may state so that fewer states are run again; empty if there is nothing."""
    is_slow: bool = False
    """True if the length is unknown and few states fit, as arrays are part of them: the walk back takes many times the
    time of the loop."""

    def after(self, ran: int | None) -> StorageChoice:
        """Returns the choice, with what it came to in a run in which the loop had at most `ran` iterations, if any."""
        if ran is None:
            return self
        said = f"{self.reason}; with debug=True the loop ran {ran} iterations at most"
        if self.thinned_bits is not None:
            last = max(ran - 1, 0) // self.steps
            stride = 1 << max(last.bit_length() - self.thinned_bits, 0)
            said += ", and all fit" if stride == 1 else f", of which one state in {stride * self.steps} was kept"
        return replace(self, reason=said, ran=ran)

    def text(self) -> str:
        """Returns the reason with the help."""
        return f"{self.reason}; {self.help}" if self.help else self.reason

    def __str__(self) -> str:
        return self.text() if self.loc is None else f"{self.loc}: {self.text()}"


@frozen(slots=True)
class LoopSize:
    """The numbers of a loop that the choice depends on."""

    trips: int | None
    """Upper bound of the trip count; None if it is not known."""
    state: int
    """Bytes of the state."""
    is_exact: bool = False
    """True if the trip count always equals `trips`."""
    most_steps: int = 1
    """Most iterations that may be one segment (`segment_length`)."""
    has_arrays: bool = False
    """True if private arrays are a part of the state."""
    is_nested: bool = False
    """True if the loop has another one inside."""

    def steps(self) -> int:
        """Returns the iterations of a segment: a divisor of the exact trip count above half of the most, if there is
        one, so that no iterations remain. Otherwise a power of two, as iteration numbers are divided by it."""
        most = self.most_steps
        if self.trips is not None:
            most = max(1, min(most, self.trips))
            if self.is_exact:
                for steps in range(most, most // 2, -1):
                    if self.trips % steps == 0:
                        return steps
        return 1 << (most.bit_length() - 1)

    def rest(self) -> int:
        """Returns the most iterations after the last whole segment."""
        return self.trips % self.steps() if self.is_exact and self.trips is not None else self.steps() - 1

    def segments(self) -> int | None:
        """Returns the most segments, or None if that is not known. A partial one counts if the trip count may vary."""
        if self.trips is None:
            return None
        return self.trips // self.steps() if self.is_exact else -(-self.trips // self.steps())


def choose_storage(
    size: LoopSize, budget: int, loc: Loc | None = None, limits: ReverseLimits = CPU.reverse
) -> StorageChoice:
    """Returns the choice for a loop.

    `budget` is the memory that a lane has left. A thinned stack keeps to it unless its least size exceeds it.
    """
    trips, state, steps, rest, segments = size.trips, size.state, size.steps(), size.rest(), size.segments()
    if not state:
        return StorageChoice(loc, "it carries nothing from one iteration to the next: nothing is kept", 1, 0)
    which = "all" if steps == 1 else f"one in {steps}"
    again = "" if steps == 1 else ", the steps between are run again at once"
    budget = max(budget, 0)
    open_ = limits.open_stack_bytes * (limits.open_arrays if size.has_arrays and size.is_nested else 1)
    allowed = min(open_ if segments is None else limits.stack_bytes, budget)
    bits = LEAST_BITS
    while bits < MOST_BITS and (slots_for(bits + 1, segments) + rest) * state <= allowed:
        bits += 1
    thinned = (slots_for(bits, segments) + rest) * state
    if segments is not None and (segments + rest) * state <= max(allowed, thinned):
        nbytes = (max(segments, 1) + rest) * state
        reason = f"{which} of at most {trips} states of {_bytes(state)} are kept{again}: {_bytes(nbytes)} a lane"
        return StorageChoice(loc, reason, max(segments, 1), nbytes, None, steps, rest)
    if segments is None:
        why = "the number of iterations is known only at run time"
    else:
        needs = f"{trips} iterations would keep {_bytes((segments + rest) * state)} a lane"
        limit = "a stack may have" if budget >= limits.stack_bytes else "ad_stack_memory leaves"
        why = f"{needs}, more than the {_bytes(allowed)} {limit}"
    kept = f"at most {1 << bits} states of {_bytes(state)} are kept"
    if steps > 1:
        kept += f", one in {steps} or fewer"
    reason = f"{why}; {kept}, the others are run again: {_bytes(thinned)} a lane"
    choice = StorageChoice(loc, reason, slots_for(bits, segments), thinned, bits, steps, rest)
    if segments is None:
        return replace(choice, help=SAY_MOST, is_slow=size.has_arrays and bits == LEAST_BITS)
    return choice


@mutable(slots=True)
class Stacks:
    """The memory of a lane for the loops of a program, and the choices made so far."""

    budget: int = CPU.reverse.lane_bytes
    """Bytes of private memory that a lane has for one task."""
    limits: ReverseLimits = CPU.reverse
    """Limits of reverse mode on the machine that the program is for."""
    memory: int = 1 << 62
    """Bytes that all lanes which run at a time may take together for what cannot be thinned."""
    fewest_lanes: int = 1
    """Lanes that run at a time if each needs much private memory."""
    choices: list[StorageChoice] = field(default_factory=list[StorageChoice])
    is_asked: bool = False
    """True if a choice was made, which may be another one within another budget."""
    needed: int = 0
    """Most bytes of all lanes together that were asked of `room`; with less memory they are refused."""

    def room(self, iterations: int | None, nbytes: int) -> int:
        """Returns the bytes that one of the iterations of a task may take for what cannot be thinned; `nbytes` are
        asked for. A small stack is always allowed, as for loops that thin."""
        lanes = self.fewest_lanes if iterations is None else max(1, min(self.fewest_lanes, iterations))
        if nbytes > self.limits.stack_bytes:
            self.needed = max(self.needed, nbytes * lanes)
        return max(self.memory // lanes, self.limits.stack_bytes)

    def log_room(self) -> int:
        """Returns the most bytes of a lane's undo logs, which do not thin. Short ones are always allowed."""
        self.is_asked = True
        return max(min(self.budget, self.limits.lane_bytes) // 4, self.limits.stack_bytes)

    def add_log(self, nbytes: int, loc: Loc | None) -> None:
        """Notes that a loop keeps old values of the elements that it changes (`undo_log`)."""
        reason = f"what its stores to private arrays overwrite is kept, not the arrays: {_bytes(nbytes)} a lane"
        self.choices.append(StorageChoice(loc, reason, 1, nbytes))

    def choose(self, size: LoopSize, used: int, loc: Loc | None) -> StorageChoice:
        """Makes the choice for the next loop of a task that already uses `used` bytes. Its budget is half of what is
        left, as the loops inside need some too."""
        self.is_asked = True
        self.choices.append(choose_storage(size, (self.budget - used) // 2, loc, self.limits))
        return self.choices[-1]


def _bytes(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1024:.4g} KiB"
