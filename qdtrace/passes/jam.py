"""Unroll and jam: neighbouring iterations of a loop over sums of products become one, equation beside equation.

Before:  for i in 0:i32 : 32:i32 : 1:i32                      After:  for i in 0:i32 : 32:i32 : 2:i32
           s: f32 = for k in ... carry c = 0.0:f32                      j: i32 = add i 1:i32
             w: f32 = load m i k                                        s: f32, t: f32 = for k in ... carry c, d
             x: f32 = load v k                                            w: f32 = load m i k
             p: f32 = mul w x                                             u: f32 = load m j k
             n: f32 = add c p                                             x: f32 = load v k
             yield n                                                      ...
           store out s i                                                store out s i
                                                                        store out t j

A sum waits for each of its additions, so sums side by side take less time, and `v` is loaded once for all of them. With
AVX2 a network of width 32 in a loop takes 0.75 of the time (docs/design/0047). Where the loop around makes rows of such
sums, two of its iterations become one as well, so that a number of either matrix is loaded once for several sums. On a
GPU all of few iterations become one: what a trip makes again in place of a load (`importer/elements`) is made once.

Iterations must not meet in memory: what they write is at a place of their own, the same in every access. The rest of
the trip count is a loop of its own. Bodies with checks, branches or private memory of their own stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.affine import AffineForms, Form
from qdtrace.analysis.index.trips import loop_values
from qdtrace.analysis.machine import CPU
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import FOR, PRIMITIVES, Effect
from qdtrace.ir.program import Block, Eqn, Program, Task, Var, literal
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.ir.walk import bound_in_block, walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.machine import Machine

ROWS = 2
"""Rows of a product whose sums are joined, each of `Machine.jammed`: a number of either matrix serves several sums."""
LEAST_PRODUCTS = 8
"""The fewest products that a sum adds."""
_MOST_EQUATIONS = 96
"""The most equations of a body."""
_MEMORY = frozenset({Effect.READ, Effect.WRITE, Effect.ACCUM})


@frozen
class Jam(TaskPass):
    """Joins neighbouring iterations of loops over sums of products."""

    name: ClassVar[str] = "jam"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if self.machine.jammed < 2 or not any(e.primitive is FOR for e in walk_eqns(task.body)):
            return task
        return task.rebuilt(_Jammer(self.machine).rebuild_block(task.body))


class _Jammer(Rebuilder):
    """Rebuilds a task with loops joined."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._times = machine.jammed
        self._all = not machine.keeps_rows

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; a loop is joined after those inside of it."""
        made = self.rebuild_eqn(eqn)
        values = loop_values(*made.bounds) if made.primitive is FOR and not made.initials else None
        most = self._times if values is None or not self._all else _even(values.count, self._times)
        times = 1 if values is None else most if _pays(made, most) else ROWS if self._is_row(made) else 1
        if values is None or times < 2 or values.count < times or not _are_apart(made):
            self.append(made)
            return
        joined = values.count // times * times
        start, stop, step = made.bounds
        border = literal(values.start + joined * values.step, start.dtype)
        wide = literal(values.step * times, step.dtype)
        body = self._joined_body(made, values.step, times)
        self.append(Eqn(FOR, (start, border, wide), (), made.params, (body,), made.loc))
        if joined < values.count:
            rest = Copier().rebuild_block(made.blocks[0])
            self.append(Eqn(FOR, (border, stop, step), (), made.params, (rest,), made.loc))

    def _is_row(self, loop: Eqn) -> bool:
        """Returns whether a loop's body is a loop over sums that were joined, with another one for the rest of them."""
        (body,) = loop.blocks
        inner = [eqn for eqn in body.eqns if eqn.blocks]
        if not inner or sum(1 for _ in walk_eqns(body)) > _MOST_EQUATIONS:
            return False
        sums = [_only_sums(eqn) for eqn in inner]
        return sums[0] == self._times and 0 not in sums

    def _joined_body(self, loop: Eqn, step: int, times: int) -> Block:
        """Returns the body of several iterations."""
        index = Var(loop.index.type, loop.index.hint)
        with self.block([index]) as block:
            numbers = [index, *(self("add", index, literal(k * step, index.dtype)) for k in range(1, times))]
            copies = [Copier({loop.index: number}) for number in numbers]
            for eqn in loop.blocks[0].eqns:
                self._side_by_side(eqn, copies)
        return block.close()

    def _side_by_side(self, eqn: Eqn, copies: Sequence[Copier]) -> None:
        """Appends an equation for each iteration, or one loop for all of them."""
        if eqn.primitive is not FOR:
            for copy in copies:
                self.append(Eqn(eqn.primitive, copy.atoms(eqn.invars), copy.bind(eqn.outvars), eqn.params, (), eqn.loc))
            return
        (body,) = eqn.blocks
        index = Var(eqn.index.type, eqn.index.hint)
        for copy in copies:
            copy.env[eqn.index] = index
        carries = [p for copy in copies for p in copy.bind(body.params[1:])]
        with self.block([index, *carries]) as block:
            for inner in body.eqns:
                self._side_by_side(inner, copies)
            results = [a for copy in copies for a in copy.atoms(body.results)]
        initials = [a for copy in copies for a in copy.atoms(eqn.initials)]
        outvars = [v for copy in copies for v in copy.bind(eqn.outvars)]
        bounds = copies[0].atoms(eqn.bounds)
        self.append(Eqn(FOR, (*bounds, *initials), tuple(outvars), eqn.params, (block.close(results),), eqn.loc))


def _even(count: int, most: int) -> int:
    """Returns how many of `count` iterations are joined, at most `most`, so that few are left."""
    if count <= most:
        return count
    return next((k for k in range(most, most // 2, -1) if count % k == 0), most)


def _pays(loop: Eqn, times: int) -> bool:
    """Returns whether a loop's body has sums of products in a loop, fewer than what is joined has."""
    (body,) = loop.blocks
    inner = [eqn for eqn in body.eqns if eqn.blocks]
    if len(inner) != 1 or inner[0].primitive is not FOR or sum(1 for _ in walk_eqns(body)) > _MOST_EQUATIONS:
        return False
    return carries_products(inner[0]) and len(inner[0].initials) < times


def _only_sums(loop: Eqn) -> int:
    """Returns how many sums of products the only loop in the body of a loop carries; 0 if there is no such loop."""
    if loop.primitive is not FOR or loop.initials or loop_values(*loop.bounds) is None:
        return 0
    inner = [eqn for eqn in loop.blocks[0].eqns if eqn.blocks]
    found = len(inner) == 1 and inner[0].primitive is FOR and carries_products(inner[0])
    return len(inner[0].initials) if found else 0


def carries_products(loop: Eqn) -> bool:
    """Returns whether a loop without loops inside carries sums of products, and writes nothing."""
    values = loop_values(*loop.bounds)
    return values is not None and values.count * products_summed(loop, taken_away=True) >= LEAST_PRODUCTS


def products_summed(loop: Eqn, *, taken_away: bool = False) -> int:
    """Returns how many products a loop adds to something in each trip; 0 if it has loops inside, or writes.

    With `taken_away` those that are subtracted count, too.
    """
    (body,) = loop.blocks
    if not loop.initials or any(e.blocks or e.primitive.writes for e in body.eqns):
        return 0
    made = {e.outvar for e in body.eqns if e.primitive is PRIMITIVES["mul"] and e.outvar.dtype.is_float}
    kinds = (PRIMITIVES["add"], PRIMITIVES["sub"])[: 2 if taken_away else 1]
    return sum(1 for e in body.eqns if e.primitive in kinds and not made.isdisjoint(e.invars))


def _are_apart(loop: Eqn) -> bool:
    """Returns whether iterations share no memory that one of them writes, and have no effect but on memory."""
    index, written, places, forms = loop.index, set[Var](), dict[Var, dict[int, Form]](), AffineForms()
    inside = set(bound_in_block(loop.blocks[0])) - {index}
    for eqn in walk_eqns(loop.blocks[0]):
        forms.visit(eqn)
        if not eqn.blocks and not eqn.primitive.effects <= _MEMORY:
            return False
        if eqn.primitive.values is None:
            if eqn.primitive.effects:
                return False
            continue
        if eqn.primitive.writes:
            written.add(reference(eqn))
        found = {k: forms.of(i) for k, i in enumerate(indices_of(eqn))}
        own = {k: f for k, f in found.items() if index in f.terms and _is_plain(f) and inside.isdisjoint(f.terms)}
        before = places.get(reference(eqn), own)
        places[reference(eqn)] = {k: f for k, f in own.items() if before.get(k) == f}
    return all(places[ref] for ref in written)


def _is_plain(form: Form) -> bool:
    return all(isinstance(term, Var) for term in form.terms)
