"""Unrolling: a `for` over few constant indices becomes that many copies of its body.

Before:  s: f32 = for k in 0:i32 : 2:i32 : 1:i32 carry c = 0.0:f32    After:  a: f32 = load v 0:i32
           a: f32 = load v k                                                   b: f32 = add 0.0:f32 a
           b: f32 = add c a                                                    a_1: f32 = load v 1:i32
           yield b                                                             s: f32 = add b a_1

The index is then a constant, so private arrays can be taken apart (`promote_cells`) and places in memory told from
one another. Innermost loops first. A loop is unrolled when

- it has at most `TRIPS` iterations and its copies cost at most `BUDGET` operations; or
- it indexes a private array all of whose indices become constants, with at most `APART_TRIPS` and `APART_BUDGET`:
  values in registers pay for the longer code (a filter over private arrays of 12 and 20 numbers on the CPU: 0.79 and
  0.93 of the time, though LLVM unrolls such loops itself, as the number of live values is then known); or
- the user asked for it (`unroll=True`, or a factor that is not below the number of iterations), within `ASKED_BUDGET`.

Refused: bounds that are not constant, a body that keeps a loop of its own (its time is spent there), a body that
makes a private array which stays one (each copy would have its own), `unroll=False` or 1, a factor below the number of
iterations, and whatever would make a task larger than `TASK_LIMIT` operations: so nested loops cannot explode, and the
time is linear in the size of the result.

Unrolling by a factor with a rest is left to LLVM, which is told the factor. It does not pay on the CPU, here or there:
sums, distances, a recurrence with a product and one with a division take 0.96 to 1.03 of the time by 2, 4 and 8; a
Runge-Kutta step 1.03 by 2 and 4, and 2 to 3 times as long by 8. Bodies above `BUDGET` are long enough by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from qdtrace.analysis.cost import code_size, eqn_size
from qdtrace.analysis.work import trip_count
from qdtrace.ir.copies import copied_atoms, copy_eqns
from qdtrace.ir.memory import indices_of
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, is_local, literal, ref_type
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass
from qdtrace.passes.promote_cells import SLOT_LIMIT

TRIPS = 8
"""Iterations of a loop that is unrolled unasked."""
BUDGET = 256
"""Operations of all its copies."""
APART_TRIPS = 32
APART_BUDGET = 1024
"""The same where a private array goes."""
ASKED_BUDGET = 4096
"""Operations of all copies of a loop that the user wants unrolled."""
TASK_LIMIT = 8192
"""Operations that no task is made larger than."""


@dataclass(frozen=True)
class Unroll(TaskPass):
    """Copies of the bodies of short loops."""

    name: ClassVar[str] = "unroll"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.name == "for" for e in walk_eqns(task.body)):
            return task
        unroller = _Unroller(task.body)
        body, _ = unroller.block(task.body)
        return replace(task, body=body) if unroller.unrolled else task


class _Apart:
    """Which private arrays have constant indices only once short loops are unrolled."""

    def __init__(self, body: Block) -> None:
        self.known: set[Atom] = set()
        """Values that are constants then."""
        self.arrays: set[Atom] = set()
        self._rejected: set[Atom] = set()
        self._visit(body)
        self.arrays -= self._rejected

    def copied(self, env: dict[Var, Atom]) -> None:
        """Takes note of copies: `env` has them by what they copy."""
        for facts in (self.known, self.arrays):
            facts.update([new for old, new in env.items() if old in facts])

    def _visit(self, block: Block) -> None:
        for eqn in block.eqns:
            name = eqn.primitive.name
            if name == "cell":
                if ref_type(eqn.outvars[0]).size <= SLOT_LIMIT:
                    self.arrays.add(eqn.outvars[0])
            elif eqn.primitive.values is not None:
                if name == "atomic" or not self._all_known(indices_of(eqn)):
                    self._rejected.add(eqn.invars[0])
            elif name == "for" and (trip_count(*eqn.invars[:3]) or APART_TRIPS + 1) <= APART_TRIPS:
                self.known.add(eqn.blocks[0].params[0])
            elif not eqn.blocks and self._all_known(eqn.invars):
                self.known.update(eqn.outvars)
            for inner in eqn.blocks:
                self._visit(inner)

    def _all_known(self, atoms: tuple[Atom, ...]) -> bool:
        return all([isinstance(a, Literal) or a in self.known for a in atoms])  # noqa: C419 - twice as fast


class _Unroller:
    """Rewrites a task, with what the results of unrolled loops have become at hand."""

    def __init__(self, body: Block) -> None:
        self.unrolled = 0
        self._apart = _Apart(body)
        self._room = TASK_LIMIT - code_size(body)
        self._replaced: dict[Var, Atom] = {}

    def block(self, block: Block) -> tuple[Block, int]:
        """The rewritten block and its size."""
        out: list[Eqn] = []
        size = sum([self._visit(eqn, out) for eqn in block.eqns])
        return Block(block.params, tuple(out), copied_atoms(block.results, self._replaced)), size

    def _visit(self, eqn: Eqn, out: list[Eqn]) -> int:
        """Appends what an equation becomes; gives its size."""
        invars = copied_atoms(eqn.invars, self._replaced)
        if not eqn.blocks:
            same = all([a is b for a, b in zip(invars, eqn.invars, strict=True)])  # noqa: C419 - twice as fast
            out.append(eqn if same else replace(eqn, invars=invars))
            return eqn_size(eqn)
        inner = [self.block(block) for block in eqn.blocks]
        size = sum([n for _, n in inner])
        made = replace(eqn, invars=invars, blocks=tuple([block for block, _ in inner]))
        trips = trip_count(*invars[:3]) if eqn.primitive.name == "for" else None
        if not trips or not self._pays(made, trips, size):
            out.append(made)
            return 1 + size
        self._room -= (trips - 1) * size
        self.unrolled += 1
        return self._unroll(made, out)

    def _pays(self, loop: Eqn, trips: int, size: int) -> bool:
        total = trips * size
        if total - size > self._room:
            return False
        (body,) = loop.blocks
        asked = loop.params.get("unroll")
        if asked is True or (asked is not None and asked is not False and trips <= asked):
            return total <= ASKED_BUDGET
        if asked is not None:
            return False
        takes_apart = False
        for eqn in walk_eqns(body):
            name = eqn.primitive.name
            if name == "cell" and eqn.outvars[0] not in self._apart.arrays:
                return False
            if name == "while" or (name == "for" and not self._ends_up_constant(eqn)):
                return False
            if eqn.primitive.values is not None and is_local(eqn.invars[0]):
                takes_apart |= eqn.invars[0] in self._apart.arrays
        if takes_apart and trips <= APART_TRIPS and total <= APART_BUDGET:
            return True
        return trips <= TRIPS and total <= BUDGET

    def _ends_up_constant(self, loop: Eqn) -> bool:
        """Bounds that are no constants yet, but depend on nothing but indices of loops around that may go."""
        bounds = loop.invars[:3]
        return trip_count(*bounds) is None and all(isinstance(a, Literal) or a in self._apart.known for a in bounds)

    def _unroll(self, loop: Eqn, out: list[Eqn]) -> int:
        (body,) = loop.blocks
        start, stop, step = loop.invars[:3]
        carries = loop.invars[3:]
        size = 0
        for k in range(*[int(a.value) for a in (start, stop, step) if isinstance(a, Literal)]):
            env: dict[Var, Atom] = dict(zip(body.params, (literal(k, start.dtype), *carries), strict=True))
            # visited again, because bounds of loops inside may be constants now
            eqns = copy_eqns(body.eqns, env)
            self._apart.copied(env)
            size += sum([self._visit(eqn, out) for eqn in eqns])
            carries = copied_atoms(copied_atoms(body.results, env), self._replaced)
        self._replaced.update(zip(loop.outvars, carries, strict=True))
        return size
