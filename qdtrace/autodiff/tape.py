"""A tape of loaded values: the results of loads of volatile memory in loops, in the order in which they ran.

Every loop and branch around such a load carries the number of values on the tape, so it is part of their state: a loop
that runs again from a state finds the values of its loads from that number on. The condition of a `while` cannot pass
the number on to the body. Its loads are as many each time, so the body adds that many, and so does the code after the
loop.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from qdtrace.errors import GradientError
from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import WHILE
from qdtrace.ir.program import Eqn, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_eqns, walk_nested

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator

    from qdtrace.analysis.index.most_trips import MostTrips
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Task, Var

    Env = dict[Any, Atom]

ROW_BYTES = 1 << 16
"""Most bytes of a row that is kept as a private array instead of a tape."""
LONG_TAPE = 1 << 20
"""Most bytes of values that loads of one reference may put on a tape; for more, memory is asked for its order."""
TAPE = "number of values on the tape"
"""Key of the number of values on the tape in an environment (`Env`)."""


class Tape:
    """The tape of one task: an array for each dtype that its loads have."""

    def __init__(self, loads: set[Eqn], private: Callable[[DType, tuple[int, ...], str], Var]) -> None:
        self.loads = loads
        self._private = private
        self._capacity = 0
        self._memory: dict[DType, Var] = {}

    def measure(self, task: Task, most: MostTrips) -> None:
        """Finds the capacity of the tape. Raises GradientError if the number of values has no known bound."""
        for load, count in tape_lengths(task, self.loads, most).items():
            loops = next(loops for eqn, loops in _in_loops(task) if eqn is load)
            if any(is_tested(load, loop) and load not in loop.blocks[0].eqns for loop in loops):
                raise GradientError(
                    "needs loads of memory that the same iteration changes to run each time that a condition of "
                    "`qd.while_` is asked, got one in a branch or a loop of it",
                    loc=load.loc,
                    help="load it in the body of the loop, into a qd.local that the condition reads",
                )
            if count is None:
                name = load.invars[0].hint or "memory"  # type: ignore[union-attr]
                unknown = [loop.loc for loop in loops if most.of(loop) is None and loop.loc is not None]
                raise GradientError(
                    f"needs loops with at most a known number of iterations around loads of `{name}`, which the same "
                    f"iteration changes in them, or a row of at most {ROW_BYTES} bytes of it that each iteration of "
                    "the task has for itself, named by indices that all accesses share; got a number of iterations "
                    "known only at run time",
                    loc=load.loc,
                    notes=[f"of this loop it is not known: {loc}" for loc in dict.fromkeys(unknown)],
                    help="give each such loop its most iterations (`most=64`), keep the values in a private array "
                    "(qd.local), or load them in front of the loop; where sweeps repeat, make each a task: `qd.while_` "
                    "or a `for` of Python outermost, and in it `qd.range(n, serial=True)`",
                )
            self._capacity += count

    @property
    def nbytes(self) -> int:
        """Bytes of the tape's memory so far."""
        return sum(dtype.itemsize for dtype in self._memory) * self._capacity

    def count(self, env: Env) -> Atom:
        """Returns the number of values on the tape."""
        return env.get(TAPE, literal(0, DType.i32))

    def is_used_in(self, eqn: Eqn) -> bool:
        """Returns whether a load inside an equation's blocks puts values on the tape."""
        return bool(self.loads) and any(e in self.loads for b in eqn.blocks for e in walk_eqns(b))

    def behind_test(self, builder: Builder, loop: Eqn, count: Atom) -> Atom:
        """Returns the number of values on the tape after the condition of a loop, given the number before it."""
        tested = sum(is_tested(e, loop) for e in self.loads)
        return builder("add", count, literal(tested, DType.i32)) if tested else count

    def load(self, builder: Builder, eqn: Eqn, env: Env, live: bool, load: Callable[[], None]) -> None:
        """Emits a load: if `live` it loads and appends the value to the tape, otherwise it reads the tape."""
        dtype, at = eqn.outvar.dtype, self.count(env)
        if dtype not in self._memory:
            self._memory[dtype] = self._private(dtype, (self._capacity,), "tape")
        if live:
            load()
            builder.store(self._memory[dtype], env[eqn.outvar], at)
        else:
            env[eqn.outvar] = builder.load(self._memory[dtype], at)
        env[TAPE] = builder("add", at, literal(1, DType.i32))


def tape_lengths(task: Task, loads: Container[Eqn], most: MostTrips) -> dict[Eqn, int | None]:
    """Returns how many values each load puts on the tape at most; None where that is not known."""
    found: dict[Eqn, int | None] = {}
    for eqn, loops in _in_loops(task):
        if eqn in loads:
            runs = [(most.of(loop), is_tested(eqn, loop)) for loop in loops]
            found[eqn] = (
                None
                if (None, False) in runs or (None, True) in runs
                else prod(trips + tested for trips, tested in runs if trips is not None)
            )
    return found


def tape_bytes(task: Task, loads: Collection[Eqn], most: MostTrips) -> dict[Var, int | None]:
    """Returns, in order, the bytes that the loads of each reference put on the tape; None where they are not known."""
    found: dict[Var, int | None] = {}
    for eqn, count in tape_lengths(task, loads, most).items() if loads else ():
        ref = reference(eqn)
        before = found.setdefault(ref, 0)
        found[ref] = None if before is None or count is None else before + count * eqn.outvar.dtype.itemsize
    return found


def long_tapes(task: Task, loads: Collection[Eqn], most: MostTrips) -> list[Var]:
    """Returns the references, in order, whose loads put more than `LONG_TAPE` bytes on the tape, or any number."""
    return [r for r, nbytes in tape_bytes(task, loads, most).items() if nbytes is None or nbytes > LONG_TAPE]


def is_tested(eqn: Eqn, loop: Eqn) -> bool:
    """Returns whether an equation is in the condition of a `while`."""
    return loop.primitive is WHILE and any(e is eqn for e in walk_eqns(loop.blocks[0]))


def _in_loops(task: Task) -> Iterator[tuple[Eqn, list[Eqn]]]:
    """Yields every equation of the body, with the loops around it."""
    for eqn, around in walk_nested(task.body):
        yield eqn, [e for e in around if e.primitive.loops]
