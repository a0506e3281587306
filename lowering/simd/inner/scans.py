"""Carries of a loop that its trips read while they are combined: running sums, products and extremes.

    for k in 0:i32 : 512:i32 : 1:i32 carry c = -inf:f32
      store before c k                     # what was combined in the trips before this one
      v: f32 = load x i k
      t: f32 = max c v
      yield t

Trips of such a loop may still be lanes: a lane's carry is what the lanes before it combine to (a scan). Equations that
read a carry go behind the one that combines it, which reads nothing of the carry itself.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import ADD, LOAD, MAX, MIN, MUL
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.ir.program import Atom, Eqn

SCANNED = {p.name: p for p in (ADD, MUL, MAX, MIN)}


def scan_of(eqn: Eqn | None, carry: Var, reassociates: bool) -> Eqn | None:
    """Returns the equation that makes a carry's next value if it combines the carry with a value of each trip."""
    if eqn is None or eqn.primitive.name not in SCANNED or eqn.invars.count(carry) != 1:
        return None
    rounds = carry.dtype.is_float and eqn.primitive in (ADD, MUL)
    return eqn if reassociates or not rounds else None


def scanned_value(eqn: Eqn, carry: Var) -> Atom:
    """Returns the value that a trip combines its carry with."""
    first, second = eqn.invars
    return second if first is carry else first


def scheduled(eqns: Sequence[Eqn], scans: Mapping[Eqn, Var]) -> tuple[Eqn, ...] | None:
    """Returns a body's equations with each reader of a carry behind the equation that combines it.

    None if there is no such order: a value that a trip combines depends on the carry, or memory would change its order.
    """
    place = {eqn: n for n, eqn in enumerate(eqns)}
    made = {v: n for eqn, n in place.items() for v in eqn.outvars}
    made.update((carry, place[eqn]) for eqn, carry in scans.items())
    needs: dict[int, set[int]] = {}
    loads: dict[Var, list[int]] = {}
    writes: dict[Var, int] = {}
    for eqn, n in place.items():
        read = [a for a in eqn.invars if isinstance(a, Var) and a is not scans.get(eqn)]
        needs[n] = {made[a] for a in read if a in made}
        if not eqn.primitive.is_access:
            continue
        ref = reference(eqn)
        needs[n].update([writes[ref]] if ref in writes else [])
        if eqn.primitive is LOAD:
            loads.setdefault(ref, []).append(n)
        else:  # behind the accesses since the write before, which are behind all others
            needs[n].update(loads.pop(ref, ()))
            writes[ref] = n
    sorter, ready = TopologicalSorter(needs), list[int]()
    try:
        sorter.prepare()
    except CycleError:
        return None
    order: list[int] = []
    while sorter.is_active():
        for n in sorter.get_ready():
            heappush(ready, n)
        order.append(heappop(ready))
        sorter.done(order[-1])
    return tuple(eqns[n] for n in order)
