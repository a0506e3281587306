"""Builds regions (`tree`): of a body that is being read, and from a region with other equations or other operands."""

from __future__ import annotations

import operator
from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.frozen import mutable
from qdtrace.trace import compat
from qdtrace.trace.compat import named
from qdtrace.trace.markers import BEGINS, REGIONS
from qdtrace.trace.tree import bounds_of, captured, hints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import Jaxpr, JaxprEqn, Var
    from qdtrace.trace.jaxprs import Atom

NAMES = {"for": "qd.range", "while": "qd.while_", "when": "qd.when", "root": "function"}
"""User-visible name of each kind of region."""


@mutable(eq=False)
class OpenBody:
    """A body that is still read: of a region, or of the function itself, whose kind is `root`."""

    kind: str
    eqn: JaxprEqn | None = None
    """The begin marker: its operands are the bounds or the predicate, its result is the loop index."""
    parent: OpenBody | None = None
    is_function: bool = False
    """True if the root is the traced function, not a jaxpr inside of `lax` control flow."""
    items: list[JaxprEqn] = field(default_factory=list["JaxprEqn"])
    tests: list[Jaxpr] = field(default_factory=list["Jaxpr"])
    """The jaxpr of the condition of a `while`."""

    @property
    def loc(self) -> Loc | None:
        """The line of the loop or condition."""
        return None if self.eqn is None else self.eqn.params["loc"]

    def outward(self) -> Iterator[OpenBody]:
        """Yields this body and those around it, the function's or the jaxpr's own as the last."""
        body: OpenBody | None = self
        while body is not None:
            yield body
            body = body.parent

    def closed(self) -> JaxprEqn:
        """Returns the equation of the region."""
        eqn = self.eqn
        assert eqn is not None
        jaxprs = closed_over(self.items, eqn.outvars), *self.tests
        return region_of(eqn, eqn.invars, jaxprs, bounds=len(eqn.invars), own=len(eqn.outvars))


def static_bounds(loop: JaxprEqn) -> range | None:
    """Returns the indices of a `for` whose bounds are constants, else None."""
    bounds = bounds_of(loop)
    known = [int(b.val) for b in bounds if isinstance(b, compat.Literal)]
    return range(*known) if len(known) == len(bounds) else None


def closed_over(eqns: Sequence[JaxprEqn], own: Sequence[Var] = (), results: Sequence[Atom] = ()) -> Jaxpr:
    """Returns a jaxpr that takes `own`, then all variables that the equations read and do not bind, in order."""
    bound, free = set(own), dict["Var", None]()
    for eqn in eqns:
        for v in eqn.invars:  # a loop: it is run for each equation of a trace
            if v.__class__ is not compat.Literal and v not in bound:
                free[v] = None  # type: ignore[index]
        bound.update(eqn.outvars)
    free.update((v, None) for v in results if not isinstance(v, compat.Literal) and v not in bound)
    return compat.jaxpr_of(eqns, [*own, *free], results)


def region_of(like: JaxprEqn, first: Sequence[Atom], jaxprs: tuple[Jaxpr, ...], **params: object) -> JaxprEqn:
    """Returns a region, made of another one or of a begin marker, on operands of the same names as in its jaxprs."""
    params = {**like.params, **params, "jaxprs": jaxprs}
    effects = frozenset({compat.QD}).union(*(jaxpr.effects for jaxpr in jaxprs))
    primitive, operands = BEGINS.get(like.primitive, like.primitive), [*first, *captured(params)]
    return like.replace(primitive=primitive, invars=operands, outvars=[], params=params, effects=effects)


def with_bodies(
    item: JaxprEqn, change: Callable[[Sequence[JaxprEqn]], Sequence[JaxprEqn]], names: Mapping[Any, Any] | None = None
) -> JaxprEqn:
    """Returns a region with the equations of its body, then those of its condition, changed; other equations as they
    are. `names` are new ones for the result of the condition."""
    if item.primitive not in REGIONS:
        return item

    def changed(jaxpr: Jaxpr) -> Jaxpr:
        eqns, results = change(jaxpr.eqns), named(jaxpr.outvars, names or {})
        same = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, (*eqns, *results), (*jaxpr.eqns, *jaxpr.outvars)))
        return jaxpr if same else closed_over(eqns, jaxpr.invars[: item.params["own"]], results)

    jaxprs = tuple(map(changed, item.params["jaxprs"]))
    same = all(map(operator.is_, jaxprs, item.params["jaxprs"]))
    return item if same else region_of(item, bounds_of(item), jaxprs)


def on_operands(eqn: JaxprEqn, names: Mapping[Any, Any]) -> JaxprEqn:
    """Returns an equation that reads what `names` gives in the place of a variable, which bodies call so, too."""
    operands = named(eqn.invars, names)
    if eqn.primitive not in REGIONS:
        return eqn if all(map(operator.is_, operands, eqn.invars)) else eqn.replace(invars=operands)
    count = eqn.params["bounds"]
    inside = dict(zip(captured(eqn.params), operands[count:], strict=True))
    made = with_bodies(eqn, lambda eqns: [on_operands(e, inside) for e in eqns], inside)
    return region_of(made, operands[:count], made.params["jaxprs"])


def is_parallel(region: OpenBody) -> bool:
    """Returns whether the iterations of a range are threads: it is in no other range and not made serial."""
    if region.kind != "for" or region.eqn is None or hints_of(region.eqn).get("serial", False):
        return False
    _, *outer = region.outward()
    return outer[-1].is_function and all(body.kind != "for" for body in outer)


def has_arrays(region: OpenBody) -> bool:
    """Returns whether whole-array operations may stand: outside of every `qd.range`."""
    return all(body.kind != "for" for body in region.outward())


def shown(eqn: JaxprEqn) -> str:
    """Returns the name of the operation, in messages."""
    name = eqn.primitive.name
    return f"qd.{name[3:]}" if name.startswith("qd_") else name
