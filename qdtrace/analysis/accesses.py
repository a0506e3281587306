"""The accesses of a task to shared memory, with what is known of their indices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qdtrace.analysis.affine import AffineForms
from qdtrace.analysis.injectivity import Injectivity
from qdtrace.ir.memory import indices_of
from qdtrace.ir.program import Eqn, Literal, Loc, Task, Var, is_global

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.analysis.affine import Form, Interval
    from qdtrace.analysis.injectivity import Key

READ, WRITE, ATOMIC = "load", "store", "atomic"
"""Modes of an access; an accumulation has the mode `add`, `mul`, `min` or `max`."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One equation that touches shared memory (or several with equal indices and mode)."""

    ref: Var
    mode: str
    forms: tuple[Form, ...]
    keys: frozenset[Key]
    """Why no two iterations meet here; see `analysis/injectivity`."""
    loc: Loc | None
    surely: bool
    """Executed in each iteration."""

    @property
    def writes(self) -> bool:
        """Changes memory."""
        return self.mode != READ

    @property
    def accumulates(self) -> bool:
        """Combines with memory, without seeing the old value."""
        return self.mode not in (READ, WRITE, ATOMIC)


def mode_of(eqn: Eqn) -> str:
    """The mode of a memory equation."""
    name = eqn.primitive.name
    return eqn.params["op"] if name == "accum" else name


@dataclass(slots=True)
class TaskAccesses:
    """All accesses of one task's body, per reference, equal ones once; and the space their indices live in."""

    task: Task
    forms: AffineForms = field(init=False)
    by_ref: dict[Var, list[Access]] = field(init=False)
    written: frozenset[Var] = field(init=False)
    """References that the body changes."""
    head_reads: frozenset[Var] = field(init=False)
    span: Interval | None = field(init=False)
    """First and last iteration, where the bounds are constants and not empty."""

    def __post_init__(self) -> None:
        task = self.task
        self.forms = AffineForms(task, flips=True)
        injectivity = Injectivity(task, self.forms)
        found: dict[tuple[object, ...], Access] = {}
        for eqn, surely in _memory_eqns(task.body.eqns, surely=True):
            ref, mode = eqn.invars[0], mode_of(eqn)
            assert isinstance(ref, Var)
            indices = indices_of(eqn)
            forms = tuple([self.forms.of(a) for a in indices])
            place = (ref, mode, *[f.key for f in forms])
            known = found.get(place)
            if known is None or (surely and not known.surely):
                keys = known.keys if known is not None else injectivity.keys(indices)
                found[place] = Access(ref, mode, forms, keys, eqn.loc, surely)
        self.by_ref = {}
        for access in found.values():
            self.by_ref.setdefault(access.ref, []).append(access)
        self.written = frozenset([access.ref for access in found.values() if access.writes])
        self.head_reads = frozenset(
            eqn.invars[0]  # type: ignore[misc]
            for eqn, _ in _memory_eqns(task.head, surely=True)
        )
        self.span = None
        if isinstance(task.start, Literal) and isinstance(task.stop, Literal):
            start, stop = int(task.start.value), int(task.stop.value)
            self.span = (start, stop - 1) if start < stop else None


def _memory_eqns(eqns: Iterable[Eqn], *, surely: bool) -> Iterator[tuple[Eqn, bool]]:
    """Equations on shared memory, and whether they run in each iteration (what is inside blocks may not)."""
    for eqn in eqns:
        if eqn.blocks:
            for block in eqn.blocks:
                yield from _memory_eqns(block.eqns, surely=False)
        elif eqn.primitive.values is not None and is_global(eqn.invars[0]):
            yield eqn, surely
