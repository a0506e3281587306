"""The accesses of a task to shared memory, with the affine forms of their indices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.trips import task_values
from qdtrace.ir.memory import indices_of, mode_of
from qdtrace.ir.program import Eqn, Task, Var, is_global
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.index.injectivity import Key
    from qdtrace.analysis.index.progression import Progression
    from qdtrace.errors import Loc

READ, WRITE, ATOMIC = "load", "store", "atomic"
"""Modes of an access; an accumulation has the mode `add`, `mul`, `min` or `max`."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One equation that touches shared memory (or several with equal indices and mode)."""

    ref: Var
    mode: str
    forms: tuple[Form, ...]
    keys: frozenset[Key]
    """Proofs that no two iterations touch one element here; see `analysis/index/injectivity`."""
    loc: Loc | None

    @property
    def writes(self) -> bool:
        """True if the access changes memory."""
        return self.mode != READ

    @property
    def accumulates(self) -> bool:
        """True if the access combines a value with memory and returns no old value."""
        return self.mode not in (READ, WRITE, ATOMIC)


@dataclass(slots=True)
class TaskAccesses:
    """All accesses of a task's body by reference, equal ones once, and the values of the task's index."""

    task: Task
    forms: AffineForms = field(init=False)
    by_ref: dict[Var, list[Access]] = field(init=False)
    written: frozenset[Var] = field(init=False)
    """References that the body changes."""
    head_reads: frozenset[Var] = field(init=False)
    iterations: Progression | None = field(init=False)
    """The values of the task's index; None if a bound is no constant, the range is empty or the task is serial."""

    def __post_init__(self) -> None:
        task = self.task
        self.forms = AffineForms(task, flips=True)
        injectivity = Injectivity(task, self.forms)
        found: dict[tuple[object, ...], Access] = {}
        for eqn in _memory_eqns(walk_eqns(task.body)):
            ref, mode, indices = eqn.invars[0], mode_of(eqn), indices_of(eqn)
            assert isinstance(ref, Var)
            forms = tuple([self.forms.of(a) for a in indices])
            key = (ref, mode, *[f.key for f in forms])
            if key not in found:
                found[key] = Access(ref, mode, forms, injectivity.keys(indices), eqn.loc)
        self.by_ref = {}
        for access in found.values():
            self.by_ref.setdefault(access.ref, []).append(access)
        self.written = frozenset([access.ref for access in found.values() if access.writes])
        self.head_reads = frozenset([eqn.invars[0] for eqn in _memory_eqns(task.head)])  # type: ignore[misc]
        values = task_values(task)
        self.iterations = values if task.index is not None and values is not None and values.count else None


def _memory_eqns(eqns: Iterable[Eqn]) -> Iterator[Eqn]:
    """Yields the equations that touch an element of shared memory."""
    return (eqn for eqn in eqns if eqn.primitive.values is not None and is_global(eqn.invars[0]))
