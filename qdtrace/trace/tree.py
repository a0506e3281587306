"""Regions: equations of a loop or a condition that own the jaxpr of their body (docs/design/0054-structured-jaxpr.md).

    loop_begin 0 n 1; ...; loop_end      becomes      for 0 n 1, a, b [jaxprs=({ lambda ; i a b. let ... in () },)]

The operands of a region are its bounds or its predicate, then what its body takes from outside. A body calls that by
the same variables, so that a variable has one name in all of a function. A `while` has the jaxpr of its condition, too.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.frozen import mutable
from qdtrace.trace.markers import REGIONS
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from jax.typing import ArrayLike

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import Jaxpr, JaxprEqn, Var
    from qdtrace.trace.jaxprs import Atom, Params


@mutable(eq=False)
class Root:
    """The equations of a function, or of a jaxpr inside of `lax` control flow."""

    params: tuple[Var, ...]
    """Variables of the arguments."""
    items: Sequence[JaxprEqn] = ()
    results: tuple[Atom, ...] = ()
    """Atoms that are returned."""
    constants: dict[Var, ArrayLike] = field(default_factory=dict["Var", "ArrayLike"])
    """Variables of captured arrays, with their values."""
    is_exact: bool = False  # if two tasks have to compute the same bits: `fast_math` is off


def bounds_of(region: JaxprEqn) -> list[Atom]:
    """Returns the bounds of a loop, or the predicate of a condition."""
    return list(region.invars[: region.params["bounds"]])


def body_of(region: JaxprEqn) -> Jaxpr:
    """Returns the jaxpr of the body; of a `for` its first input is the index."""
    return region.params["jaxprs"][0]


def captured(params: Params) -> list[Var]:
    """Returns what condition and body of a region take from outside, as they call it."""
    return list(dict.fromkeys(v for jaxpr in reversed(params["jaxprs"]) for v in jaxpr.invars[params["own"] :]))


def inner_equations(region: JaxprEqn) -> list[JaxprEqn]:
    """Returns the equations of condition and body."""
    return [eqn for jaxpr in reversed(region.params["jaxprs"]) for eqn in jaxpr.eqns]


def hints_of(region: JaxprEqn) -> dict[str, Any]:
    """Returns the keyword arguments of a loop."""
    return dict(region.params.get("hints", ()))


def loc_of(item: JaxprEqn) -> Loc | None:
    """Returns the line of an equation or a region."""
    return item.params["loc"] if item.primitive in REGIONS else eqn_loc(item)


def equations_in(items: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Yields all equations of items in order, those of regions after the regions."""
    for item in items:
        yield item
        if item.primitive in REGIONS:
            yield from equations_in(inner_equations(item))
