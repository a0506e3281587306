"""Reads from the traced form of a function which of its loops compute something of one argument.

What depends on the argument, by data or by a decision, is *active*. The rest is known: it may be evaluated before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax.lax import while_p

from qdtrace.errors import GradientError, Loc
from qdtrace.frozen import frozen
from qdtrace.sparse.jumps import without_jumps
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.forwarding import is_control
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.structure import static_bounds
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import body_of, bounds_of, inner_equations, loc_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.trace.compat import JaxprEqn, Var
    from qdtrace.trace.tree import Root

MOST = 256
"""Most entries that one iteration may load, and most iterations of a loop that is written out."""
_WRITES = {markers.store_p, markers.accum_p, markers.lset_p}
_LIST = "make the list of what meets before, and pass it as an argument"
_ADD = "accumulate by `b[i] += v`"
_PARALLEL = "put what is behind it under `qd.when`: iterations of an outermost loop are terms side by side"
_REFUSED = {
    markers.atomic_p: ("an atomic with its old value", _ADD),
    markers.assign_p: ("`b[...] = v`", "store elements in a loop: `b[i] = v`"),
    markers.update_p: ("`b[i] = b[i] + v`", _ADD),
    markers.accum_along_p: ("an accumulation by max, min or mul", _ADD),
    markers.break_p: ("a qd.break_if of an outermost loop", _PARALLEL),
    markers.while_p: ("qd.while_", "make it `for k in qd.range(n):` of constant length, with `qd.when` in it"),
}
"""Markers that no term may have, as a user writes them, and what to write instead."""
_READS = {markers.load_p, markers.reach_p, markers.check_p, markers.local_p, markers.lget_p}
_TAKEN = _WRITES | _READS | {markers.for_p, markers.when_p}


def refusal(what: str, loc: Loc | None, help: str = "") -> GradientError:
    """Returns the error for a program whose pattern cannot be read."""
    return GradientError(f"a pattern needs terms that can be read from loops, got {what}", loc=loc, help=help)


@frozen(eq=False)
class Reading:
    """A function as it was read."""

    root: Root
    maker: JaxprEqn
    """The equation that makes the argument's buffer."""
    handle: Var
    """The buffer of the argument."""
    active: frozenset[Var]
    loops: tuple[JaxprEqn, ...]
    """Outermost loops that compute something of the argument."""
    outputs: tuple[Var, ...]
    """Buffers that they write."""

    @property
    def known(self) -> list[JaxprEqn]:
        """Equations around the loops that do not depend on the argument."""
        return [e for e in self.root.items if self.active.isdisjoint(e.outvars) and e.primitive not in markers.REGIONS]

    @property
    def behind(self) -> list[JaxprEqn]:
        """Equations of what the loops have computed."""
        items = (e for e in self.root.items if e.primitive not in markers.REGIONS and e.primitive not in markers.MAKERS)
        return [e for e in items if not self.active.isdisjoint(e.outvars)]


def read(function: Callable[..., Any], avals: Sequence[Any], argnum: int, name: str) -> Reading:
    """Traces a function and finds its loops.

    Raises:
        GradientError: the argument is used in a way that no pattern can be read from.
    """
    root = trace_function(function, avals, name=name, inlines=True).root
    root.items = without_jumps(root.items)
    if len(root.results) != 1:
        raise refusal(f"a function of {len(root.results)} results", None, "return one scalar, or one array")
    first = len(jax.tree.leaves(tuple(avals[:argnum])))
    param = root.params[first]
    makers = [e for e in root.items if e.primitive is markers.buffer_p and e.invars[0] is param]
    used = [e for e in root.items if param in e.invars and e not in makers]
    if len(makers) != 1 or used:
        help = "load it in a loop: `x[i]`"
        raise refusal("an argument that no loop loads from", loc_of(used[0]) if used else None, help)
    handle: Any = makers[0].outvars[0]
    active = _Spread({handle}, handle)
    active.through(root.items, decided=False)
    loops = tuple(e for e in root.items if e.primitive is markers.for_p and active.touches(e))
    made = [e.outvars[0] for e in root.items if e.primitive in markers.MAKERS]
    outputs = tuple(v for v in made if v in active.found and v is not handle)
    found = Reading(root, makers[0], handle, frozenset(active.found), loops, outputs)
    _check(found)
    return found


class _Spread:
    """The variables that depend on some."""

    def __init__(self, found: set[Any], handle: Any) -> None:
        self.found = found
        self.handle = handle

    def depends(self, atoms: Sequence[Any]) -> bool:
        return any(not isinstance(a, Literal) and a in self.found for a in atoms)

    def touches(self, region: JaxprEqn) -> bool:
        return self.depends(region.invars)

    def through(self, items: Sequence[JaxprEqn], *, decided: bool) -> None:
        """Spreads along items; `decided`: whether they run is active."""
        for eqn in items:
            if eqn.primitive in markers.REGIONS:
                self._region(eqn, decided)
            elif eqn.primitive in _WRITES:
                if decided or self.depends(eqn.invars[1:]):
                    self.found.add(eqn.invars[0])
            elif self.depends(eqn.invars):
                self.found.update(eqn.outvars)

    def _region(self, region: JaxprEqn, decided: bool) -> None:
        bounds = bounds_of(region)
        if region.primitive is markers.for_p and self.depends(bounds):
            raise refusal("a loop whose bounds depend on the argument", loc_of(region), _LIST)
        decided = decided or self.depends(bounds)
        count = -1
        while count != len(self.found):  # what a cell keeps for the next iteration
            count = len(self.found)
            self.through(inner_equations(region), decided=decided)


def _check(found: Reading) -> None:
    """Refuses what no pattern can be read from."""
    regions = [e for e in found.root.items if e.primitive in markers.REGIONS]
    for eqn in found.root.items:
        active = any(not isinstance(a, Literal) and a in found.active for a in eqn.invars)
        if active and eqn.primitive in _REFUSED:
            raise refusal(*_refused(eqn))
        if active and (eqn.primitive in _WRITES or eqn.primitive is markers.when_p):
            raise refusal("a store or a condition outside of loops", loc_of(eqn), "put it in a loop")
        if found.handle in eqn.invars and eqn.primitive not in markers.REGIONS:
            raise refusal("a use of the argument outside of loops", loc_of(eqn), "load it in a loop: `x[i]`")
    for region in regions:
        if region not in found.loops:
            raise refusal(
                "a loop that computes nothing of the argument", loc_of(region),
                "put it into a function of its own, and pass its result as an argument",
            )  # fmt: skip
    order = [e for e in found.root.items if e in found.loops or any(a in found.outputs for a in e.invars)]
    read_before: list[Any] = []
    for eqn in order:
        if eqn in found.loops and any(a is v for a in eqn.invars for v in read_before):
            raise refusal("a loop behind a use of what it accumulates into", loc_of(eqn), "use it behind all loops")
        if eqn not in found.loops:
            read_before.append(eqn.invars[0])
    for region in found.loops:
        _check_body(body_of(region).eqns, found)


def _check_body(items: Sequence[JaxprEqn], found: Reading) -> None:
    for eqn in items:
        if eqn.primitive in markers.MARKERS - _TAKEN:
            raise refusal(*_refused(eqn))
        atoms = [a for a in eqn.invars if not isinstance(a, Literal)]
        if eqn.primitive in markers.READS and eqn.invars[0] in found.outputs:
            help = "compute it again in this loop: a term is a function of what its own iteration loads"
            raise refusal("a loop that reads what loops compute of the argument", loc_of(eqn), help)
        if eqn.primitive in _WRITES and eqn.invars[0] is found.handle:
            raise refusal("a store into the argument", loc_of(eqn), "keep it in a cell: `qd.local`")
        if eqn.primitive in markers.BUFFER_ACCESSES and any(a in found.active for a in atoms[_data(eqn) :]):
            raise refusal("an index that depends on the argument", loc_of(eqn), _LIST)
        if eqn.primitive is markers.accum_p and eqn.params["op"] != "add":
            raise refusal(f"an accumulation by {eqn.params['op']}", loc_of(eqn), _ADD)
        if is_control(eqn) and compat.has_markers(eqn.effects) and any(a in found.active for a in atoms):
            help = "load before, and give it the values"
            raise refusal("control flow of `lax` that loads from the argument", eqn_loc(eqn), help)
        inner = [eqn, *compat.all_eqns([eqn])] if any(a in found.active for a in atoms) else ()
        if eqn.primitive not in markers.REGIONS and any(e.primitive is while_p for e in inner):
            raise refusal(
                "a `lax` loop of unknown length that depends on the argument", eqn_loc(eqn),
                "use `lax.fori_loop` with constant bounds, or `lax.scan`",
            )  # fmt: skip
        if eqn.primitive in markers.REGIONS:
            _check_trips(eqn)
            _check_body(body_of(eqn).eqns, found)


def _refused(eqn: JaxprEqn) -> tuple[str, Loc | None, str]:
    other = f"`{eqn.primitive.name}`", "compute it before, and pass it as an argument"
    what, help = _REFUSED.get(eqn.primitive, other)
    return what, loc_of(eqn), help


def _check_trips(region: JaxprEqn) -> None:
    if region.primitive is not markers.for_p:
        return
    trips = static_bounds(region)
    if trips is None or len(trips) > MOST:
        got = "unknown length" if trips is None else f"{len(trips)} iterations"
        help = f"give it constant bounds of at most {MOST} iterations, or loop over a list of pairs that is an argument"
        raise refusal(f"an inner loop of {got}", loc_of(region), help)


def _data(eqn: JaxprEqn) -> int:
    """Returns how many of an access's operands are no indices."""
    return sum(not isinstance(a, Literal) for a in eqn.invars[: 1 if eqn.primitive is markers.load_p else 2])


def type_of(atom: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of an atom."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
