"""Checks that failed on a device, whose calls nobody waits for: backends say where to look, calls look."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.errors import QdError

watched: list[Callable[[], QdError | None]] = []
"""What `raise_failures` calls."""


def watch(look: Callable[[], QdError | None]) -> None:
    """Has `raise_failures` call a function that gives the error of what failed since it was last called."""
    watched.append(look)


def raise_failures() -> None:
    """Raises what failed in earlier calls, if anything did."""
    for look in watched:
        error = look()
        if error is not None:
            raise error
