"""Data flow over structured blocks: what values depend on, each way of asking written once.

    for k in 0:i32 : n : 1:i32 carry c = a      `slice_of(body.eqns, [d])` is `b` and `d`;
      b: f32 = load x k                         `flows(loop)` yields a -> c, c_1 and d -> c, c_1,
      d: f32 = mul b c                          so a closure over it (`reached`) goes around the loop
      yield d

Reasons, and the lattices of the passes that are not closures, are in docs/design/0027-data-flow.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from qdtrace.ir.carries import carries_of
from qdtrace.ir.program import Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

    from qdtrace.ir.program import Atom, Block, Eqn

T = TypeVar("T")
F = TypeVar("F")


def slice_of(
    eqns: Sequence[Eqn], wanted: Iterable[Atom], kept: Callable[[Eqn], bool] = lambda eqn: False
) -> tuple[Eqn, ...]:
    """Returns the equations that compute `wanted` atoms, and those that are `kept` with what they read, in order."""
    needed = {a for a in wanted if isinstance(a, Var)}
    found: list[Eqn] = []
    for eqn in reversed(eqns):
        if not needed.isdisjoint(eqn.outvars) or kept(eqn):
            needed.update(used_vars(eqn))
            found.append(eqn)
    return tuple(reversed(found))


def makers(atom: Atom, made: Mapping[Var, Eqn], known: Container[Atom]) -> Iterator[Eqn]:
    """Yields the equations that a value is computed by, operands first, without those of `known` values. The user makes
    the result of each known before it asks for the next."""
    waiting = [atom]
    while waiting:
        eqn = made.get(waiting[-1]) if isinstance(waiting[-1], Var) and waiting[-1] not in known else None
        unknown = [] if eqn is None else [a for a in eqn.invars if a not in known and isinstance(a, Var) and a in made]
        waiting += unknown
        if not unknown:
            waiting.pop()
            if eqn is not None:
                yield eqn


def reached(roots: Iterable[T], edges: Callable[[T], Iterable[T]], without: Container[T] = ()) -> set[T]:
    """Returns the roots and all that edges lead to from them, on paths that meet nothing of `without`."""
    found = {each for each in roots if each not in without}
    waiting = list(found)
    while waiting:
        for each in edges(waiting.pop()):
            if each not in found and each not in without:
                found.add(each)
                waiting.append(each)
    return found


def flows(eqn: Eqn) -> Iterator[tuple[Var, Var]]:
    """Yields pairs of a variable and one that may get its value, by the carries of an equation with blocks."""
    for carry in carries_of(eqn):
        for source in (carry.initial, *carry.results):
            if isinstance(source, Var):
                for target in (*carry.params, carry.outvar):
                    yield source, target


class Flow(Rebuilder, Generic[T, F]):
    """Rebuilds a graph with the facts that hold at the current place: from the start to the end, or backward.

    A user changes `facts` where it visits an equation, and joins those of the sides of a branch.
    """

    backward = False
    """True if equations are visited from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[T, F] = {}

    def copied(self, fact: F) -> F:
        """Returns a fact that changes apart from this one; the same if facts never change."""
        return fact

    def taken(self, keys: Iterable[T]) -> dict[T, F]:
        """Removes the facts about keys and returns them."""
        return {key: self.facts.pop(key) for key in keys if key in self.facts}

    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Returns the equations rebuilt, visited in the order of the flow."""
        return super().rebuild_eqns(eqns[::-1])[::-1] if self.backward else super().rebuild_eqns(eqns)

    def sides(
        self, eqn: Eqn, keys: Collection[T], starts: Iterable[Mapping[T, F]]
    ) -> tuple[tuple[Block, ...], list[dict[T, F]]]:
        """Rebuilds each block of an equation from its facts about `keys`, of which none are left then.

        Returns the blocks, and the facts where the flow leaves each of them.
        """
        blocks: list[Block] = []
        ends: list[dict[T, F]] = []
        for number, start in zip(range(len(eqn.blocks)), starts, strict=False):
            self.facts.update({key: self.copied(fact) for key, fact in start.items()})
            blocks.append(self.region(eqn, number))
            ends.append(self.taken(keys))
        return tuple(blocks), ends
