"""Detection of races of a `range_for` task while the reference interpreter runs it.

Two accesses of different iterations to one element are a race unless both read, both accumulate with one operation,
both are atomic, or one is an atomic and one an accumulation of the same operation. An iteration may do anything to an
element that no other touches. For each element and each kind of access two iterations are kept: whichever iteration
comes next, one of the two is a different one.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.errors import InterpreterError
from qdtrace.frozen import mutable
from qdtrace.interpret.names import element_name

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn, Task, Var

Way = tuple[str, str]
"""Kind of an access, `load`, `store`, `accum` or `atomic`, and the operation of the last two."""

_VERB = {"load": "reads", "store": "stores to", "accum": "accumulates into", "atomic": "updates atomically"}


def conflict(a: Way, b: Way) -> bool:
    """Returns whether two accesses to one element by different iterations are a race."""
    kinds = {a[0], b[0]}
    if kinds == {"load"} or kinds == {"atomic"}:
        return False
    if kinds <= {"accum", "atomic"}:
        return a[1] != b[1]
    return True


@mutable
class RaceDetector:
    """Records the accesses of the running task's iterations to memory."""

    task: Task | None = None
    iteration: int = 0
    seen: dict[tuple[int, int], dict[Way, list[tuple[int, Eqn]]]] = field(default_factory=dict)

    def start_task(self, task: Task) -> None:
        """Forgets all accesses before a task, as tasks run in order."""
        self.task = task if task.kind == "range_for" else None
        self.seen.clear()

    def access(self, kind: str, ref: Var, slot: int, flat: int, eqn: Eqn) -> None:
        """Records an access; raises InterpreterError if it races with one of another iteration."""
        if self.task is None:
            return
        way = (kind, str(eqn.params.get("op", "")))
        ways = self.seen.setdefault((slot, flat), {})
        for other, iterations in ways.items():
            if conflict(way, other):
                for iteration, earlier in iterations:
                    if iteration != self.iteration:
                        raise self._race(ref, flat, (other, iteration, earlier), (way, self.iteration, eqn))
        mine = ways.setdefault(way, [])
        if len(mine) < 2 and all(iteration != self.iteration for iteration, _ in mine):
            mine.append((self.iteration, eqn))

    def _race(self, ref: Var, flat: int, *accesses: tuple[Way, int, Eqn]) -> InterpreterError:
        assert self.task is not None
        name = f" `{self.task.name}`" if self.task.name else ""
        notes: list[str] = []
        for (kind, op), iteration, eqn in accesses:
            with_op = f" with {op}" if op else ""
            notes.append(f"iteration {iteration} {_VERB[kind]} it{with_op} at {eqn.loc or 'an unknown line'}")
        both_write = all(kind in ("store", "accum", "atomic") for (kind, _), _, _ in accesses)
        return InterpreterError(
            f"race on {element_name(ref, flat)}: two iterations of one task{name} use it, at least one writes",
            loc=accesses[1][2].loc,
            notes=notes,
            help="accumulate with one operation (`b[i] += v`), or give each iteration its own element"
            if both_write
            else "split the loop in two, so that what is written is read by a later loop",
        )
