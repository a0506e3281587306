"""The region tree, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import JaxprEqn, Var

NAMES = {"for": "qd.range", "while": "qd.while_", "when": "qd.when", "root": "function"}
"""User-visible name of each kind of region."""


@dataclass(eq=False)
class Region:
    """A body: of the function (`root`), of a loop (`for`, `while`) or of a condition (`when`).

    `eqn` is the begin marker: its operands are the bounds or the predicate, its result is the loop index.
    """

    kind: str
    eqn: JaxprEqn | None = None
    parent: Region | None = None
    items: list[JaxprEqn | Region] = field(default_factory=list)
    test: tuple[int, Any] | None = None
    """Condition of a `while`: (n, atom); the first n items compute the atom."""
    loc: Loc | None = None
    hints: dict[str, Any] = field(default_factory=dict)
    params: tuple[Var, ...] = ()
    """Variables of the arguments; of a root only."""
    constants: dict[Var, Any] = field(default_factory=dict)
    """Variables of captured arrays, with their values; of a root only."""
    results: tuple[Any, ...] = ()
    """Atoms that are returned; of a root only."""
    is_function: bool = False
    """True if the root is the traced function, not a jaxpr inside of `lax` control flow."""


def equations_in(items: Iterable[Any]) -> Iterator[JaxprEqn]:
    """Yields all equations of items in order, begin markers of regions included."""
    for item in items:
        if isinstance(item, Region):
            if item.eqn is not None:
                yield item.eqn
            yield from equations_in(item.items)
        else:
            yield item


def is_parallel(region: Region) -> bool:
    """Returns whether the iterations of a range are threads: it is in no other range and not made serial."""
    if region.kind != "for" or region.hints.get("serial", False):
        return False
    outer = region.parent
    while outer is not None and outer.parent is not None:
        if outer.kind == "for":
            return False
        outer = outer.parent
    return outer is not None and outer.is_function


def has_arrays(region: Region) -> bool:
    """Returns whether whole-array operations may stand: outside of every `qd.range`."""
    while region.kind in ("while", "when") and region.parent is not None:
        region = region.parent
    return region.kind == "root"


def deepest_region(root: Region) -> Loc | None:
    """Returns the line of the region that is nested the most."""
    found, most = root.loc, 0
    work = [(root, 0)]
    while work:
        region, depth = work.pop()
        if depth > most:
            found, most = region.loc, depth
        work += [(item, depth + 1) for item in region.items if isinstance(item, Region)]
    return found


def shown(eqn: JaxprEqn) -> str:
    """Returns the name of the operation, in messages."""
    name = eqn.primitive.name
    return f"qd.{name[3:]}" if name.startswith("qd_") else name
