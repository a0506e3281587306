"""A tape of loaded values: what loads of volatile memory in loops found when they ran, in order.

The number of values on the tape is carried by every loop and branch around such a load, so it is part of their state:
where a loop is run anew from a state, its loads find their values from that number on. The condition of a `while` gives
nothing to its body: its loads are as many each time, so the body begins that much further on, and so does what is
behind the loop.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from qdtrace.errors import GradientError
from qdtrace.ir.primitives import WHILE
from qdtrace.ir.program import Eqn, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_eqns, walk_nested

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from qdtrace.analysis.index.most_trips import MostTrips
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Task, Var

    Env = dict[Any, Atom]

ROW_BYTES = 1 << 16
"""Most bytes of a row that is kept whole instead."""
TAPE = "number of values on the tape"
"""Key of an environment."""


class Tape:
    """The tape of one task."""

    def __init__(self, loads: set[Eqn], private: Callable[[DType, tuple[int, ...], str], Var]) -> None:
        self.loads = loads
        self._private = private
        self._capacity = 0
        self._memory: dict[DType, Var] = {}

    def measure(self, task: Task, most: MostTrips) -> None:
        """Finds how many values there can be; raises GradientError when that is not known."""
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
                unknown = next(loop for loop in loops if most.of(loop) is None)
                raise GradientError(
                    f"needs loops with at most a known number of iterations around loads of `{name}`, which the same "
                    f"iteration changes in them, or a row of at most {ROW_BYTES} bytes of it that each iteration of "
                    "the task has for itself, named by indices that all accesses share; got a number of iterations "
                    "known only at run time",
                    loc=load.loc,
                    notes=[] if unknown.loc is None else [f"of this loop it is not known: {unknown.loc}"],
                    help="limit it (`qd.range(jnp.minimum(n, 64))`), keep the values in a private array (qd.local), "
                    "or load them in front of the loop",
                )
            self._capacity += count

    @property
    def nbytes(self) -> int:
        """Memory of the tape so far."""
        return sum(dtype.itemsize for dtype in self._memory) * self._capacity

    def count(self, env: Env) -> Atom:
        """The number of values on the tape."""
        return env.get(TAPE, literal(0, DType.i32))

    def is_used_in(self, eqn: Eqn) -> bool:
        """True when a load inside puts values on the tape."""
        return bool(self.loads) and any(e in self.loads for b in eqn.blocks for e in walk_eqns(b))

    def behind_test(self, builder: Builder, loop: Eqn, count: Atom) -> Atom:
        """The number of values on the tape behind the condition of a loop, from that in front of it."""
        tested = sum(is_tested(e, loop) for e in self.loads)
        return builder("add", count, literal(tested, DType.i32)) if tested else count

    def load(self, builder: Builder, eqn: Eqn, env: Env, live: bool, load: Callable[[], None]) -> None:
        """The value of a load: loaded and put on the tape when it runs for the first time, else from there."""
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
    """How many values each load puts on the tape at most; None where that is not known."""
    found: dict[Eqn, int | None] = {}
    for eqn, loops in _in_loops(task):
        if eqn in loads:
            runs = [(most.of(loop), is_tested(eqn, loop)) for loop in loops]
            found[eqn] = None if (None, False) in runs or (None, True) in runs else prod(
                trips + tested for trips, tested in runs if trips is not None
            )
    return found


def is_tested(eqn: Eqn, loop: Eqn) -> bool:
    """Whether an equation stands in the condition of a `while`."""
    return loop.primitive is WHILE and any(e is eqn for e in walk_eqns(loop.blocks[0]))


def _in_loops(task: Task) -> Iterator[tuple[Eqn, list[Eqn]]]:
    """Every equation of the body, with the loops around it."""
    for eqn, around in walk_nested(task.body):
        yield eqn, [e for e in around if e.primitive.loops]
