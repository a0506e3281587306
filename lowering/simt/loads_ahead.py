"""Loops that load ahead: the loads of several iterations are issued before the first of them goes on.

    for k in lo : hi              for k in lo : hi, by four
      a = load w k                  k0 .. k3 = min (k + 0 .. 3) (hi - 1)
      c = load x (load p k)   ->    a0 .. a3 = load w k0 .. k3
      s = f s a c                   c0 .. c3 = load x (load p k0 .. k3)
                                    s = f s a0 c0
                                    if k + 1 < hi: s = f s a1 c1; if k + 2 < hi: ...

A thread waits for memory where it needs a value, not where it issues the load. A compiler may not do this by itself: it
must not move a load across a store, or across a check that may end the thread. Here the loads are of memory that the
task does not write, and each follows its own check. If a check fails, the call fails, so earlier stores do not matter.

The remaining iterations load together as well, with the last one repeated for those that are missing: one by one, each
would wait for memory once more. Rows of a sparse matrix on an H200: 0.78 ms with the remainder one by one, 0.68
together; by eight 0.66 ms, but their gradient, which needs more registers, takes 3.5 ms in place of 3.1. Where
iterations store or update, a compiler moves the loads of one behind the test whether there is one. So those that remain
are behind the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import control
from lowering.llvm.checks import bounds
from lowering.llvm.types import REGISTER
from qdtrace.analysis.index.trips import trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params
from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import BOUND, CELL, LOAD, Effect
from qdtrace.ir.program import Literal, Var, is_global
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.vectors import Value
    from lowering.simt.frame import KernelFrame
    from qdtrace.ir.program import Block, Eqn

ITERATIONS = 4
"""Iterations that load together."""
MOST_VALUES = 12
"""The most values that an iteration passes from its loads to the rest: each is a register per iteration."""
MOST_COST = 200
"""The most equations of a body that may be copied."""
_CHANGES = frozenset({Effect.WRITE, Effect.ACCUM})


@frozen
class Ahead:
    """The split of a loop's body into loads that go ahead and the rest."""

    eqns: Sequence[Eqn]
    """Equations that need nothing of earlier iterations: loads and their operands."""
    rest: Sequence[Eqn]
    whole: bool
    """True if the trip count is known and a multiple of `ITERATIONS`."""
    apart: bool
    """True if the remaining iterations are behind the loop."""


def emit_for(f: KernelFrame, eqn: Eqn) -> None:
    """Emits `for`, with loads ahead if that is valid and profitable."""
    ahead = _ahead(f, eqn)
    if ahead:
        _emit(f, eqn, ahead)
    else:
        control.emit_for(f, eqn)


def _ahead(f: KernelFrame, eqn: Eqn) -> Ahead | None:
    """Returns the split of a loop's body, or None if loading ahead is invalid or unprofitable."""
    start, stop, step = eqn.bounds
    body = eqn.blocks[0]
    trips = trip_count(start, stop, step)
    if not isinstance(step, Literal) or step.value != 1 or (trips is not None and trips < ITERATIONS):
        return None
    if eqn.params.get("unroll") is not None or len(body.eqns) > MOST_COST:
        return None
    if any(e.primitive.structured or e.primitive is CELL for e in body.eqns):
        return None
    found = _loading(f, body)
    rest = [e for e in body.eqns if e not in found]
    if not rest or not any(e.primitive is LOAD for e in found):
        return None
    if len(_handed(found, rest, body)) > MOST_VALUES:
        return None
    whole = trips is not None and trips % ITERATIONS == 0
    changes = any(e.primitive.effects & _CHANGES and is_global(e.invars[0]) for e in rest)
    return Ahead(found, rest, whole, changes and not whole)


def _loading(f: KernelFrame, body: Block) -> list[Eqn]:
    """Returns the equations that may run before earlier iterations: movable ones without operands from those."""
    waiting: set[Var] = set(body.params[1:])
    found: list[Eqn] = []
    for e in body.eqns:
        if _is_movable(f, e) and waiting.isdisjoint(used_vars(e)):
            found.append(e)
            continue
        if Effect.CHECK in e.primitive.effects:
            break  # what follows may be valid only because of the check
        waiting.update(e.outvars)
    return found


def _is_movable(f: KernelFrame, eqn: Eqn) -> bool:
    if eqn.primitive is LOAD:
        return is_global(eqn.invars[0]) and reference(eqn) not in f.facts.written
    return eqn.primitive.effects <= {Effect.CHECK}


def _handed(found: Sequence[Eqn], rest: Sequence[Eqn], body: Block) -> set[Var]:
    read = {v for e in rest for v in used_vars(e)} | {a for a in body.results if isinstance(a, Var)}
    return {v for e in found for v in e.outvars if v in read}


def _emit(f: KernelFrame, eqn: Eqn, ahead: Ahead) -> None:
    text, o, body = f.text, f.scalar, eqn.blocks[0]
    start, stop, _ = eqn.bounds
    kind, params = REGISTER[start.dtype], carried_params(eqn, body)
    first, last = f.scalar_of(start), f.scalar_of(stop)
    # carried values are in memory of the function, which LLVM turns into registers
    slots = [text.slot(o.type(p.dtype)) for p in params]
    for p, slot, initial in zip(params, slots, eqn.initials, strict=True):
        text.do(f"store {o.type(p.dtype)} {f.scalar_of(initial)}, ptr {slot}")
    runs = o.compare("icmp slt", kind, first, last)
    count = o.cast("zext", kind, o.select(runs, kind, o.binary("sub", kind, last, first), "0"), "i64")

    def iteration(at: str, loaded: dict[Var, Value]) -> None:
        with f.region():
            f.env |= loaded
            f.bind(body.params[0], [at])
            for p, slot in zip(params, slots, strict=True):
                f.bind(p, [text.op(f"load {o.type(p.dtype)}, ptr {slot}")])
            f.emit(ahead.rest)
            given = [f.scalar_of(a) for a in body.results]
            for p, slot, value in zip(params, slots, given, strict=True):
                text.do(f"store {o.type(p.dtype)} {value}, ptr {slot}")

    def group(number: str, *, whole: bool) -> None:
        left = _least(f, "i64", text.op(f"sub i64 {count}, {number}"), ITERATIONS)
        left = text.op(f"trunc i64 {left} to i32")
        last_here = text.op(f"sub i32 {left}, 1")
        at = o.binary("add", kind, first, o.cast("trunc", "i64", number, kind))
        places = [at]
        for n in range(1, ITERATIONS):
            more = str(n) if whole else o.cast("zext", "i32", _least(f, "i32", last_here, n), kind)
            places.append(o.binary("add", kind, at, more))
        loaded = _load(f, ahead.eqns, body.params[0], places)
        done = text.fresh_label("done")
        for n, (at, values) in enumerate(zip(places, loaded, strict=True)):
            if n and not whole:
                there = text.fresh_label("there")
                text.branch(text.op(f"icmp sgt i32 {left}, {n}"), there, done)
                text.begin(there)
            iteration(at, values)
        text.jump(done)
        text.begin(done)

    groups = text.op(f"and i64 {count}, {-ITERATIONS}") if ahead.apart else count
    with text.counted("0", groups, ITERATIONS) as number, f.region():
        group(number, whole=ahead.whole or ahead.apart)
    if ahead.apart:
        with text.when(text.op(f"icmp ult i64 {groups}, {count}")), f.region():
            group(groups, whole=False)
    for out, p, slot in zip(eqn.outvars, params, slots, strict=True):
        f.bind(out, [text.op(f"load {o.type(p.dtype)}, ptr {slot}")])


def _least(f: KernelFrame, kind: str, value: str, most: int) -> str:
    f.text.module.declare(f"llvm.smin.{kind}", kind, f"{kind}, {kind}")
    return f.text.op(f"call {kind} @llvm.smin.{kind}({kind} {value}, {kind} {most})")


def _load(f: KernelFrame, eqns: Sequence[Eqn], index: Var, places: Sequence[str]) -> list[dict[Var, Value]]:
    """Emits each equation for all iterations before the next equation, as a check waits for its operand."""
    loaded: list[dict[Var, Value]] = [{} for _ in places]
    for e in eqns:
        if e.primitive is BOUND:
            _check_together(f, e, index, places, loaded)
            continue
        for at, values in zip(places, loaded, strict=True):
            with f.region():
                f.env |= values
                f.bind(index, [at])
                f.emit([e])
            values.update({v: f.env[v] for v in e.outvars})
    return loaded


def _check_together(
    f: KernelFrame, eqn: Eqn, index: Var, places: Sequence[str], loaded: Sequence[dict[Var, Value]]
) -> None:
    """Emits one `bound` check for all iterations. With a branch each, LLVM would move the second's loads behind the
    first branch, so that a thread would wait for memory once per iteration."""
    found: list[Value] = []
    for at, values in zip(places, loaded, strict=True):
        with f.region():
            f.env |= values
            f.bind(index, [at])
            found.append(f.value(eqn.invars[0]))
    bounds(f, eqn, [value.scalar for value in found if value.scalar is not None])
    for value, values in zip(found, loaded, strict=True):
        values[eqn.outvars[0]] = value
