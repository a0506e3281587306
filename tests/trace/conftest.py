"""Helpers of the tracing tests: trace a function, draw its region tree, catch the text of an error."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from qdtrace.errors import QdError
from qdtrace.trace.markers import REGIONS
from qdtrace.trace.trace import trace_function


def _draw(items: Iterable[Any], depth: int, lines: list[str], only_markers: bool) -> None:
    for item in items:
        if item.primitive in REGIONS:
            lines.append("  " * depth + REGIONS[item.primitive])
            body, *tests = item.params["jaxprs"]
            for test in tests:
                _draw(test.eqns, depth + 1, lines, only_markers)
                lines.append("  " * (depth + 1) + "test")
            _draw(body.eqns, depth + 1, lines, only_markers)
            continue
        name = item.primitive.name
        if name.startswith("qd_"):
            op = item.params.get("op")
            lines.append("  " * depth + name[3:] + (f" {op}" if op else ""))
        elif not only_markers:
            lines.append("  " * depth + name)


@pytest.fixture
def tree() -> Callable[..., str]:
    """Traces a function and draws its regions, one item a line; arithmetic only with `full=True`."""

    def draw(function: Any, *args: Any, full: bool = False, **kwargs: Any) -> str:
        lines: list[str] = []
        _draw(trace_function(function, args, kwargs).root.items, 0, lines, not full)
        return "\n".join(lines)

    return draw


@pytest.fixture
def refusal() -> Callable[..., str]:
    """The text of the error of a trace; the file becomes FILE and lines count from the `def` of the function."""

    def text(kind: type[QdError], function: Any, *args: Any, **kwargs: Any) -> str:
        with pytest.raises(kind) as caught:
            trace_function(function, args, kwargs)
        code = inspect.unwrap(function).__code__
        lines = []
        for line in str(caught.value).splitlines():
            head, mark, tail = line.partition(f"{code.co_filename}:")
            if mark:
                number, *rest = tail.split(" ", 1)
                line = f"{head}FILE:{int(number) - code.co_firstlineno}" + "".join(f" {r}" for r in rest)
            lines.append(line)
        return "\n".join(lines)

    return text
