"""Loops of Python that store element by element outside of every `qd.range`: each iteration is traced and compiled.

Numba and Taichi run such a loop in parallel. Here it is right, but one thread runs as many copies of its body as it has
iterations, and compiling takes milliseconds for each.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from qdtrace.errors import Loc, warn
from qdtrace.trace.context import get_current
from qdtrace.trace.diagnosis.statement import nodes_of, running_in
from qdtrace.trace.indexing import is_static_int
from qdtrace.trace.own_files import is_own_package
from qdtrace.tracebacks import is_hidden, user_frame

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

MANY = 100
"""Elements from which on a loop that stores them is warned of."""


def note_element_store(indices: Sequence[Any]) -> None:
    """Notes a store with these indices by the user's running statement; warns of a loop that stores in many places."""
    context = get_current()
    if context is None or context.in_thread or not context.watching or not all(map(is_static_int, indices)):
        return
    frame = user_frame(2)
    if frame is None:
        return
    places = context.copies.setdefault((frame.f_code, frame.f_lasti), set())
    places.add(tuple(map(int, indices)))
    if len(places) >= MANY and (found := _loop_around(frame)) is not None:
        loop, loc = found
        if loc in context.told:
            return
        context.told.add(loc)
        arguments = loop.iter.args if isinstance(loop.iter, ast.Call) else ()
        index, bounds = ast.unparse(loop.target), ", ".join(map(ast.unparse, arguments))
        warn(
            f"`for {index} in range({bounds})` of Python stores element by element, {MANY} so far: each is compiled as "
            "code of its own, and one thread runs them all\n"
            f"help: write `for {index} in qd.range({bounds}):`, whose iterations run in parallel; with `serial=True` "
            "one after the other, where one reads what another has stored",
            loc,
        )


def _loop_around(frame: FrameType | None) -> tuple[ast.For, Loc] | None:
    """Returns the innermost loop over a `range` of Python around what a frame runs, in it or in its callers."""
    while frame is not None and not is_own_package(frame.f_code.co_filename):
        statement = running_in(frame) if not is_hidden(frame.f_code.co_filename) else None
        for loop in nodes_of(ast.For, statement):
            called = loop.iter.func if isinstance(loop.iter, ast.Call) else loop.iter
            if statement is not None and statement.value(called) is range:
                return loop, Loc(frame.f_code.co_filename, loop.lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None
