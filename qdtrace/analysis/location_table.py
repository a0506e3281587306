"""A table of locations of one reference with a fact about each, so that a write quickly finds what it may touch.

Locations are grouped by the terms of the index: in one group other constants are other elements, so only the
locations of other groups are compared one by one, and only if a group is small. The number of locations is limited.
So the work of one access is bounded, whatever the size of the task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.analysis.memory import Constants, MemoryLocation, TaskMemory, Terms

LIMIT = 256
"""Largest number of locations of one reference; beyond it the oldest is dropped."""
SCAN = 64
"""Largest group whose locations are compared one by one; in a larger one all are assumed to alias."""

T = TypeVar("T")


class LocationTable(Generic[T]):
    """A bounded map from locations of one reference to facts about them."""

    def __init__(self) -> None:
        self.groups: dict[Terms, dict[Constants, tuple[MemoryLocation, T]]] = {}
        self.count = 0

    def copy(self) -> LocationTable[T]:
        """Returns an independent table with the same content."""
        made: LocationTable[T] = LocationTable()
        made.groups = {terms: dict(group) for terms, group in self.groups.items()}
        made.count = self.count
        return made

    def __contains__(self, location: MemoryLocation) -> bool:
        return location.constants in self.groups.get(location.terms, ())

    def __iter__(self) -> Iterator[tuple[MemoryLocation, T]]:
        for group in self.groups.values():
            yield from group.values()

    def get(self, location: MemoryLocation) -> T | None:
        """Returns the fact about a location, or None if there is none."""
        found = self.groups.get(location.terms, {}).get(location.constants)
        return None if found is None else found[1]

    def put(self, location: MemoryLocation, value: T) -> None:
        """Records a fact about a location."""
        if self.count >= LIMIT:
            oldest = next(iter(self.groups.values()))
            self.remove(next(iter(oldest.values()))[0])
        group = self.groups.setdefault(location.terms, {})
        self.count += location.constants not in group
        group[location.constants] = location, value

    def remove(self, location: MemoryLocation) -> None:
        """Removes a location if it is in the table."""
        group = self.groups.get(location.terms)
        if group is not None and group.pop(location.constants, None) is not None:
            self.count -= 1
            if not group:
                del self.groups[location.terms]

    def forget(self, location: MemoryLocation, memory: TaskMemory) -> None:
        """Removes all locations that may be the same element."""
        for other in self.meeting(location, memory):
            self.remove(other)

    def meeting(self, location: MemoryLocation, memory: TaskMemory) -> list[MemoryLocation]:
        """Returns the locations in the table that may be the same element."""
        found: list[MemoryLocation] = []
        for terms, group in self.groups.items():
            if terms == location.terms:
                if location.constants in group:
                    found.append(group[location.constants][0])
            elif len(group) > SCAN:
                found += [p for p, _ in group.values()]
            else:
                found += [p for p, _ in group.values() if memory.may_meet(p, location)]
        return found
