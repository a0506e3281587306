"""The tasks of a parallel loop that pushes (docs/design/0063-append.md).

    for i in range(n): when c(i): k = push a          for i in range(n): when c(i): counts[i] += 1
                                              ->      for i in range(n): offsets and the total, in one thread
                                                      for i in range(n): check total <= capacity
                                                                         p = offsets[i]; when c(i): k = p; p = p + 1

The places are those of a serial loop, whatever the threads do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import lax

from qdtrace.frozen import frozen
from qdtrace.trace import compat, markers
from qdtrace.trace.context import new_uid
from qdtrace.trace.pushes.decisions import Decisions
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.structure import closed_over, region_of, with_bodies
from qdtrace.trace.tree import body_of, bounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from qdtrace.trace.compat import JaxprEqn, Var

_ROW: markers.Slices = (None,)


def equations(like: JaxprEqn, function: Callable[..., object], *operands: Var) -> tuple[list[JaxprEqn], list[Var]]:
    """Returns the equations of a function of operands, at the line of another equation, and its results."""
    jaxpr = compat.open_jaxpr(jax.make_jaxpr(function)(*(v.aval for v in operands)))
    names = dict(zip(jaxpr.invars, operands, strict=True))
    eqns = [e.replace(invars=compat.named(e.invars, names), source_info=like.source_info) for e in jaxpr.eqns]
    return eqns, compat.named(jaxpr.outvars, names)


def giving(eqn: JaxprEqn, place: Var, push: JaxprEqn) -> JaxprEqn:
    """Returns an equation with the variable of a push for that of its place."""
    names = {place: push.outvars[0]}
    return eqn.replace(invars=compat.named(eqn.invars, names), outvars=compat.named(eqn.outvars, names))


def target_of(push: JaxprEqn) -> Var:
    """Returns the buffer of the number of elements that a push adds one to."""
    target: Any = push.invars[0]
    return target


def too_many(push: JaxprEqn) -> str:
    """Returns the message of the check that there is room."""
    name, capacity = push.params["called"], push.params["capacity"]
    return f"more elements are pushed than `{name}` = qd.append({capacity}, ...) has room for"


@frozen
class Trips:
    """The iterations of a parallel loop."""

    start: int
    step: int
    most: int
    stop: Var | None = None
    """The number of iterations, if that is a variable; else it is `most`."""

    def number(self, index: jax.Array) -> jax.Array:
        """Returns the number of an iteration, given its index."""
        if (self.start, self.step) == (0, 1):
            return index
        return lax.div(lax.sub(index, index.dtype.type(self.start)), index.dtype.type(self.step))


class LoopOfPushes:
    """A parallel loop that pushes; `pushes` are the first one for each number of elements."""

    def __init__(self, loop: JaxprEqn, trips: Trips, pushes: dict[Var, JaxprEqn]) -> None:
        self.loop, self.trips, self.pushes = loop, trips, pushes
        self.body = body_of(loop)
        self.decisions = Decisions(self.body.eqns)
        self.made: list[JaxprEqn] = []
        """The allocations of `counts`."""
        self.counts: dict[Var, Var] = {}
        """Buffers of counts, then of offsets, of iterations, one for each number of elements."""
        for target, push in pushes.items():
            eqns, (self.counts[target],) = equations(push, self._allocated)
            self.made += eqns

    def _allocated(self) -> jax.Array:
        shape = (max(self.trips.most, 1),)
        return markers.alloc_p.bind(shape=shape, dtype=np.dtype(np.int32), uid=new_uid(), called="pushes")

    def counting(self) -> JaxprEqn:
        """Returns the loop that counts the pushes of each iteration."""
        index = compat.new_var(self.body.invars[0])

        def begin(index: jax.Array, *buffers: jax.Array) -> jax.Array:
            number = self.trips.number(index)
            for buffer in buffers:
                markers.store_p.bind(buffer, np.int32(0), number, slices=_ROW)
            return number

        def one(buffer: jax.Array, number: jax.Array) -> None:
            markers.accum_p.bind(buffer, np.int32(1), number, slices=_ROW, op="add")

        def counted(push: JaxprEqn) -> list[JaxprEqn]:
            return equations(push, one, self.counts[target_of(push)], number)[0]

        eqns, (number,) = equations(self.loop, begin, index, *self.counts.values())
        eqns += self.decisions.copy(self.body.eqns, {self.body.invars[0]: index}, counted)
        hints = tuple((k, v) for k, v in self.loop.params["hints"] if k != "name")
        loop = self.loop.replace(params={**self.loop.params, "hints": hints, "uid": new_uid()})
        return region_of(loop, bounds_of(loop), (closed_over(eqns, [index]),))

    def scanning(self) -> JaxprEqn:
        """Returns the loop of one thread that makes offsets of the counts, and adds them to the number of elements."""
        push, stop = next(iter(self.pushes.values())), self.trips.stop
        dtype = np.dtype(np.int32) if stop is None else stop.aval.dtype

        def begin(*stops: jax.Array) -> jax.Array:
            (stop,) = stops or (dtype.type(self.trips.most),)
            params = {"uid": new_uid(), "loc": eqn_loc(push), "hints": (("serial", True),)}
            return markers.loop_begin_p.bind(dtype.type(0), stop, dtype.type(1), **params)

        def offsets(number: jax.Array, *handles: jax.Array) -> None:
            half = len(handles) // 2
            for total, buffer in zip(handles[:half], handles[half:], strict=True):
                before = markers.load_p.bind(total, slices=())
                pushed = markers.load_p.bind(buffer, number, slices=_ROW)
                markers.store_p.bind(buffer, before, number, slices=_ROW)
                markers.accum_p.bind(total, pushed, slices=(), op="add")

        (loop,), (index,) = equations(push, begin, *(() if stop is None else (stop,)))
        eqns, _ = equations(push, offsets, index, *self.counts, *self.counts.values())
        return region_of(loop, loop.invars, (closed_over(eqns, [index]),), bounds=3, own=1)

    def storing(self) -> JaxprEqn:
        """Returns the loop itself, whose pushes count from the offsets of their iteration."""
        begins: list[JaxprEqn] = []
        cells: dict[Var, Var] = {}
        loops = [e for e in compat.all_eqns(self.body.eqns) if e.primitive in (markers.for_p, markers.while_p)]
        repeated = {target_of(e) for e in compat.all_eqns(loops) if e.primitive is markers.push_p}
        for target, push in self.pushes.items():
            check_sum = target in repeated

            def begin(*operands: jax.Array, push: JaxprEqn = push, check_sum: bool = check_sum) -> jax.Array:
                total, buffer, index = operands
                fits = lax.le(markers.load_p.bind(total, slices=()), np.int32(push.params["capacity"]))
                markers.check_p.bind(fits, message=too_many(push))
                offset = markers.load_p.bind(buffer, self.trips.number(index), slices=_ROW)
                if check_sum:  # the sum of counts may have left its dtype, and come back
                    markers.check_p.bind(lax.ge(offset, np.int32(0)), message="a loop pushes more than 2**31 - 1 times")
                made = {"uid": new_uid(), "dtype": np.dtype(np.int32), "called": "place"}
                return markers.local_p.bind(offset, **made)

            eqns, (cells[target],) = equations(push, begin, target, self.counts[target], self.body.invars[0])
            begins += eqns

        def placed(eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
            out: list[JaxprEqn] = []
            for eqn in eqns:
                if eqn.primitive is markers.push_p:
                    made, (place,) = equations(eqn, _next, cells[target_of(eqn)])
                    out += [giving(e, place, eqn) for e in made]
                else:
                    out.append(with_bodies(eqn, placed))
            return out

        body = closed_over([*begins, *placed(self.body.eqns)], self.body.invars[:1])
        return region_of(self.loop, bounds_of(self.loop), (body,))


def _next(cell: jax.Array) -> jax.Array:
    place = markers.lget_p.bind(cell, slices=())
    markers.lset_p.bind(cell, lax.add(place, np.int32(1)), slices=())
    return place
