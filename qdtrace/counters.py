"""Counters of what this process traces, derives, compiles and loads, and the seconds of each stage: see `stats`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

counts: Counter[str] = Counter()
hits: Counter[str] = Counter()
misses: Counter[str] = Counter()
seconds: Counter[str] = Counter()
lock = threading.Lock()
"""Held where these change and where they are read together."""


def count(**increments: int) -> None:
    """Adds to the counters of those names."""
    with lock:
        counts.update(increments)


def hit(cache: str) -> None:
    """Notes that a cache had what was asked for."""
    with lock:
        hits[cache] += 1


def miss(cache: str, reason: str) -> None:
    """Notes that a cache did not have what was asked for."""
    with lock:
        misses[f"{cache}: {reason}"] += 1


class _Open(threading.local):
    """The open stages of a thread, with the seconds that the stages inside of each took."""

    inside: list[float]

    def __init__(self) -> None:
        self.inside = [0.0]


_open = _Open()


@contextmanager
def timed(stage: str) -> Generator[None]:
    """Adds the time of its block, without that of stages inside of it, to the seconds of a stage."""
    began, inside = time.perf_counter(), _open.inside
    inside.append(0.0)
    try:
        yield
    finally:
        passed = time.perf_counter() - began
        with lock:
            seconds[stage] += passed - inside.pop()  # type: ignore[assignment]
        inside[-1] += passed
