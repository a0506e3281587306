"""Undo logs: of a private array that a loop changes, the old values of its stores are kept instead of the array.

    for j in 0:i32 : 20:i32 : 1:i32            in the sweep, in front of the store: old[j, r] = a[r, j]
      for r in j : 20:i32 : 1:i32              in front of the walk back through j: for r from the last
        store a v r j                                                                 a[r, j] = old[j, r]

The walk back undoes the stores of an iteration, the last first, so the array is what it was in front of the iteration.
Each store has memory with an axis for each loop around it, so all lanes use the same place of it. Its indices, and the
bounds and conditions around it, are computed again from the numbers of iterations; what does not follow from these is
kept beside the old value.

Such an array has the same content wherever the walk back stands as the sweep had there: stores outside of swept loops
are undone too, from values that were loaded in front of them. So loops that only read it need no copy of it.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from qdtrace.analysis.index.trips import CountedLoop
from qdtrace.autodiff.loops.iterations import Iterations
from qdtrace.autodiff.loops.trip_counts import NUMBER
from qdtrace.frozen import mutable
from qdtrace.ir.builder import emit_loop
from qdtrace.ir.memory import first_index, indices_of, reference, written
from qdtrace.ir.primitives import FOR, IF
from qdtrace.ir.program import Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_all, walk_inside

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn

    Env = dict[Any, Atom]

I32 = DType.i32
OLD = "old"
"""Part of the key of the value that a store overwrote in an environment."""


class Emits(Protocol):
    """The part of a sweep that undoing needs."""

    builder: Builder

    def atom(self, env: Env, atom: Atom) -> Atom:
        """Returns the value of an atom of the task in the reverse task."""
        ...

    def atoms(self, env: Env, atoms: Iterable[Atom]) -> list[Atom]:
        """Returns the values of atoms of the task in the reverse task."""
        ...

    def plain(self, eqns: Sequence[Eqn], env: Env, live: bool) -> None:
        """Emits equations; `live` if they run for the first time in this task."""
        ...

    def private(self, dtype: DType, shape: tuple[int, ...], hint: str = "") -> Var:
        """Allocates private memory for the whole iteration."""
        ...


@mutable
class Site:
    """A store that is undone, or a branch or loop around one, and what is kept of it."""

    eqn: Eqn
    loops: tuple[Eqn, ...]
    """Loops around it whose iterations number the places of its memory; the sweep of the first one fills it."""
    shape: tuple[int, ...]
    """The most iterations of these loops."""
    kept: tuple[int, ...]
    """Positions of operands that cannot be computed again."""
    memory: dict[int, Var] = field(default_factory=dict[int, Var])
    """Memory of these operands by position; that of old values is at 0, the position of the array."""

    def dtypes(self) -> dict[int, DType]:
        """Returns the dtypes of what is kept, by position."""
        positions = (0, *self.kept) if self.eqn.primitive.writes else self.kept
        return {k: self.eqn.invars[k].dtype for k in positions}

    @property
    def nbytes(self) -> int:
        """Bytes that are kept of it."""
        return sum(dtype.itemsize for dtype in self.dtypes().values()) * prod(self.shape)


@mutable
class UndoLog:
    """The undo logs of one task."""

    sites: dict[Eqn, Site] = field(default_factory=dict["Eqn", Site])
    stores: set[Eqn] = field(default_factory=set["Eqn"])
    """Stores that the walk back undoes."""
    covered: dict[Eqn, set[Var]] = field(default_factory=dict["Eqn", set[Var]])
    """Arrays that have the right content when the walk back reaches a loop: it neither keeps nor copies them."""
    defined: dict[Var, Eqn] = field(default_factory=dict["Var", "Eqn"])
    """The equations that operands may be computed again by."""
    filling: Eqn | None = None
    """The loop whose sweep is emitted now."""

    def undoes(self, loop: Eqn) -> bool:
        """Returns whether the walk back through a loop undoes stores."""
        return loop in self.covered and any(e in self.sites for e in walk_inside(loop))

    def nbytes(self, loop: Eqn) -> int:
        """Returns the bytes that the sweep of a loop fills."""
        return sum(site.nbytes for site in self.sites.values() if site.loops[0] is loop)

    # The sweep.

    def allocate(self, sweep: Emits, loop: Eqn) -> None:
        """Allocates the memory that the sweep of a loop fills."""
        for site in self.sites.values():
            if site.loops[0] is loop:
                site.memory = {k: sweep.private(dtype, site.shape, "old") for k, dtype in site.dtypes().items()}

    def record(self, sweep: Emits, eqn: Eqn, env: Env) -> None:
        """Emits code that keeps what is needed to undo an equation, in front of the equation."""
        site = self.sites.get(eqn)
        if site is None or site.loops[0] is not self.filling:
            return
        at = [_number(sweep, loop, env) for loop in site.loops]
        operands = sweep.atoms(env, eqn.invars)
        if eqn.primitive.writes:
            operands[0] = _load_element(sweep, eqn, env)
        for k, memory in site.memory.items():
            sweep.builder.store(memory, operands[k], *at)

    def keep_old(self, sweep: Emits, eqn: Eqn, env: Env) -> None:
        """Loads what an equation overwrites, if it is a store that is undone and stands in no swept loop."""
        if eqn in self.stores:
            env[eqn, OLD] = _load_element(sweep, eqn, env)

    # The walk back.

    def restore_old(self, sweep: Emits, eqn: Eqn, env: Env) -> None:
        """Undoes a store whose old value was loaded."""
        if eqn in self.stores:
            array, *index = sweep.atoms(env, (reference(eqn), *indices_of(eqn)))
            sweep.builder.store(array, env[eqn, OLD], *index)  # type: ignore[arg-type]

    def undo(self, sweep: Emits, eqns: Iterable[Eqn], env: Env, arrays: Collection[Var]) -> None:
        """Emits code that undoes the stores of equations to `arrays`, the last first. `env` has the values around the
        equations and the numbers of iterations."""
        builder = sweep.builder
        for eqn in reversed([*eqns]):
            if eqn not in self.sites or not any(ref in arrays for ref in written(walk_all([eqn]))):
                continue
            operands = self._operands(sweep, self.sites[eqn], env)
            if eqn.primitive is IF:
                blocks = []
                for block in eqn.blocks:
                    with builder.block() as branch:
                        self.undo(sweep, block.eqns, dict(env), arrays)
                    blocks.append(branch.close())
                builder.emit("if", operands[0], blocks=blocks)
            elif eqn.primitive is FOR:
                self._undo_loop(sweep, eqn, [operands[0], operands[1], eqn.step], env, arrays)
            else:
                index = [operands[k] for k in range(first_index(eqn), len(eqn.invars))]
                builder.store(sweep.atom(env, reference(eqn)), operands[0], *index)  # type: ignore[arg-type]

    def _undo_loop(self, sweep: Emits, loop: Eqn, bounds: Sequence[Atom], env: Env, arrays: Collection[Var]) -> None:
        builder, (start, _, step) = sweep.builder, bounds
        together = Iterations.together(builder, builder.convert(CountedLoop(*bounds).emit_count(builder), I32))

        def iteration(t: Var, _: list[Var]) -> Sequence[Atom]:
            def own() -> list[Atom]:
                index = builder("add", start, builder("mul", builder.convert(t, start.dtype), step))
                self.undo(sweep, loop.blocks[-1].eqns, {**env, (loop, NUMBER): t, loop.index: index}, arrays)
                return []

            return together.only_own(t, own, ())

        last, down = builder("sub", together.most, literal(1, I32)), literal(-1, I32)
        emit_loop(builder, (last, down, down), (), iteration, index="t")

    def _operands(self, sweep: Emits, site: Site, env: Env) -> dict[int, Atom]:
        """Returns the operands that undoing an equation needs, by position; at 0 the old value of a store."""
        at = [env[loop, NUMBER] for loop in site.loops]
        found: dict[int, Atom] = {k: sweep.builder.load(memory, *at) for k, memory in site.memory.items()}
        for k in positions_of(site.eqn):
            if k not in found:
                found[k] = self._again(sweep, site.eqn.invars[k], env)
        return found

    def _again(self, sweep: Emits, atom: Atom, env: Env) -> Atom:
        """Returns the value of an atom; what is not in `env` is computed again."""
        if isinstance(atom, Var) and atom not in env and atom in self.defined:
            eqn = self.defined[atom]
            for operand in eqn.invars:
                self._again(sweep, operand, env)
            sweep.plain([eqn], env, live=False)
        return sweep.atom(env, atom)


def positions_of(eqn: Eqn) -> range:
    """Returns the positions of the operands by which an equation is undone: indices, bounds or the condition."""
    if eqn.blocks:
        return range(2 if eqn.primitive is FOR else 1)
    return range(first_index(eqn), len(eqn.invars))


def _load_element(sweep: Emits, eqn: Eqn, env: Env) -> Atom:
    """Returns the element that an access touches."""
    array, *index = sweep.atoms(env, (reference(eqn), *indices_of(eqn)))
    return sweep.builder.load(array, *index)  # type: ignore[arg-type]


def _number(sweep: Emits, loop: Eqn, env: Env) -> Atom:
    """Returns the number of the iteration of a loop; that of an inner `for` follows from its index."""
    if (loop, NUMBER) in env:
        return env[loop, NUMBER]
    builder, (start, _, step) = sweep.builder, sweep.atoms(env, loop.bounds)
    distance = builder("sub", sweep.atom(env, loop.index), start)
    return builder.convert(builder("div", distance, step), I32)
