"""Texts that errors have, and equations of traces."""

from textwrap import dedent, indent
from typing import Any

from qdtrace.trace.compat import JaxprEqn
from qdtrace.trace.tree import equations_in
from tests.written import written


def clean(text: str) -> str:
    """Returns a text without its indentation, and without empty lines at its ends."""
    return dedent(text).strip("\n")


def first(traced: Any, primitive: object) -> JaxprEqn:
    """Returns the first equation of a primitive in a trace."""
    return next(e for e in equations_in(traced.root.items) if e.primitive is primitive)


def task(body: str, before: str = "", **known: Any) -> Any:
    """Returns the function of `x`, `m` and `k` that executes statements in a loop over four elements, after others."""
    return written(f"{before}\nfor i in qd.range(4):\n{indent(body, '    ')}", "x, m, k", **known)
