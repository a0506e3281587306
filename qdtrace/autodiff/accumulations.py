"""What accumulations by `min`, `max` and `mul` become before a program is differentiated: sums, or updates in place.

Where one iteration alone touches the elements (private arrays, rows of its own) an accumulation is a load, an
operation and a store, whose derivatives are known. Elsewhere it becomes a sum (`sums`), which needs memory that nothing
but this accumulation touches: others may touch places that constant indices tell apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.alias import References
from qdtrace.analysis.index.affine import AffineForms
from qdtrace.autodiff.sums import Sums
from qdtrace.errors import GradientError
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.program import Literal, Program, Task, Var, is_local, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_program, walk_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.ir.program import Eqn


def with_sums_only(program: Program, active: frozenset[Var], order: int) -> Program:
    """The program without other accumulations into active memory. Raises GradientError for what cannot become one."""
    tasks: list[Task] = []
    initial: dict[Var, Literal] = {}
    for task in program.tasks:
        tasks += _without(task, active, order, program.name, initial)
    if tuple(tasks) == program.tasks:
        return program
    # zeros where nothing was stored: copies read every element
    unset = {v: literal(0, v.dtype) for v in program.buffers if v not in program.initial} if initial else {}
    buffers = (*program.buffers, *initial)
    return replace(program, tasks=tuple(tasks), buffers=buffers, initial={**program.initial, **unset, **initial})


def compares_accumulated(program: Program) -> bool:
    """A task may look for the values that another one accumulated: both must round them alike."""
    return any(_is_other(e) and e.invars[0].dtype.is_float for e in walk_program(program))


def _is_other(eqn: Eqn) -> bool:
    return eqn.primitive.name == "accum" and eqn.params["op"] != "add"


def _without(task: Task, active: frozenset[Var], order: int, name: str, initial: dict[Var, Literal]) -> Iterator[Task]:
    """The tasks that stand for one; adds the buffers that they need to `initial`."""
    found = {e.invars[0]: e for e in walk_task(task) if _is_other(e) and e.invars[0] in active}
    if not found:
        yield task
        return
    references = References(task, AffineForms(task))
    own = {r for r in found if is_local(r) or (references.is_private(r) and len(references.modes(r)) > 1)}
    if own:
        yield from _without(_InPlace(own).rebuild_task(task), active, order, name, initial)
        return
    chosen: dict[Var, str] = {}
    shared: set[Var] = set()
    for ref, eqn in found.items():
        chosen[ref] = eqn.params["op"]
        if len(references.modes(ref)) > 1:
            shared.add(ref)
            check_apart(references.accesses[ref], chosen[ref])
    if order > 1 and "mul" in chosen.values():
        refuse_products(task, name, order)
    check_order(task)
    made = Sums(task, chosen, shared)
    initial |= made.initial
    yield from made.before_it
    # it may accumulate by another operation at other places
    yield from _without(made.task, active, order, name, initial)
    yield from made.after_it


def refuse_products(task: Task, name: str, order: int) -> None:
    """Refuses derivatives of products of an order that they do not have."""
    raise GradientError(
        f"{name}: a product accumulated in memory has first derivatives only, got order {order}",
        loc=task.loc,
        help="multiply values of a loop in a variable, or accumulate logarithms",
    )


def check_apart(eqns: list[Eqn], op: str) -> None:
    """Refuses memory where an accumulation may meet another access."""
    mine = [e for e in eqns if e.params.get("op") == op]
    for other in eqns:
        if other in mine:
            continue
        for one in mine:
            pairs = zip(indices_of(one), indices_of(other), strict=True)
            if not any(isinstance(a, Literal) and isinstance(b, Literal) and a.value != b.value for a, b in pairs):
                kind = other.params.get("op", other.primitive.name)
                raise GradientError(
                    f"needs elements that one loop touches by `{op}` alone, got `{kind}` of what may be the same one",
                    loc=other.loc,
                    help="use two buffers, or constant indices that differ",
                )


def check_order(task: Task) -> None:
    """Refuses old values of atomics: the task runs several times, in another order each."""
    for eqn in walk_task(task):
        if eqn.primitive.name == "atomic":
            raise GradientError(
                "needs a loop that gives the same values each time that it runs, got `atomic` "
                f"{eqn.params['op']} beside an accumulation by min, max or mul",
                loc=eqn.loc,
                help="split the loop in two",
            )


class _InPlace(Rebuilder):
    """A task with loads, operations and stores in the place of accumulations into some references."""

    def __init__(self, references: set[Var]) -> None:
        super().__init__()
        self._references = references

    def visit(self, eqn: Eqn) -> None:
        """Appends what stands for an equation."""
        ref = eqn.invars[0] if _is_other(eqn) else None
        if not isinstance(ref, Var) or ref not in self._references:
            super().visit(eqn)
            return
        (value,), at = self.atoms(values_of(eqn)), self.atoms(indices_of(eqn))
        self.loc = eqn.loc
        self.store(ref, self(eqn.params["op"], self.load(ref, *at), value), *at)
