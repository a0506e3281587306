"""Which stores to an array of small records are written together: planned for a block before its text is written.

Lanes that store all components of neighbouring records, one store after another, can write whole vectors. So stores of
a component form a group until the group has all components, or until something in between needs the memory; what is
incomplete then is scattered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowering.simd.descriptions import Component
    from qdtrace.ir.program import Var


@dataclass(frozen=True, slots=True)
class Touch:
    """What an equation does with elements of a buffer."""

    ref: Var | None
    """None: of all buffers."""
    component: Component | None = None
    """None: with other elements than a component of neighbouring records."""
    stores: bool = False


@dataclass(eq=False, slots=True)
class StoreGroup:
    """Stores of components of the same records."""

    ref: Var
    components: list[Component]

    @property
    def is_complete(self) -> bool:
        """All components are there."""
        return len(self.components) == self.components[0].size

    def has_room_for(self, touch: Touch) -> bool:
        """Whether it is another component of the same records that is touched."""
        first, found = self.components[0], touch.component
        if touch.ref is not self.ref or found is None or (found.size, found.first) != (first.size, first.first):
            return False
        return all(c.number != found.number for c in self.components)


@dataclass(frozen=True, slots=True)
class Step:
    """What happens with groups at an equation."""

    written: tuple[StoreGroup, ...] = ()
    """Incomplete groups, written before it."""
    joined: StoreGroup | None = None
    """The group that its store belongs to; the last store of a complete group writes it."""
    waits: bool = False
    """Some group is incomplete after it."""


_NOTHING, _WAITS = Step(), Step(waits=True)


def group_stores(touches: Iterable[Touch | None]) -> list[Step]:
    """The steps of equations one after another, None for those that touch no memory; and one for their end."""
    steps: list[Step] = []
    open_: list[StoreGroup] = []
    for touch in (*touches, Touch(None)):
        if touch is None:
            steps.append(_NOTHING if not open_ else _WAITS)
            continue
        near = [group for group in open_ if touch.ref is None or touch.ref is group.ref]
        written = tuple(group for group in near if not group.has_room_for(touch))
        open_ = [group for group in open_ if group not in written]
        joined = None
        if touch.stores and touch.ref is not None and touch.component is not None:
            joined = next((group for group in open_ if group.has_room_for(touch)), None)
            if joined is None:
                open_.append(joined := StoreGroup(touch.ref, []))
            joined.components.append(touch.component)
            if joined.is_complete:
                open_.remove(joined)
        steps.append(Step(written, joined, bool(open_)))
    return steps
