"""Tangents of accumulations by `min`, `max` and `mul`: sums of parts of the tangents of what is accumulated.

    accum[op=max] r v                                accum[op=max] r v
    p = custom[rule=part of max] t v     becomes     accum[op=add] d q         q is t / c where v is the maximum, else 0
    accum[op=add] r_t p

where `c` elements tie for the maximum of that place (`sums`), and behind the task `r_t` is its own part and `d`. Where
one iteration alone touches the elements (rows of its own) both become loads, operations and stores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qdtrace.analysis.alias import References
from qdtrace.analysis.index.affine import AffineForms
from qdtrace.autodiff.accumulations import check_apart, check_order
from qdtrace.autodiff.sums import Sums
from qdtrace.ir.custom import Part
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.program import Literal, Program, Task, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_program, walk_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qdtrace.ir.program import Atom, Eqn


def has_parts(program: Program) -> bool:
    """True where a tangent of an accumulated value is not known yet."""
    parts = {e.outvar for e in walk_program(program) if _is_part(e)}
    return bool(parts) and any(not parts.isdisjoint(e.invars) for e in walk_program(program))


def with_extremes(program: Program) -> Program:
    """The program of first tangents with sums in the place of parts.

    Parts of many elements between other accesses to them stay. Raises GradientError for what cannot become a sum.
    """
    tasks: list[Task] = []
    initial: dict[Var, Literal] = {}
    for task in program.tasks:
        tasks += _with_sums(task, initial)
    # zeros where nothing was stored: copies read every element
    unset = {v: literal(0, v.dtype) for v in program.buffers if v not in program.initial} if initial else {}
    buffers, starts = (*program.buffers, *initial), {**program.initial, **unset, **initial}
    return replace(program, tasks=tuple(tasks), buffers=buffers, initial=starts)


def _is_part(eqn: Eqn) -> bool:
    return eqn.primitive.name == "custom" and isinstance(eqn.params["rule"], Part)


@dataclass(frozen=True)
class _Twin:
    """What a part is accumulated into."""

    ref: Var
    of: Var
    """The reference whose tangents it has."""
    op: str
    is_beside: bool
    """The accumulation of the value itself is at the same elements as that of the part."""


def _twins(task: Task) -> Iterator[_Twin]:
    """The twins of a task. In front of an accumulation of a part is the one of its value."""
    parts: dict[Atom, Eqn] = {}
    last: dict[str, tuple[Var, object]] = {}
    for eqn in walk_task(task):
        if _is_part(eqn):
            parts[eqn.outvar] = eqn
        elif eqn.primitive.name == "accum":
            ref, (value,), op = eqn.invars[0], values_of(eqn), eqn.params["op"]
            assert isinstance(ref, Var)
            part = parts.get(value)
            if part is None:
                last[op] = ref, _key(value)
            else:
                op = part.params["rule"].op
                of, key = last[op]
                yield _Twin(ref, of, op, key == _key(part.invars[1]))


def _key(atom: Atom) -> object:
    return (atom.value, atom.dtype) if isinstance(atom, Literal) else atom


def _with_sums(task: Task, initial: dict[Var, Literal]) -> Iterator[Task]:
    """The tasks that stand for one; adds the buffers that they need to `initial`."""
    found = list(_twins(task))
    if not found:
        yield task
        return
    chosen = {t.of: t.op for t in found}
    references = References(task, AffineForms(task))
    own = {r for r in chosen if references.is_private(r) and len(references.modes(r)) > 1}
    if any(t.of in own and not t.is_beside for t in found):
        yield task
        return
    if own:
        in_place = _InPlace({t.ref: t.of for t in found if t.of in own})
        yield from _with_sums(in_place.rebuild_task(task), initial)
        return
    shared: set[Var] = set()
    for ref, op in chosen.items():
        if len(references.modes(ref)) > 1:
            shared.add(ref)
            check_apart(references.accesses[ref], op)
    check_order(task)
    made = Sums(task, chosen, shared, {t.ref: t.of for t in found if chosen[t.of] == t.op})
    initial |= made.initial
    yield from made.before_it
    # it may accumulate by another operation at other places
    yield from _with_sums(made.task, initial)
    yield from made.after_it


class _InPlace(Rebuilder):
    """A task with loads, operations and stores in the place of accumulations into some references and their twins."""

    def __init__(self, twins: Mapping[Var, Var]) -> None:
        super().__init__()
        self._twins, self._references = twins, set(twins.values())
        self._parts: dict[Atom, Eqn] = {}
        self._before: dict[tuple[Var, object], Atom] = {}
        """What a reference held in front of the accumulation of a value."""

    def visit(self, eqn: Eqn) -> None:
        """Appends what stands for an equation."""
        self.loc = eqn.loc
        if _is_part(eqn):
            self._parts[eqn.outvar] = eqn
            super().visit(eqn)
        elif eqn.primitive.name != "accum" or not self._replaced(eqn):
            super().visit(eqn)

    def _replaced(self, eqn: Eqn) -> bool:
        ref, op, at = eqn.invars[0], eqn.params["op"], self.atoms(indices_of(eqn))
        assert isinstance(ref, Var)
        (given,) = values_of(eqn)
        value = self.atom(given)
        if ref in self._references and op != "add":
            old = self._before[ref, _key(given)] = self.load(ref, *at)
            self.store(ref, self(op, old, value), *at)
            return True
        part = self._parts.get(given)
        if part is None or ref not in self._twins:
            return False
        tangent, value = self.atoms(part.invars)
        old, change = self._before[self._twins[ref], _key(part.invars[1])], self.load(ref, *at)
        self.store(ref, self._tangent(part.params["rule"].op, old, change, value, tangent), *at)
        return True

    def _tangent(self, op: str, old: Atom, change: Atom, value: Atom, tangent: Atom) -> Atom:
        """The tangent of `op(old, value)`; of two that tie each has half a part, as in JAX."""
        if op == "mul":
            return self("add", self("mul", change, value), self("mul", old, tangent))
        first, second = (old, value) if op == "max" else (value, old)
        half = self("mul", self("add", change, tangent), literal(0.5, value.dtype))
        rest = self("select", self("lt", first, second), tangent, half)
        return self("select", self("gt", first, second), change, rest)
