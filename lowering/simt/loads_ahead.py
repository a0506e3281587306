"""Loops that load ahead: what several iterations load is asked for before the first of them goes on.

    for k in lo : hi              for k in lo : hi, by four
      a = load w k                  a0 .. a3 = load w k .. k+3
      c = load x (load p k)   ->    c0 .. c3 = load x (load p k .. k+3)
      s = f s a c                   s = f s a0 c0; ...; s = f s a3 c3
                                  the iterations that are left, one by one

A thread waits for memory where it needs a value, not where it asks for it. A compiler may not do this by itself: behind
a store, or a check that may end the thread, it must not load. Here loads are of memory that the task does not write,
and each stands behind its own check. Where one fails, the call fails, and what was stored before does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import control
from lowering.llvm.checks import bounds
from lowering.llvm.facts import reference
from lowering.llvm.types import REGISTER
from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Literal, Var, is_global
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.vectors import Value
    from lowering.simt.frame import KernelFrame
    from qdtrace.ir.program import Block, Eqn

ITERATIONS = 4
"""That load together."""
MOST_VALUES = 12
"""That an iteration hands from its loads to what follows: each is a register, times the iterations."""
MOST_COST = 200
"""Equations of a body that is copied."""


def emit_for(f: KernelFrame, eqn: Eqn) -> None:
    """`for`, with loads ahead where that is right and worth it."""
    ahead = _ahead(f, eqn)
    if ahead:
        _emit(f, eqn, ahead)
    else:
        control.emit_for(f, eqn)


def _ahead(f: KernelFrame, eqn: Eqn) -> list[Eqn]:
    """Equations of the body that need nothing of the iterations before; empty where the loop stays as it is."""
    start, stop, step = eqn.invars[:3]
    body = eqn.blocks[0]
    few = trip_count(start, stop, step)
    if not isinstance(step, Literal) or step.value != 1 or (few is not None and few < ITERATIONS):
        return []
    if eqn.params.get("unroll") is not None or len(body.eqns) > MOST_COST:
        return []
    if any(e.primitive.structured or e.primitive.name == "cell" for e in body.eqns):
        return []
    waiting: set[Var] = set(body.params[1:])
    found: list[Eqn] = []
    for e in body.eqns:
        if _is_movable(f, e) and waiting.isdisjoint(used_vars(e)):
            found.append(e)
            continue
        if Effect.CHECK in e.primitive.effects:
            break  # what comes behind may be right because of it
        waiting.update(e.outvars)
    if not any(e.primitive.name == "load" for e in found):
        return []
    rest = [e for e in body.eqns if e not in found]
    if not rest or len(_handed(found, rest, body)) > MOST_VALUES:
        return []
    return found


def _is_movable(f: KernelFrame, eqn: Eqn) -> bool:
    if eqn.primitive.name == "load":
        return is_global(eqn.invars[0]) and reference(eqn) not in f.facts.written
    return eqn.primitive.effects <= {Effect.CHECK}


def _handed(found: Sequence[Eqn], rest: Sequence[Eqn], body: Block) -> set[Var]:
    read = {v for e in rest for v in used_vars(e)} | {a for a in body.results if isinstance(a, Var)}
    return {v for e in found for v in e.outvars if v in read}


def _emit(f: KernelFrame, eqn: Eqn, ahead: Sequence[Eqn]) -> None:
    text, o, body = f.text, f.scalar, eqn.blocks[0]
    start, stop = eqn.invars[:2]
    kind, params = REGISTER[start.dtype], body.params[1:]
    first, last = f.scalar_of(start), f.scalar_of(stop)
    # carried values are in memory of the function, which LLVM turns into registers
    slots = [text.slot(o.type(p.dtype)) for p in params]
    for p, slot, initial in zip(params, slots, eqn.invars[3:], strict=True):
        text.do(f"store {o.type(p.dtype)} {f.scalar_of(initial)}, ptr {slot}")
    runs = o.compare("icmp slt" if start.dtype.is_signed else "icmp ult", kind, first, last)
    count = o.cast("zext", kind, o.select(runs, kind, o.binary("sub", kind, last, first), "0"), "i64")
    whole = text.op(f"and i64 {count}, {-ITERATIONS}")
    rest = [e for e in body.eqns if e not in ahead]

    def index(number: str, more: int) -> str:
        at = o.cast("trunc", "i64", number, kind)
        at = o.binary("add", kind, first, at)
        return o.binary("add", kind, at, str(more)) if more else at

    def iteration(eqns: Sequence[Eqn], at: str, loaded: dict[Var, Value]) -> None:
        with f.region():
            f.env |= loaded
            f.bind(body.params[0], [at])
            for p, slot in zip(params, slots, strict=True):
                f.bind(p, [text.op(f"load {o.type(p.dtype)}, ptr {slot}")])
            f.emit(eqns)
            given = [f.scalar_of(a) for a in body.results]
            for p, slot, value in zip(params, slots, given, strict=True):
                text.do(f"store {o.type(p.dtype)} {value}, ptr {slot}")

    with text.counted("0", whole, ITERATIONS) as number, f.region():
        places = [index(number, n) for n in range(ITERATIONS)]
        loaded: list[dict[Var, Value]] = [{} for _ in places]
        for e in ahead:  # of all iterations, before the next is asked for: a check waits for what it looks at
            if e.primitive.name == "bound":
                _check_together(f, e, body.params[0], places, loaded)
                continue
            for at, values in zip(places, loaded, strict=True):
                with f.region():
                    f.env |= values
                    f.bind(body.params[0], [at])
                    f.emit([e])
                values.update({v: f.env[v] for v in e.outvars})
        for at, values in zip(places, loaded, strict=True):
            iteration(rest, at, values)
    with text.counted(whole, count, 1) as number, f.region():
        iteration(body.eqns, index(number, 0), {})
    for out, p, slot in zip(eqn.outvars, params, slots, strict=True):
        f.bind(out, [text.op(f"load {o.type(p.dtype)}, ptr {slot}")])


def _check_together(
    f: KernelFrame, eqn: Eqn, index: Var, places: Sequence[str], loaded: Sequence[dict[Var, Value]]
) -> None:
    """A `bound` of all iterations. With a branch each, LLVM moves what the second looks at behind the first, so that a
    thread waits for memory as often as there are iterations."""
    found: list[Value] = []
    for at, values in zip(places, loaded, strict=True):
        with f.region():
            f.env |= values
            f.bind(index, [at])
            found.append(f.value(eqn.invars[0]))
    bounds(f, eqn, [value.scalar for value in found if value.scalar is not None])
    for value, values in zip(found, loaded, strict=True):
        values[eqn.outvars[0]] = value
