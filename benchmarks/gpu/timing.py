"""Times of calls that run on a device: in a queue, where a call's dispatch hides behind the one before, and alone."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TURN = 0.04
"""Seconds of a turn, about."""
MOST_CALLS = 2000
MOST_ALONE = 20
"""Calls of a round with nothing else in the queue."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of one call."""

    ms: float
    """In a queue: the median of turns."""
    smallest: float
    latency: float
    """Median from the call to its result on the device, with nothing else in the queue."""

    @property
    def words(self) -> str:
        """The latency, where it is not what a call in a queue takes."""
        return f"one call {self.latency:.3g} ms" if self.latency > 1.15 * self.ms else ""


def queued(call: Callable[[], Any], calls: int) -> float:
    """Milliseconds a call when so many are enqueued one behind the other."""
    out = None
    began = time.perf_counter()
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return 1e3 * (time.perf_counter() - began) / calls


def alternate(calls: Sequence[Callable[[], Any]], rounds: int = 7, turn: float = TURN) -> list[Times]:
    """The times of each, taking turns; each was called before. A call that takes longer than a turn is one."""
    first = [queued(call, 1) for call in calls]
    for k, call in enumerate(calls):
        if first[k] < 1e3 * turn:
            first[k] = statistics.median(queued(call, 1) for _ in range(5))
    counts = [max(1, min(MOST_CALLS, int(1e3 * turn / t))) for t in first]
    found: list[list[float]] = [[] for _ in calls]
    alone: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for times, call, count in zip(found, calls, counts, strict=True):
            times.append(queued(call, count))
        for k in range(MOST_ALONE):
            for times, call, count in zip(alone, calls, counts, strict=True):
                if k < count:
                    times.append(queued(call, 1))
    return [
        Times(statistics.median(t), min(t), statistics.median(one)) for t, one in zip(found, alone, strict=True)
    ]
