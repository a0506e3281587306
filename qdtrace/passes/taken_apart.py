"""Private arrays that become values once short loops are unrolled: all of their indices are constants then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.cost import operations
from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import ATOMIC, CELL, FOR, WHILE
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Var, is_local, ref_type
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.jam import carries_products, products_summed
from qdtrace.passes.mem2reg import SLOT_LIMIT

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine


class Apart:
    """The private arrays whose indices are all constants once short loops are unrolled."""

    def __init__(self, body: Block, machine: Machine) -> None:
        self._machine = machine
        self._joined = any(map(self.is_joined, walk_eqns(body)))
        self._largest = machine.scalars_of_matrices if self._joined else SLOT_LIMIT
        self.known: set[Atom] = set()
        """Values that are constants once short loops are unrolled."""
        self.arrays: set[Atom] = set()
        self._rejected: set[Atom] = set()
        self._most = max(machine.unrolled_away.trips, machine.scalars_of_rows)
        """Most elements of an array that become values for loops which run once in an iteration."""
        self._of_rows: set[Atom] = set()
        """Indices that run over more elements than that, once in an iteration, and what they make."""
        self._rows: set[Atom] = set()
        self._picked: set[Atom] = set()
        """Arrays of which an element is met outside of loops."""
        self._visit(body, repeated=False)
        self.arrays -= self._rejected | (self._rows - self._picked)

    def copied(self, env: dict[Var, Atom]) -> None:
        """Adds the copies of known values and arrays; `env` maps originals to copies."""
        for facts in (self.known, self.arrays):
            facts.update([new for old, new in env.items() if old in facts])

    def _visit(self, block: Block, *, repeated: bool, of_rows: bool = False) -> None:
        for eqn in block.eqns:
            prim = eqn.primitive
            if prim is CELL:
                if ref_type(eqn.outvars[0]).size <= self._largest:
                    self.arrays.add(eqn.outvars[0])
            elif eqn.primitive.values is not None:
                indices = indices_of(eqn)
                if prim is ATOMIC or not self._all_known(indices):
                    self._rejected.add(eqn.invars[0])
                elif not self._of_rows.isdisjoint(indices):
                    self._rows.add(eqn.invars[0])
                elif all(isinstance(k, Literal) for k in indices):
                    self._picked.add(eqn.invars[0])
            elif prim is FOR and self._may_go(eqn):
                self.known.add(eqn.index)
                if not repeated and (of_rows or _elements(eqn) > self._most):
                    self._of_rows.add(eqn.index)
            elif not eqn.blocks and self._all_known(eqn.invars):
                self.known.update(eqn.outvars)
                if not self._of_rows.isdisjoint(eqn.invars):
                    self._of_rows.update(eqn.outvars)
            several = prim is FOR and sum(e.primitive.loops for e in eqn.blocks[0].eqns) > 1
            inside = repeated or prim is WHILE or several
            board = of_rows or (prim is FOR and _elements(eqn) > self._most)
            for inner in eqn.blocks:
                self._visit(inner, repeated=inside, of_rows=board)

    def _may_go(self, loop: Eqn) -> bool:
        trips = trip_count(*loop.bounds)
        if not trips or not self._machine.unrolled_away.allows(trips, trips * operations(loop.blocks[0])):
            return False
        is_joined = self._joined and any(map(self.is_joined, (loop, *walk_eqns(loop.blocks[0]))))
        return loop.params.get("unroll") is not False and not is_joined

    def is_joined(self, loop: Eqn) -> bool:
        """Returns whether an equation is a loop over sums of products that `jam` takes side by side, from memory.

        Long sums, and those over matrices, have more operands than there are registers.
        """
        if not self._machine.keeps_rows or loop.primitive is not FOR:
            return False
        trips = trip_count(*loop.bounds)
        if not (carries_products(loop) if trips is not None else products_summed(loop, taken_away=True)):
            return False
        read = [e.invars[0] for e in loop.blocks[0].eqns if e.primitive.values is not None]
        largest = max((ref_type(ref).size for ref in read if is_local(ref)), default=0)
        return (trips or 0) > self._machine.written_out or largest > self._machine.scalars_of_matrices

    def _all_known(self, atoms: tuple[Atom, ...]) -> bool:
        return all([isinstance(a, Literal) or a in self.known for a in atoms])  # noqa: C419 - twice as fast


def _elements(loop: Eqn) -> int:
    """Returns how many times a nest of loops over the elements of an array, which carry nothing, runs its body."""
    trips = 1 if loop.initials else trip_count(*loop.bounds) or 1
    inner = [_elements(e) for e in loop.blocks[0].eqns if e.primitive is FOR]
    return trips * max(inner, default=1)
