"""Tangents of accumulations by `min`, `max` and `mul`: sums of parts of the tangents of the accumulated values.

    accum[op=max] r v                                accum[op=max] r v
    p = custom[rule=part of max] t v     becomes     accum[op=add] d q         q is t / c where v is the maximum, else 0
    accum[op=add] r_t p

where `c` values tie for the maximum of that element (`sums`); after the task, `r_t` becomes its own part plus `d`. If a
single iteration accesses the elements (rows of its own), both become loads, operations and stores. The parts of an
accumulation follow it, one for each set of directions.
"""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.memory import TaskMemory
from qdtrace.autodiff.sums import Sums
from qdtrace.errors import GradientError
from qdtrace.ir.custom import is_part, updated
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import ACCUM, ATOMIC
from qdtrace.ir.program import Literal, Program, Task, Var, literal
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from qdtrace.ir.custom import Part
    from qdtrace.ir.program import Atom, Eqn


def has_extremes(program: Program) -> bool:
    """Returns whether floats are accumulated by another operation than a sum."""
    return any(_is_other(e) and e.invars[0].dtype.is_float for e in program.all_eqns)


def with_extremes(program: Program) -> Program:
    """Returns the program of tangents with sums in place of parts. Raises GradientError if that is impossible."""
    tasks: list[Task] = []
    initial: dict[Var, Literal] = {}
    for task in program.tasks:
        tasks += _with_sums(task, program.name, initial)
    if tuple(tasks) == program.tasks:
        return program
    # Elements that nothing was stored into are zero, as copies read every element.
    unset = {v: literal(0, v.dtype) for v in program.buffers if v not in program.initial} if initial else {}
    buffers, starts = (*program.buffers, *initial), {**program.initial, **unset, **initial}
    return replace(program, tasks=tuple(tasks), buffers=buffers, initial=starts)


def _is_other(eqn: Eqn) -> bool:
    return eqn.primitive is ACCUM and eqn.params["op"] != "add"


def _parts(task: Task) -> list[tuple[Var, Var, Part]]:
    """Returns triples: a tangent's reference that a part is accumulated into, the primal's reference, and the part."""
    found: list[tuple[Var, Var, Part]] = []
    parts: dict[Atom, Part] = {}
    last: Atom | None = None
    for eqn in task.all_eqns:
        if is_part(eqn):
            parts[eqn.outvar] = eqn.params["rule"]
        elif _is_other(eqn):
            last = eqn.invars[0]
        elif eqn.primitive is ACCUM and eqn.invars[1] in parts:
            ref = eqn.invars[0]
            assert isinstance(ref, Var)
            assert isinstance(last, Var)
            found.append((ref, last, parts[eqn.invars[1]]))
    return found


def _with_sums(task: Task, name: str, initial: dict[Var, Literal]) -> list[Task]:
    """Returns the tasks that replace one; adds the buffers that they need to `initial`."""
    found = _parts(task)
    if not found:
        return [task]
    chosen = {of: part.op for _, of, part in found}
    several = {of for _, of, part in found if part.op == "mul" and part.directions & (part.directions - 1)}
    memory = TaskMemory(task)
    own = {r for r in chosen if memory.is_private(r) and (len(memory.modes(r)) > 1 or r in several)}
    if own:
        return _with_sums(_InPlace(own).rebuild_task(task), name, initial)
    if several:
        raise GradientError(
            f"{name}: a product accumulated in memory has first derivatives only, got a second one",
            loc=task.loc,
            help="multiply values of a loop in a variable, or accumulate logarithms",
        )
    shared: set[Var] = set()
    for ref, op in chosen.items():
        if len(memory.modes(ref)) > 1:
            shared.add(ref)
            _check_apart(memory, ref, op)
    _check_order(task)
    made = Sums(task, chosen, shared, {ref: of for ref, of, part in found if chosen[of] == part.op})
    initial |= made.initial
    # The task may accumulate by another operation elsewhere.
    return [*made.before_it, *_with_sums(made.task, name, initial), *made.after_it]


def _check_apart(memory: TaskMemory, ref: Var, op: str) -> None:
    """Raises GradientError if an accumulation by `op` and another access may be to the same element."""
    eqns = memory.accesses[ref]
    mine = [e for e in eqns if e.params.get("op") == op]
    for other in eqns:
        if other not in mine and not all(memory.dependence(one, other).never for one in mine):
            kind = other.params.get("op", other.primitive.name)
            raise GradientError(
                f"needs elements that a loop accesses by `{op}` alone, got `{kind}` of a possibly equal element",
                loc=other.loc,
                help="use two buffers, or indices that differ for sure, as `2 * k` and `2 * k + 1` do",
            )


def _check_order(task: Task) -> None:
    """Raises GradientError for old values of atomics: the task runs several times, each time in another order."""
    for eqn in task.all_eqns:
        if eqn.primitive is ATOMIC:
            raise GradientError(
                "needs a loop that gives the same values each time that it runs, got `atomic` "
                f"{eqn.params['op']} beside an accumulation by min, max or mul",
                loc=eqn.loc,
                help="split the loop in two",
            )


class _InPlace(Rebuilder):
    """Replaces accumulations into some references and their tangents by loads, operations and stores."""

    def __init__(self, references: set[Var]) -> None:
        super().__init__()
        self._references = references
        self._parts: dict[Atom, Eqn] = {}
        self._op = ""
        self._before: list[Atom] = []
        """Values of the element and of its tangents before the accumulation, by set of directions."""
        self._values: list[Atom] = []

    def visit(self, eqn: Eqn) -> None:
        """Appends the equations that replace one."""
        self.loc = eqn.loc
        if _is_other(eqn):
            self._op, self._before, self._values = eqn.params["op"], [], []
            if eqn.invars[0] in self._references:
                self._update(eqn, values_of(eqn)[0])
                return
        elif is_part(eqn):
            self._parts[eqn.outvar] = eqn
        elif eqn.primitive is ACCUM and eqn.invars[1] in self._parts and self._before:
            self._update(eqn, self._parts[eqn.invars[1]].invars[0])
            return
        super().visit(eqn)

    def _update(self, eqn: Eqn, value: Atom) -> None:
        ref, at = eqn.invars[0], self.atoms(indices_of(eqn))
        assert isinstance(ref, Var)
        self._before.append(self.load(ref, *at))
        self._values.append(self.atom(value))
        self.store(ref, updated(self, self._op, self._before, self._values), *at)
