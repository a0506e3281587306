"""Serial loops that are scans: each iteration combines the carried value with a term of its own.

    for k in start : stop carry c = c0          c is `c0 op t op t ...` over the earlier iterations,
      ...                                       so blocks of iterations can run side by side from
      r = op c t                                prefix sums of `t`
      ...
      yield r

`op` commutes and is associative; `add` and `mul` of floats qualify if `fast_math` allows another order. A loop between
constants may have any step: derivatives of scans count down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowering.llvm.facts import TaskFacts
from lowering.triton.lanes import analyse_lanes, divergent_loop
from qdtrace.analysis.index.trips import loop_values, trip_count
from qdtrace.analysis.memory import TaskMemory
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params
from qdtrace.ir.dataflow import slice_of
from qdtrace.ir.faults import checks_of
from qdtrace.ir.memory import loaded, written
from qdtrace.ir.primitives import ADD, AND, ATOMIC, CELL, FOR, LANE_MAX, MAX, MIN, MUL, OR, SUB, XOR
from qdtrace.ir.program import Block, Eqn, Literal, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import used_vars, walk_all, walk_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom

_OPS = (ADD, SUB, MUL, MIN, MAX, AND, OR, XOR)
_ROUNDED = (ADD, SUB, MUL)
_DTYPES = frozenset(d for d in DType if d.is_float or (d.is_integer and d.bits >= 32))


@frozen(slots=True, eq=False)
class Carried:
    """One value that the loop carries, with its update."""

    param: Var
    """The parameter that holds the result of all earlier iterations."""
    update: Eqn
    """The equation that combines `param` with the term of the iteration."""
    initial: Atom
    outvar: Var

    @property
    def op(self) -> str:
        """The operation of the scan: a difference is a sum of negated terms."""
        return "add" if self.update.primitive is SUB else self.update.primitive.name

    @property
    def term(self) -> Atom:
        """The operand that the iteration combines with the carried value."""
        a, b = self.update.invars
        return b if a is self.param else a

    @property
    def dtype(self) -> DType:
        """The dtype of the carried value."""
        return self.param.dtype


@frozen(slots=True, eq=False)
class Scan:
    """A serial task that is a scan."""

    facts: TaskFacts
    """Facts about the serial task."""
    before: tuple[Eqn, ...]
    loop: Eqn
    after: tuple[Eqn, ...]
    carried: tuple[Carried, ...]
    terms: tuple[Eqn, ...]
    """Equations of the body that compute the terms."""
    blocks: frozenset[Var]
    """Variables that differ between iterations."""
    starts_used: frozenset[Var]
    """Carried values that the body uses as they are before an iteration's update."""

    ends_used: frozenset[Var]
    """Carried values that the body uses as they are after an iteration's update."""

    @property
    def body(self) -> Block:
        """The body of the loop."""
        return self.loop.blocks[0]

    def is_used(self, c: Carried) -> bool:
        """Returns whether the body uses a carried value, so that each iteration needs its prefix sum."""
        return c.param in self.starts_used or c.param in self.ends_used

    @property
    def rest(self) -> tuple[Eqn, ...]:
        """Equations of the body that are emitted once prefix sums are known. They include the update of a carried
        value that is used both before and after it, which is computed from the value before it."""
        both = self.starts_used & self.ends_used
        done = {c.update for c in self.carried if c.param not in both}
        return tuple([e for e in self.body.eqns if e not in done and e not in self.terms])

    @property
    def count(self) -> int | None:
        """The trip count, or None if only the device knows it."""
        return trip_count(*self.loop.bounds)


def find_scan(task: Task, *, fast_math: bool) -> Scan | str:
    """Returns a serial task as a scan, or why it is none."""
    if task.kind != "serial" or checks_of(task.all_eqns):
        return "it is not a serial task without checks"
    eqns = (*task.head, *task.body.eqns)
    places = [n for n, e in enumerate(eqns) if any(x.primitive.loops for x in walk_all((e,)))]
    if len(places) != 1 or eqns[places[0]].primitive is not FOR:
        return "it does not have exactly one loop"
    loop = _by_one(eqns[places[0]])
    if loop is None:
        return "the step of its loop is not 1, and its bounds are not known"
    task = task.rebuilt(task.body.rebuilt([loop if e is eqns[places[0]] else e for e in task.body.eqns]))
    before, after = eqns[: places[0]], eqns[places[0] + 1 :]
    start, stop, _ = loop.bounds
    if not loop.outvars:
        return "its loop carries nothing"
    body = loop.blocks[0]
    carried: list[Carried] = []
    params = carried_params(loop, body)
    for param, initial, result, out in zip(params, loop.initials, body.results, loop.outvars, strict=True):
        found = _carried(body, param, initial, result, out, fast_math=fast_math)
        if isinstance(found, str):
            return found
        carried.append(found)
    terms = slice_of(body.eqns, [c.term for c in carried])
    used = {v for e in terms for v in used_vars(e)} | {c.term for c in carried}
    if not used.isdisjoint(params):
        return "the value that an iteration adds depends on a carried value"
    if any(e.primitive.writes for e in walk_all(terms)):
        return "the value that an iteration adds is computed by code that writes memory"
    updates = {c.update for c in carried}
    own = {v for e in body.eqns if e not in updates for v in used_vars(e)}
    parallel = Task("range_for", body.params[0], start, stop, Block((), body.eqns), before)
    if (reason := _memory(before, loop, after, parallel)) is not None:
        return reason
    varying = frozenset([*(c.param for c in carried), *(c.update.outvars[0] for c in carried)])
    lanes = analyse_lanes(parallel, varying)
    if divergent_loop(body, lanes) is not None:
        return "its iterations take different loops"
    starts = frozenset(c.param for c in carried if c.param in own)
    ends = frozenset(c.param for c in carried if c.update.outvars[0] in own)
    return Scan(TaskFacts(task), before, loop, after, tuple(carried), terms, lanes.varying, starts, ends)


def _by_one(loop: Eqn) -> Eqn | None:
    """Returns an equal loop with step 1, or None if its bounds are not known.

    for k in 9 : -1 : -1   ->   for n in 0 : 10 : 1
                                  m = mul n -1
                                  k = add m 9
    """
    start, stop, step = loop.bounds
    if isinstance(step, Literal) and int(step.value) == 1:
        return loop
    values, (body,) = loop_values(start, stop, step), loop.blocks
    index, *params = body.params
    if values is None or values.count > np.iinfo(index.dtype.numpy).max:
        return None
    first, count, by = (literal(value, index.dtype) for value in (0, values.count, 1))
    number, scaled = Var(index.type, index.hint), Var(index.type)
    here = (
        Eqn(MUL, (number, literal(values.step, index.dtype)), (scaled,)),
        Eqn(ADD, (scaled, literal(values.start, index.dtype)), (index,)),
    )
    inner = body.rebuilt((*here, *body.eqns), params=(number, *params))
    return loop.rebuilt((first, count, by, *loop.initials), (inner,))


def _carried(body: Block, param: Var, initial: Atom, result: Atom, out: Var, *, fast_math: bool) -> Carried | str:
    update = next((e for e in body.eqns if result in e.outvars), None)
    if update is None or update.primitive not in _OPS or param not in update.invars:
        return "a carried value is not combined with a value of the iteration"
    a, b = update.invars
    if a is b or (update.primitive is SUB and b is param):
        return "a carried value is not combined with a value of the iteration"
    if param.dtype not in _DTYPES:
        return f"it carries {param.dtype.value}"
    if param.dtype.is_float and update.primitive in _ROUNDED and not fast_math:
        return "without fast_math the order of a sum of floats is kept"
    return Carried(param, update, initial, out)


def _memory(before: Sequence[Eqn], loop: Eqn, after: Sequence[Eqn], parallel: Task) -> str | None:
    """Returns why the iterations and the equations around them cannot be split into kernels, or None."""
    for eqn in walk_all((*before, loop, *after)):
        if eqn.primitive in (ATOMIC, CELL, LANE_MAX):
            return f"it has `{eqn.primitive.name}`"
    if any(e.primitive.writes for around in before for e in walk_inside(around)):
        return "it writes in a branch before the loop"
    stored, changed = set(written(before)), set(written(walk_inside(loop)))
    if (stored | changed).intersection(loaded(walk_all(before))) or stored.intersection(loaded(walk_inside(loop))):
        return "its loop and the code before it access the same memory"
    memory = TaskMemory(parallel)
    if not all(memory.share_a_proof(memory.shared[ref]) for ref in memory.written):
        return "iterations of its loop access the same elements"
    return None
