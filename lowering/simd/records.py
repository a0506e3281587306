"""Groups of stores to an array of small records, planned for a block before its text is written.

Lanes that store all components of neighbouring records, one store after another, can write whole vectors. So stores of
components form a group until the group has all components, or until another equation needs the memory; then the
incomplete group is scattered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen, mutable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowering.simd.descriptions import Component
    from qdtrace.ir.program import Var


@frozen(slots=True)
class Touch:
    """An equation's access to elements of a buffer."""

    ref: Var | None
    """The buffer; None stands for all buffers."""
    component: Component | None = None
    """The component of neighbouring records, or None for any other access."""
    stores: bool = False


@mutable(eq=False, slots=True)
class StoreGroup:
    """A group of stores of components of the same records."""

    ref: Var
    components: list[Component]

    @property
    def is_complete(self) -> bool:
        """Returns whether all components are there."""
        return len(self.components) == self.components[0].size

    def has_room_for(self, touch: Touch) -> bool:
        """Returns whether the access is to a further component of the same records."""
        first, found = self.components[0], touch.component
        if touch.ref is not self.ref or found is None or (found.size, found.first) != (first.size, first.first):
            return False
        return all(c.number != found.number for c in self.components)


@frozen(slots=True)
class Step:
    """The actions on groups of stores at an equation."""

    written: tuple[StoreGroup, ...] = ()
    """Incomplete groups that must be written before the equation."""
    joined: StoreGroup | None = None
    """The group that the equation's store joins; the last store of a complete group writes it."""
    waits: bool = False
    """True if some group is incomplete after the equation."""


_NOTHING, _WAITS = Step(), Step(waits=True)


def group_stores(touches: Iterable[Touch | None]) -> list[Step]:
    """Returns the steps of consecutive equations, whose access is None if they touch no memory, and of their end."""
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
