"""Volatile memory: an iteration of a task changes and reads it again, so that its loads cannot simply be repeated.

The reverse of a task runs parts of it again. Loads of memory that the task only reads, or writes only after the last
load, give the same values again. Other global memory of the iteration is *volatile*: the reverse task writes a copy of
it, and loads in loops put their values on a tape. Private arrays that a loop changes belong to the loop's state, or
their loaded values go on the tape, too (`array_tape`).
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms, Form
from qdtrace.autodiff.undo_log import UndoLog
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.memory import indices_of, written
from qdtrace.ir.primitives import FOR, LOAD, Effect
from qdtrace.ir.program import Eqn, Var, is_global, is_local
from qdtrace.ir.walk import bound_in_block, walk_all, walk_inside, walk_nested

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from qdtrace.ir.program import Atom, Task


@frozen(slots=True)
class Compared:
    """Numbers whose order says what a load finds: the counter of a loop, and that of the iteration that writes."""

    index: Atom
    distance: int
    """The index minus this, times `sign`, is the counter of the iteration that writes the element."""
    sign: int
    counter: Var
    rises: bool
    """True if the loop counts up."""


@frozen(slots=True)
class FoundLoad:
    """The content that a load finds: that of its reference before the task, or behind it (`write_once`)."""

    is_behind: bool | None
    """None where that is not known of an element that the same iteration writes."""
    compared: Compared | None = None
    """The numbers to compare where data decide: an element is found behind the task if an earlier iteration writes it,
    before it if a later one does; `is_behind` is about the same iteration."""

    @property
    def may_be_behind(self) -> bool:
        """True if the load may find the content behind the task."""
        return self.is_behind is not False or self.compared is not None


@mutable
class Accesses:
    """The accesses of one task to memory; equations are numbered in program order."""

    volatile: dict[Var, None] = field(default_factory=dict[Var, None])
    """Global references with a load that an earlier write of the same iteration may have changed, in order."""
    taped: set[Eqn] = field(default_factory=set)
    """Loads in loops of volatile references, and loads of `taped_arrays`."""
    found: dict[Eqn, FoundLoad] = field(default_factory=dict)
    """Loads that find what memory holds before or behind the task, which are not on the tape."""
    taped_arrays: set[Var] = field(default_factory=set[Var])
    """Private arrays that are not restored, as their loaded values are on the tape (`array_tape`)."""
    last_store: dict[Var, int] = field(default_factory=dict)
    """Number of the last equation that writes a private array."""
    number: dict[Eqn, int] = field(default_factory=dict)
    """Number of the last equation inside a loop."""
    log: UndoLog = field(default_factory=UndoLog)
    """The stores to private arrays that the walk back undoes."""

    def not_restored(self, loop: Eqn) -> set[Var]:
        """Returns the private arrays whose content the walk back through a loop need not restore."""
        return self.taped_arrays | self.log.covered.get(loop, set())


def accesses(task: Task, zero: Container[Var] = ()) -> Accesses:
    """Returns the accesses of a task's body to memory. References in `zero` are never volatile."""
    found = Accesses()
    changed: set[Var] = set()
    in_loop: list[Eqn] = []
    count = 0

    def block(eqns: Iterable[Eqn], looped: bool) -> None:
        nonlocal count
        for eqn in eqns:
            count += 1
            if eqn.primitive.is_access:
                ref = eqn.invars[0]
                assert isinstance(ref, Var)
                if Effect.READ in eqn.primitive.effects and is_global(ref):
                    if ref in changed:
                        found.volatile[ref] = None
                    if looped and eqn.primitive is LOAD:
                        in_loop.append(eqn)
                if eqn.primitive.writes:
                    changed.add(ref)
                    if is_local(ref):
                        found.last_store[ref] = count
            is_loop = eqn.primitive.loops
            if is_loop:
                # The next iteration may read what this one writes.
                changed.update(written(walk_inside(eqn)))
            for inner in eqn.blocks:
                block(inner.eqns, looped or is_loop)
            if is_loop:
                found.number[eqn] = count

    block(task.body.eqns, False)
    found.volatile = {ref: None for ref in found.volatile if ref not in zero and not _is_found_unchanged(task, ref)}
    found.taped = {e for e in in_loop if e.invars[0] in found.volatile}
    return found


def _is_found_unchanged(task: Task, ref: Var) -> bool:
    """Returns whether all accesses are in one loop whose iterations each own an element and load it before writing."""
    used = [(e, around) for e, around in walk_nested(task.body) if e.primitive.is_access and e.invars[0] is ref]
    nests = {tuple(e for e in around if e.primitive.loops) for _, around in used}
    if len(nests) != 1 or any(ref in e.invars for e in walk_all(task.head)):
        return False
    (nest,) = nests
    if len(nest) != 1 or nest[0].primitive is not FOR:
        return False
    writes = [e.primitive.writes for e, _ in used]
    forms = AffineForms(task)
    index, *others = {tuple(forms.of(a) for a in indices_of(e)) for e, _ in used}
    if others or writes != sorted(writes):
        return False
    return any(_tells_apart(form, nest[0]) for form in index)


def _tells_apart(form: Form, loop: Eqn) -> bool:
    """Returns whether an index differs in each iteration of a loop."""
    counter, inside = loop.index, {v for b in loop.blocks for v in bound_in_block(b)}
    rest = form.plus(Form({counter: form.terms.get(counter, 0)}), -1)
    return abs(form.terms.get(counter, 0)) == 1 and inside.isdisjoint(rest.variables())
