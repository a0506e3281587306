"""Summaries of regions: the locations that a structured equation surely accesses, reads first or may write.

Sets hold keys of locations, tuples that begin with the reference: those of `analysis/memory`, or elements of cells. A
location whose index varies inside of a loop is no location outside; its key is in the sets too, but nothing outside can
be equal to it. Locations of a cell end with the block that makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from qdtrace.analysis.index.trips import surely_runs
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import CELL, FOR, IF, LOAD, STORE
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from qdtrace.analysis.memory import Constants, Terms
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Block, Eqn

    Key = tuple[Var, Terms, Constants]

K = TypeVar("K", bound="tuple[Var, *tuple[object, ...]]")


@frozen(slots=True)
class Summary(Generic[K]):
    """The accesses to locations from the start of a region to its end."""

    accessed: frozenset[K]
    """Locations that are surely accessed."""
    written: frozenset[K]
    """Locations that are surely written."""
    first_read: frozenset[K]
    """Locations that are surely read (by an accumulation or atomic too), and not written before that."""
    exposed: frozenset[K]
    """Locations that may be read before they are surely written (upward exposed)."""
    perhaps_written: frozenset[K]


class _Running(Generic[K]):
    """A summary that grows equation by equation."""

    def __init__(self) -> None:
        self.accessed: set[K] = set()
        self.written: set[K] = set()
        self.first_read: set[K] = set()
        self.exposed: set[K] = set()
        self.perhaps_written: set[K] = set()

    def access(self, key: K, prim: Primitive) -> None:
        self.accessed.add(key)
        if prim is not STORE:
            if key not in self.perhaps_written:
                self.first_read.add(key)
            if key not in self.written:
                self.exposed.add(key)
        if prim is not LOAD:
            self.written.add(key)
            self.perhaps_written.add(key)

    def region(self, summary: Summary[K]) -> None:
        self.accessed |= summary.accessed
        self.first_read |= summary.first_read - self.perhaps_written
        self.exposed |= summary.exposed - self.written
        self.written |= summary.written
        self.perhaps_written |= summary.perhaps_written

    def close(self, gone: Collection[Var] = ()) -> Summary[K]:
        """Returns the summary, without locations of cells that are `gone`."""
        sets = self.accessed, self.written, self.first_read, self.exposed, self.perhaps_written
        return Summary(*(frozenset([key for key in each if key[0] not in gone] if gone else each) for each in sets))


class Summaries(Generic[K]):
    """The summaries of a task's regions, made once each."""

    def __init__(self, key_of: Callable[[Eqn], K | None]) -> None:
        """`key_of` returns the location that a memory equation accesses, or None if it does not matter."""
        self._key_of = key_of
        self._blocks: dict[int, tuple[Block, Summary[K]]] = {}

    def of_block(self, block: Block) -> Summary[K]:
        """Returns the summary of one execution of a block."""
        found = self._blocks.get(id(block))
        if found is None:
            running, made = _Running[K](), set[Var]()
            for eqn in block.eqns:
                if eqn.blocks:
                    running.region(self.of_eqn(eqn))
                elif eqn.primitive is CELL:
                    made.update(eqn.outvars)
                elif eqn.primitive.is_access and (key := self._key_of(eqn)) is not None:
                    running.access(key, eqn.primitive)
            found = self._blocks[id(block)] = block, running.close(made)
        return found[1]

    def of_body(self, loop: Eqn) -> Summary[K]:
        """Returns the summary of a loop that runs: a `for`'s iteration; a `while`'s test and perhaps its body."""
        if loop.primitive is FOR:
            return self.of_block(loop.blocks[0])
        running = _Running[K]()
        running.region(self.of_block(loop.blocks[0]))
        running.region(_perhaps(self.of_block(loop.blocks[1])))
        return running.close()

    def of_eqn(self, eqn: Eqn) -> Summary[K]:
        """Returns the summary of an equation with blocks."""
        if eqn.primitive is IF:
            then, other = map(self.of_block, eqn.blocks)
            return Summary(
                then.accessed & other.accessed,
                then.written & other.written,
                then.first_read & other.first_read,
                then.exposed | other.exposed,
                then.perhaps_written | other.perhaps_written,
            )
        body = self.of_body(eqn)
        return body if surely_runs(eqn) else _perhaps(body)


def _perhaps(summary: Summary[K]) -> Summary[K]:
    nothing = frozenset[object]()
    return Summary(nothing, nothing, nothing, summary.exposed, summary.perhaps_written)  # type: ignore[arg-type]
