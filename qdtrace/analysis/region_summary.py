"""Summaries of regions: the locations that a structured equation surely accesses, reads first or may write.

Sets hold the keys of locations (`analysis/alias`). A location whose index varies inside of a loop is no location
outside; its key is in the sets too, but nothing outside can be equal to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import surely_runs
from qdtrace.ir.primitives import FOR, IF, LOAD, STORE

if TYPE_CHECKING:
    from qdtrace.analysis.alias import AliasAnalysis, Constants, Terms
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Block, Eqn, Var

    Key = tuple[Var, Terms, Constants]


@dataclass(frozen=True, slots=True)
class Summary:
    """The accesses to locations from the start of a region to its end."""

    accessed: frozenset[Key]
    """Locations that are surely accessed."""
    written: frozenset[Key]
    """Locations that are surely written."""
    first_read: frozenset[Key]
    """Locations that are surely read (by an accumulation or atomic too), and not written before that."""
    exposed: frozenset[Key]
    """Locations that may be read before they are surely written (upward exposed)."""
    perhaps_written: frozenset[Key]


class _Running:
    """A summary that grows equation by equation."""

    def __init__(self) -> None:
        self.accessed: set[Key] = set()
        self.written: set[Key] = set()
        self.first_read: set[Key] = set()
        self.exposed: set[Key] = set()
        self.perhaps_written: set[Key] = set()

    def access(self, key: Key, prim: Primitive) -> None:
        self.accessed.add(key)
        if prim is not STORE:
            if key not in self.perhaps_written:
                self.first_read.add(key)
            if key not in self.written:
                self.exposed.add(key)
        if prim is not LOAD:
            self.written.add(key)
            self.perhaps_written.add(key)

    def region(self, summary: Summary) -> None:
        self.accessed |= summary.accessed
        self.first_read |= summary.first_read - self.perhaps_written
        self.exposed |= summary.exposed - self.written
        self.written |= summary.written
        self.perhaps_written |= summary.perhaps_written

    def close(self) -> Summary:
        return Summary(
            frozenset(self.accessed),
            frozenset(self.written),
            frozenset(self.first_read),
            frozenset(self.exposed),
            frozenset(self.perhaps_written),
        )


class Summaries:
    """The summaries of a task's regions, made once each."""

    def __init__(self, aliases: AliasAnalysis) -> None:
        self._aliases = aliases
        self._blocks: dict[int, tuple[Block, Summary]] = {}

    def of_block(self, block: Block) -> Summary:
        """Returns the summary of one execution of a block."""
        found = self._blocks.get(id(block))
        if found is None:
            running = _Running()
            for eqn in block.eqns:
                if eqn.primitive.is_access:
                    running.access(self._aliases.of(eqn).key, eqn.primitive)
                elif eqn.blocks:
                    running.region(self.of_eqn(eqn))
            found = self._blocks[id(block)] = block, running.close()
        return found[1]

    def of_body(self, loop: Eqn) -> Summary:
        """Returns the summary of a loop that runs: a `for`'s iteration; a `while`'s test and perhaps its body."""
        if loop.primitive is FOR:
            return self.of_block(loop.blocks[0])
        running = _Running()
        running.region(self.of_block(loop.blocks[0]))
        running.region(_perhaps(self.of_block(loop.blocks[1])))
        return running.close()

    def of_eqn(self, eqn: Eqn) -> Summary:
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


def _perhaps(summary: Summary) -> Summary:
    nothing = frozenset[object]()
    return Summary(nothing, nothing, nothing, summary.exposed, summary.perhaps_written)  # type: ignore[arg-type]
