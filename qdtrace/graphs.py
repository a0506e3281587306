"""`qd.make_graph`: the graph of a function as it was traced."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec

from qdtrace.api import Jitted, jit
from qdtrace.errors import boundary

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.compose.staged_program import StagedProgram

P = ParamSpec("P")


@boundary
def make_graph(f: Callable[P, Any]) -> Callable[P, Graph]:
    """`make_graph(f)(*args)` returns the traced graph of `f`, before any pass; it prints as text.

    >>> def double(x):
    ...     for i in qd.range(x.shape[0]):
    ...         x[i] = 2 * x[i]
    ...     return x
    >>> print(qd.make_graph(double)(jnp.zeros(3)))
    program double(x: ref[f32,3])
      range_for i in 0:i32 : 3:i32 @"double.0"
        v0: f32 = load x i
        v1: f32 = mul v0 2.0:f32
        store x v1 i
      return x

    Args:
        f: a function, or what `qd.jit` made of one.

    Raises:
        QdError: from the call, for every rule that the function breaks.
    """
    function: Any = f
    if not isinstance(function, Jitted):
        function = jit(f)

    @boundary
    @functools.wraps(f)
    def traced(*args: P.args, **kwargs: P.kwargs) -> Graph:
        return Graph(function.lower(*args, **kwargs).programs)

    return traced


class Graph:
    """The programs of a traced function, in order, as `make_graph` returns them.

    >>> graph = qd.make_graph(lambda x: x)(jnp.zeros(3))
    >>> graph.programs
    []
    """

    def __init__(self, staged: list[StagedProgram]) -> None:
        self.programs = [s.program for s in staged]
        self._text = "\n".join(s.printed() for s in staged)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__
