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

from typing import TYPE_CHECKING

from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import ADD, LOAD, MAX, MIN, MUL
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.ir.program import Atom, Block, Eqn

SCANNED = {p.name: p for p in (ADD, MUL, MAX, MIN)}


def scan_of(block: Block, carry: Var, result: Atom, reassociates: bool) -> Eqn | None:
    """Returns the equation that combines a carry with a value of each trip, or None if there is no such one."""
    eqn = next((e for e in block.eqns if result in e.outvars), None)
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
    made = {v: e for e in eqns for v in e.outvars} | {carry: e for e, carry in scans.items()}
    needs: dict[Eqn, set[Eqn]] = {}
    for n, eqn in enumerate(eqns):
        read = [a for a in eqn.invars if isinstance(a, Var) and a is not scans.get(eqn)]
        needs[eqn] = {made[a] for a in read if a in made}
        if eqn.primitive.is_access:
            needs[eqn].update(e for e in eqns[:n] if _conflict(e, eqn))
    order: list[Eqn] = []
    left = list(eqns)
    while left:
        ready = next((e for e in left if needs[e].isdisjoint(left)), None)
        if ready is None:
            return None
        left.remove(ready)
        order.append(ready)
    return tuple(order)


def _conflict(a: Eqn, b: Eqn) -> bool:
    """Returns whether accesses must keep their order: they are of one reference, and one of them writes."""
    return (
        a.primitive.is_access and reference(a) is reference(b) and not (a.primitive is LOAD and b.primitive is LOAD)
    )
