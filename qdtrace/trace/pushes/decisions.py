"""The part of a parallel loop that decides how often it pushes: control flow and the values that it depends on.

Found backward from the pushes, to a fixed point: cells feed loops back. It is a copy of the body without stores,
checks and callbacks, so it may run in front of the loop. That is right only where nothing in it depends on what the
loop itself stores, or on the places that it is given: such loops are refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.errors import Loc, UnsupportedError
from qdtrace.trace import compat, markers
from qdtrace.trace.context import new_uid
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.structure import closed_over, region_of
from qdtrace.trace.tree import body_of, bounds_of, equations_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qdtrace.trace.compat import Jaxpr, JaxprEqn, Var

_STORES = {markers.store_p, markers.accum_p, markers.accum_along_p, markers.assign_p, markers.atomic_p}
_SERIAL = "or run the loop in one thread, where pushes happen in order: `qd.range(n, serial=True)`"


class Decisions:
    """The equations of an iteration that decide its pushes."""

    def __init__(self, items: Sequence[JaxprEqn]) -> None:
        self._needed: set[Var] = set()
        self._kept: set[int] = set()
        count = -1
        while count != (count := len(self._kept) + len(self._needed)):
            self._visit(items, True)
        self.is_inexact = any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in self._needed)
        """True if floats decide: then a rounding may."""
        self._check(items)

    def _visit(self, items: Sequence[JaxprEqn], in_kept_loop: bool) -> bool:
        """Notes what is needed of items; returns whether something is."""
        found = [self._visit_one(eqn, in_kept_loop) for eqn in reversed(items)]
        return any(found)

    def _visit_one(self, eqn: JaxprEqn, in_kept_loop: bool) -> bool:
        primitive = eqn.primitive
        if primitive in markers.REGIONS:
            is_kept, is_loop = id(eqn) in self._kept, primitive is not markers.when_p
            for jaxpr in eqn.params["jaxprs"]:
                is_kept |= self._visit(jaxpr.eqns, is_kept if is_loop else in_kept_loop)
            reads = [*bounds_of(eqn), *(v for jaxpr in eqn.params["jaxprs"] for v in jaxpr.outvars)]
        else:
            if primitive in (markers.break_p, markers.continue_p):
                is_kept = in_kept_loop
            elif primitive is markers.lset_p:
                is_kept = eqn.invars[0] in self._needed
            elif primitive in markers.MARKERS:
                is_kept = primitive is markers.push_p or any(v in self._needed for v in eqn.outvars)
            else:
                changed = eqn.invars if _holds(eqn, {markers.lset_p}) else ()
                is_kept = any(not isinstance(v, compat.Literal) and v in self._needed for v in (*changed, *eqn.outvars))
            reads = [] if primitive is markers.push_p else eqn.invars
        if is_kept:
            self._kept.add(id(eqn))
            self._needed.update(v for v in reads if not isinstance(v, compat.Literal))
        return is_kept

    def _check(self, items: Sequence[JaxprEqn]) -> None:
        """Refuses a loop whose decisions depend on what it does."""
        eqns = list(equations_in(items))
        pushed = {e.invars[0] for e in eqns if e.primitive is markers.push_p}
        written: dict[Var, JaxprEqn] = {}
        for eqn in filter(_writes, eqns):
            buffers = eqn.invars[:1] if eqn.primitive in _STORES else eqn.invars
            written.update((v, eqn) for v in buffers if not isinstance(v, compat.Literal))
        for eqn in eqns:
            reads = eqn.primitive in (markers.load_p, markers.read_p, markers.reach_p)
            if reads and eqn.invars[0] in pushed:
                raise UnsupportedError(
                    "a parallel loop that pushes cannot read the count: it is known behind the loop",
                    loc=eqn_loc(eqn),
                    help=f"read it behind the loop, {_SERIAL}",
                )
            if id(eqn) not in self._kept or eqn.primitive in markers.REGIONS:
                continue
            if eqn.primitive is markers.push_p:
                if eqn.outvars[0] in self._needed:
                    raise _depends("the place that a push gives", eqn_loc(eqn))
            elif eqn.primitive is markers.atomic_p:
                raise _depends("the old value of an atomic", eqn_loc(eqn))
            elif reads and eqn.invars[0] in written:
                raise _depends(
                    "a buffer that the loop changes",
                    eqn_loc(eqn),
                    f"it is changed at {eqn_loc(written[eqn.invars[0]])}",
                )
            elif eqn.primitive not in markers.MARKERS and (eqn.effects - {compat.QD} or _writes(eqn)):
                raise _depends(f"`{eqn.primitive.name}`, which does more than compute a value", eqn_loc(eqn))

    def copy(
        self, items: Iterable[JaxprEqn], names: dict[Var, Var], push: Callable[[JaxprEqn], Sequence[JaxprEqn]]
    ) -> list[JaxprEqn]:
        """Returns what is needed of items, with variables of its own; `push` gives what stands for a push."""
        made: list[JaxprEqn] = []
        for eqn in items:
            if id(eqn) not in self._kept:
                continue
            if eqn.primitive is markers.push_p:
                made += push(eqn)
            elif eqn.primitive in markers.REGIONS:
                made.append(self._region(eqn, names, push))
            else:
                outs = [compat.new_var(v) for v in eqn.outvars]
                invars = compat.named(eqn.invars, names)
                names.update(zip(eqn.outvars, outs, strict=True))
                made.append(eqn.replace(invars=invars, outvars=outs, params=_renumbered(eqn.params)))
        return made

    def _region(self, eqn: JaxprEqn, names: dict[Var, Var], push: Callable[[JaxprEqn], Sequence[JaxprEqn]]) -> JaxprEqn:
        first, jaxprs = compat.named(bounds_of(eqn), names), list["Jaxpr"]()
        own = body_of(eqn).invars[: eqn.params["own"]]
        names.update((v, compat.new_var(v)) for v in own)
        for jaxpr in reversed(eqn.params["jaxprs"]):  # the condition of a `while` is before its body
            eqns = self.copy(jaxpr.eqns, names, push)
            jaxprs.append(closed_over(eqns, compat.named(own, names), compat.named(jaxpr.outvars, names)))
        return region_of(eqn.replace(params=_renumbered(eqn.params)), first, tuple(reversed(jaxprs)))


def _renumbered(params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "uid": new_uid()} if "uid" in params else params


def _writes(eqn: JaxprEqn) -> bool:
    """Returns whether an equation changes a buffer; of `lax` control flow, whether one inside may."""
    return eqn.primitive in _STORES if eqn.primitive in markers.MARKERS else _holds(eqn, _STORES)


def _holds(eqn: JaxprEqn, primitives: set[compat.Primitive]) -> bool:
    """Returns whether one of these markers stands in control flow of `lax`."""
    return compat.has_markers(eqn.effects) and any(e.primitive in primitives for e in compat.all_eqns([eqn]))


def _depends(what: str, loc: Loc | None, *notes: str) -> UnsupportedError:
    return UnsupportedError(
        f"whether a parallel loop pushes needs to be known before it runs, but depends on {what}",
        loc=loc,
        notes=notes,
        help=f"compute it in a loop of its own in front, {_SERIAL}",
    )
