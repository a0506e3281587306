"""`qd.make_graph`: the graph of a function as it was traced."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec

from qdtrace.api import Jitted, jit

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.compose.staged_program import StagedProgram

P = ParamSpec("P")


def make_graph(f: Callable[P, Any]) -> Callable[P, Graph]:
    """`make_graph(f)(*args)` gives the traced graph of `f`, before any pass; it prints as text."""
    function: Any = f
    if not isinstance(function, Jitted):
        function = jit(f)

    @functools.wraps(f)
    def traced(*args: P.args, **kwargs: P.kwargs) -> Graph:
        return Graph(function.lower(*args, **kwargs).programs)

    return traced


class Graph:
    """The programs of a traced function, in order."""

    def __init__(self, staged: list[StagedProgram]) -> None:
        self.programs = [s.program for s in staged]
        self._text = "\n".join(s.text for s in staged)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__
