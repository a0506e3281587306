"""Regions that nest deeper than Python's recursion limit lets them be walked."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from qdtrace.trace.markers import REGIONS
from qdtrace.trace.tree import inner_equations, loc_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import JaxprEqn


class TooDeepError(RecursionError):
    """Regions nest too deep; `loc` is the user's most deeply nested line."""

    def __init__(self, loc: Loc | None) -> None:
        super().__init__("regions nest too deep")
        self.loc = loc


@contextlib.contextmanager
def deepest_named(items: Sequence[JaxprEqn]) -> Generator[None]:
    """Gives a RecursionError the line of the region that is nested the most."""
    try:
        yield
    except RecursionError as error:
        raise TooDeepError(deepest_region(items)) from error


def deepest_region(items: Iterable[JaxprEqn]) -> Loc | None:
    """Returns the line of the region that is nested the most."""
    found = None
    while regions := [item for item in items if item.primitive in REGIONS]:
        found = loc_of(regions[0])
        items = [inner for region in regions for inner in inner_equations(region)]
    return found
