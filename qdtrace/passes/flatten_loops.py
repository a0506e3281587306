"""Nests of loops over the elements of an array of several short axes become one loop over all of its elements.

Before:  a: cell[f32,10x10] = cell[...]         After:  a: cell[f32,100] = cell[...]
         for k in 0:i32 : 10:i32 : 1:i32                for e in 0:i32 : 100:i32 : 1:i32
           for m in 0:i32 : 10:i32 : 1:i32                k: i32 = div e 10:i32
             v: f32 = load x i k m                        m: i32 = rem e 10:i32
             store a v k m                                v: f32 = load x i k m
                                                          store a v e

The same trips run in the same order, so each value has the same bits. `m` and `k` join again in a row-major address
(`analysis/index/affine`), where nobody divides. A loop over all elements is long enough for vectors along it, sums the
lanes once in place of once for each line, and is fused with others (`fuse_loops`): private arrays that such loops touch
have one axis, and one index.

A nest stays if its innermost loop is longer than what is written out of a row, as that is a row already; if an access
is side by side, or at one place, along the innermost loop and would be neither along all elements, as parts of lines
and one number for each line are; if all are far apart; and if loops hold more than each other and, in front, sums of
indices. Threads, which keep no rows (`Machine.keeps_rows`), would divide for nothing.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.trips import loop_values
from qdtrace.analysis.machine import CPU
from qdtrace.frozen import frozen
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.carries import carried_params
from qdtrace.ir.memory import first_index, indices_of, reference, touched
from qdtrace.ir.primitives import CELL, FOR
from qdtrace.ir.program import Block, Eqn, Literal, Var, is_local, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType, RefType
from qdtrace.ir.walk import used_in_block, walk_eqns, walk_inside
from qdtrace.passes.base import TaskPass
from qdtrace.passes.taken_apart import Apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.index.progression import Progression
    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Atom, Program, Task

MOST = 1 << 30
"""Most trips of a loop, so that its index and the end fit into 32 bits."""


@frozen
class FlattenLoops(TaskPass):
    """Makes one loop of nests over all elements of arrays with short axes."""

    name: ClassVar[str] = "flatten_loops"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if not self.machine.keeps_rows or not any(_holds_loop(e) for e in walk_eqns(task.body) if e.primitive is FOR):
            return task
        nests = {n.loops[0]: n for n in _nests(task.body, AffineForms(task), self.machine.scalars_of_rows)}
        if not nests:
            return task
        apart = Apart(task.body, self.machine).arrays
        nests = {e: n for e, n in nests.items() if apart.isdisjoint(touched(walk_inside(e)))}
        if not nests:
            return task
        return task.rebuilt(_Flattener(nests, _flat_arrays(task, nests.values())).rebuild_block(task.body))


@frozen(eq=False)
class _Nest:
    """Loops, each the only one in that around it, that are one loop over all of their trips."""

    loops: Sequence[Eqn]
    values: Sequence[Progression]
    """The values of the index of each loop."""
    forms: Mapping[Eqn, Form]
    """The address of each access."""

    @property
    def counts(self) -> list[int]:
        """The trips of each loop."""
        return [v.count for v in self.values]

    @property
    def lows(self) -> list[int]:
        """The least index of each loop."""
        return [min(v.interval or (0,)) for v in self.values]

    def distances(self, access: Eqn) -> tuple[int, bool]:
        """Returns how far an access is from that of the next trip of the innermost loop, and if it always is so far."""
        factors = self._factors(access)
        return factors[-1], factors == [factors[-1] * prod(self.counts[n + 1 :]) for n in range(len(factors))]

    @cached_property
    def places(self) -> dict[Eqn, tuple[int, int]]:
        """Accesses whose address is a factor times the number of the trip, and a constant, with these."""
        found: dict[Eqn, tuple[int, int]] = {}
        indices = {loop.index for loop in self.loops}
        for access, form in self.forms.items():
            factor, is_joined = self.distances(access)
            if is_joined and set(form.terms) == indices:
                least = sum(f * k for f, k in zip(self._factors(access), self.lows, strict=True))
                found[access] = factor, form.constant + least
        return found

    def _factors(self, access: Eqn) -> list[int]:
        return [self.forms[access].terms.get(loop.index, 0) for loop in self.loops]


def _nests(block: Block, forms: AffineForms, longest: int) -> Iterator[_Nest]:
    """Yields the nests of a block that become one loop, the largest of those inside each other."""
    for eqn in block.eqns:
        nest = _nest(eqn, forms, longest) if eqn.primitive is FOR else None
        if nest is not None:
            yield nest
        else:
            for inner in eqn.blocks:
                yield from _nests(inner, forms, longest)


def _nest(outer: Eqn, forms: AffineForms, longest: int) -> _Nest | None:
    loops = [outer]
    while (inner := _inner_loop(loops[-1], forms)) is not None:
        loops.append(inner)
    if len(loops) < 2:
        return None
    values = [loop_values(*loop.bounds) for loop in loops]
    known = [v for v in values if v is not None and v.count and abs(v.step) == 1]
    if len(known) < len(loops) or len({v.step for v in known}) > 1:
        return None
    if not known[-1].count <= longest < prod(v.count for v in known) <= MOST or "unroll" in outer.params:
        return None
    if any(loop.index.dtype is not DType.i32 or loop.params != outer.params for loop in loops):
        return None
    accesses = [e for e in walk_inside(outer) if e.primitive.is_access]
    nest = _Nest(loops, known, {e: forms.address(ref_type(reference(e)), indices_of(e)) for e in accesses})
    found = [nest.distances(e) for e in accesses]
    lost = any(one in (-1, 0, 1) for one, is_joined in found if not is_joined)
    return nest if any(one and is_joined for one, is_joined in found) and not lost else None


def _holds_loop(loop: Eqn) -> bool:
    last = loop.blocks[0].eqns[-1:]
    return bool(last) and last[0].primitive is FOR


def _inner_loop(loop: Eqn, forms: AffineForms) -> Eqn | None:
    """Returns the only loop of a loop's body, in front of which there are sums of indices alone."""
    (body,) = loop.blocks
    inner = body.eqns[-1] if body.eqns else None
    if inner is None or inner.primitive is not FOR or body.results != inner.outvars:
        return None
    carries, before = carried_params(loop, body), body.eqns[:-1]
    if inner.initials != carries or any(e.primitive.effects or e.blocks for e in before):
        return None
    if not all(v in forms.forms for e in before for v in e.outvars):
        return None
    read = {*(v for e in before for v in e.invars), *used_in_block(inner.blocks[0])}
    return inner if read.isdisjoint(carries) else None


def _flat_arrays(task: Task, nests: Iterable[_Nest]) -> set[Var]:
    """Returns the private arrays of several axes that nests touch at the number of a trip, and accesses alone use."""
    found = {reference(e) for nest in nests for e in nest.places}
    found = {ref for ref in found if is_local(ref) and ref_type(ref).ndim > 1}
    for eqn in task.all_eqns:
        found.difference_update(eqn.invars[1:] if eqn.primitive.is_access else eqn.invars)
    return found & {v for e in walk_eqns(task.body) if e.primitive is CELL for v in e.outvars}


class _Flattener(Rebuilder):
    def __init__(self, nests: Mapping[Eqn, _Nest], arrays: set[Var]) -> None:
        super().__init__()
        self._nests = nests
        self._arrays = {ref: _flat(ref) for ref in arrays}
        self._trip: tuple[Var, _Nest] | None = None
        """The index of the loop that a nest becomes, while its body is rebuilt."""

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, a loop in place of a nest, and accesses of arrays that have one axis now."""
        if eqn in self._nests:
            self._flatten(self._nests[eqn])
        elif eqn.primitive is CELL and eqn.outvars[0] in self._arrays:
            flat = self._arrays[eqn.outvars[0]]
            params = {**eqn.params, "shape": ref_type(flat).shape}
            self.append(Eqn(CELL, (), (flat,), params, (), eqn.loc))
        elif eqn.primitive.is_access and reference(eqn) in self._arrays:
            first, flat = first_index(eqn), self._arrays[reference(eqn)]
            operands = (flat, *self.atoms(eqn.invars[1:first]), self._position(eqn))
            self.append(eqn.rebuilt(operands, (), eqn.outvars))
        else:
            super().visit(eqn)

    def _flatten(self, nest: _Nest) -> None:
        first, last = nest.loops[0], nest.loops[-1]
        dtype, trips, step = first.index.dtype, prod(nest.counts), nest.values[0].step
        bounds = (0, trips, 1) if step > 0 else (trips - 1, -1, -1)
        index = scalar_var(dtype, first.index.hint)
        params = carried_params(last, last.blocks[0])
        with self.block((index, *params)) as opened:
            rest: Atom = index
            for loop, count, low in reversed(list(zip(nest.loops, nest.counts, nest.lows, strict=True))):
                number = literal(count, dtype)
                digit = rest if loop is first else self("rem", rest, number)
                self.env[loop.index] = self("add", digit, literal(low, dtype)) if low else digit
                rest = rest if loop is first else self("div", rest, number)
            self._trip = index, nest
            for loop in nest.loops[:-1]:
                opened.eqns += self.rebuild_eqns(loop.blocks[0].eqns[:-1])
            opened.eqns += self.rebuild_eqns(last.blocks[0].eqns)
            self._trip = None
        body = opened.close(self.atoms(last.blocks[0].results))
        control = tuple(literal(b, dtype) for b in bounds)
        self.append(Eqn(FOR, (*control, *self.atoms(first.initials)), first.outvars, first.params, (body,), first.loc))

    def _position(self, eqn: Eqn) -> Atom:
        """Emits the row-major number of the element that an access touches."""
        if self._trip is not None and (place := self._trip[1].places.get(eqn)) is not None:
            index, (factor, constant) = self._trip[0], place
            scaled = index if factor == 1 else self("mul", index, literal(factor, index.dtype))
            return self("add", scaled, literal(constant, index.dtype)) if constant else scaled
        indices = [
            literal(int(k.value), DType.i32) if isinstance(k, Literal) else self.convert(k, DType.i32)
            for k in self.atoms(indices_of(eqn))
        ]
        total, *others = indices
        for k, size in zip(others, ref_type(reference(eqn)).shape[1:], strict=True):
            if isinstance(total, Literal):  # at once: straight code has thousands of accesses at constant indices
                row = int(total.value) * size
                is_known = isinstance(k, Literal)
                total = literal(row + int(k.value), DType.i32) if is_known else self("add", k, literal(row, DType.i32))
            else:
                total = self("add", self("mul", total, literal(size, DType.i32)), k)
        return total


def _flat(ref: Var) -> Var:
    kind = ref_type(ref)
    return Var(RefType(kind.dtype, (kind.size,), kind.space), ref.hint)
