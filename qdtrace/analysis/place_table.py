"""Places of one reference with something known about each, so that a write finds what it may touch quickly.

Places are grouped by what varies in the index: in one group other constants are other elements, so only the places
of other groups are compared one by one, and only where a group is small. The number of places is limited. So the work
of one access is bounded, whatever the size of the task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from qdtrace.analysis.places import Meeting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.analysis.places import Constants, Place, Places, Terms

LIMIT = 256
"""Places of one reference at most; where there are more, the oldest is forgotten."""
SCAN = 64
"""Places that are compared one by one; where there are more, all are taken to meet."""

T = TypeVar("T")


class PlaceTable(Generic[T]):
    """What is known of some places of one reference."""

    def __init__(self) -> None:
        self.groups: dict[Terms, dict[Constants, tuple[Place, T]]] = {}
        self.count = 0

    def copy(self) -> PlaceTable[T]:
        """A table of its own with the same content."""
        made: PlaceTable[T] = PlaceTable()
        made.groups = {terms: dict(group) for terms, group in self.groups.items()}
        made.count = self.count
        return made

    def __contains__(self, place: Place) -> bool:
        return place.constants in self.groups.get(place.terms, ())

    def __iter__(self) -> Iterator[tuple[Place, T]]:
        for group in self.groups.values():
            yield from group.values()

    def get(self, place: Place) -> T | None:
        """What is known of a place."""
        found = self.groups.get(place.terms, {}).get(place.constants)
        return None if found is None else found[1]

    def put(self, place: Place, value: T) -> None:
        """Takes note of a place."""
        if self.count >= LIMIT:
            oldest = next(iter(self.groups.values()))
            self.remove(next(iter(oldest.values()))[0])
        group = self.groups.setdefault(place.terms, {})
        self.count += place.constants not in group
        group[place.constants] = place, value

    def remove(self, place: Place) -> None:
        """Forgets a place, if it is known."""
        group = self.groups.get(place.terms)
        if group is not None and group.pop(place.constants, None) is not None:
            self.count -= 1
            if not group:
                del self.groups[place.terms]

    def forget(self, place: Place, places: Places) -> None:
        """Forgets what may be the same element."""
        for other in self.meeting(place, places):
            self.remove(other)

    def meeting(self, place: Place, places: Places) -> list[Place]:
        """The known places that may be the same element."""
        found: list[Place] = []
        for terms, group in self.groups.items():
            if terms == place.terms:
                if place.constants in group:
                    found.append(group[place.constants][0])
            elif len(group) > SCAN:
                found += [p for p, _ in group.values()]
            else:
                found += [p for p, _ in group.values() if places.meet(p, place) is not Meeting.NEVER]
        return found
