"""Pushes of `qd.append` become stores at places that are counted before (docs/design/0063-append.md).

In parallel loops `tasks` counts them; in a loop of one thread, and between loops, a push counts where it stands. The
result is markers that were there before: all that comes later knows nothing of pushes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jax import lax

from qdtrace.errors import UnsupportedError
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.pushes.tasks import LoopOfPushes, Trips, equations, giving, target_of, too_many
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.structure import static_bounds, with_bodies
from qdtrace.trace.tree import body_of, bounds_of, hints_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jax

    from qdtrace.trace.compat import JaxprEqn, Var
    from qdtrace.trace.tree import Root


def place_pushes(root: Root) -> None:
    """Replaces the pushes among the equations of a function.

    Raises UnsupportedError for a push in control flow of `lax`, and for a parallel loop that cannot be counted before.
    """
    if _has_push(root.items):
        places = _Places()
        items = places.items(root.items)
        root.items = [*places.made, *items]
        root.is_exact = places.is_exact


def _has_push(eqns: Sequence[JaxprEqn]) -> bool:
    return any(e.primitive is markers.push_p for e in compat.all_eqns(eqns))


class _Places:
    def __init__(self) -> None:
        self.made: list[JaxprEqn] = []
        """Allocations of counts: in front of all, as those in conditions and loops would be refused."""
        self.is_exact = False
        self._makers: dict[Var, JaxprEqn] = {}
        self._capacities: dict[Var, int] = {}

    def items(self, items: Sequence[JaxprEqn], in_thread: bool = False) -> list[JaxprEqn]:
        """Returns the equations with places for the pushes among them."""
        out: list[JaxprEqn] = []
        for eqn in items:
            self._makers.update((v, eqn) for v in eqn.outvars)
            if eqn.primitive is markers.alloc_p and "capacity" in eqn.params:
                self._capacities[eqn.outvars[0]] = eqn.params["capacity"]
            if not _has_push([eqn]):
                out.append(eqn)
            elif eqn.primitive is markers.push_p:
                out += _counted_here(eqn)
            elif eqn.primitive not in markers.REGIONS:
                raise _inside(eqn)
            elif eqn.primitive is markers.for_p and not in_thread and not hints_of(eqn).get("serial"):
                out += self._loop(eqn)
            else:
                is_thread = in_thread or eqn.primitive is markers.for_p
                out.append(with_bodies(eqn, lambda eqns, is_thread=is_thread: self.items(eqns, is_thread)))
        return out

    def _loop(self, loop: JaxprEqn) -> list[JaxprEqn]:
        """Returns the tasks of a parallel loop that pushes."""
        inside = [*compat.all_eqns(body_of(loop).eqns)]
        for eqn in inside:
            if eqn.primitive not in (markers.push_p, *markers.REGIONS) and _has_push([eqn]):
                raise _inside(eqn)
        pushes = {target_of(e): e for e in reversed(inside) if e.primitive is markers.push_p}
        tasks = LoopOfPushes(loop, self._trips(loop), pushes)
        self.made += tasks.made
        self.is_exact |= tasks.decisions.is_inexact
        return [tasks.counting(), tasks.scanning(), tasks.storing()]

    def _trips(self, loop: JaxprEqn) -> Trips:
        start, stop, step = bounds_of(loop)
        numbers = static_bounds(loop)
        if numbers is not None:
            return Trips(numbers.start, numbers.step, len(numbers))
        maker = None if isinstance(stop, Literal) else self._makers.get(stop)
        is_whole = all(isinstance(v, Literal) and v.val == k for v, k in ((start, 0), (step, 1)))
        if is_whole and maker is not None and maker.primitive is markers.load_p:
            capacity = self._capacities.get(target_of(maker))
            if capacity is not None and not isinstance(stop, Literal):
                return Trips(0, 1, capacity, stop)
        raise UnsupportedError(
            "a parallel loop that pushes needs constant bounds, or the count of a qd.append",
            loc=loop.params["loc"],
            help="loop over all there may be, `for i in qd.range(x.shape[0])`, and push under `with qd.when(i < n):`",
        )


def _counted_here(push: JaxprEqn) -> list[JaxprEqn]:
    """Returns a push in a loop of one thread, or between loops."""

    def place(total: jax.Array) -> jax.Array:
        place = markers.load_p.bind(total, slices=())
        markers.check_p.bind(lax.lt(place, np.int32(push.params["capacity"])), message=too_many(push))
        markers.store_p.bind(total, lax.add(place, np.int32(1)), slices=())
        return place

    eqns, (made,) = equations(push, place, target_of(push))
    return [giving(e, made, push) for e in eqns]


def _inside(eqn: JaxprEqn) -> UnsupportedError:
    loc = next((eqn_loc(e) for e in compat.all_eqns([eqn]) if e.primitive is markers.push_p), None)
    return UnsupportedError(
        f"a push cannot stand in `{eqn.primitive.name}`",
        loc=loc,
        help="write the loop or condition around it with qd.range, qd.while_ or qd.when",
    )
