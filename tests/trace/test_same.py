"""Comparison of two traces: what a jaxpr in a parameter has captured of its trace."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import TraceValueError
from qdtrace.trace.compat import Primitive
from qdtrace.trace.importer.registry import TAUGHT

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def held_p() -> Iterator[Any]:
    """A primitive that gives its operand, and holds a jaxpr, as those of libraries do."""
    primitive = Primitive("test_held")
    primitive.def_abstract_eval(lambda x, *, jaxpr: x)
    qd.def_import_rule(primitive, lambda x, *, jaxpr: x)
    yield primitive
    TAUGHT.pop("test_held", None)


def same(trips: int, _: Any, near: list[Any]) -> Any:
    return near[0]


def alike(trips: int, _: Any, near: list[Any]) -> Any:
    return near[0] * 2


def another(trips: int, _: Any, near: list[Any]) -> Any:
    return near[trips % 2]


def from_around(trips: int, around: list[Any], _: Any) -> Any:
    return around[trips % 2]


@pytest.mark.parametrize(
    ("captured", "refusal"),
    [
        (same, ""),
        (alike, ""),
        (another, "would carry a value from one iteration of the qd.range to the next"),
        (from_around, "holds a buffer or value of an earlier trace"),
    ],
)
def test_a_jaxpr_that_captures_a_traced_value(
    held_p: Any, captured: Callable[[int, list[Any], list[Any]], Any], refusal: str
) -> None:
    trips: list[int] = []  # a change, so that a second trip is compared

    def element(around: list[Any], v: Any) -> Any:
        trips.append(0)

        def holds(v: Any) -> Any:
            value = captured(len(trips), around, [v + 1, v + 2])
            return held_p.bind(v, jaxpr=jax.make_jaxpr(lambda b: b * value)(1.0))

        return jax.jit(holds)(v)

    @qd.jit
    def f(x: Any, y: Any) -> Any:
        around = [y * 3, y * 4]
        for i in qd.range(4):
            x[i] = element(around, x[i])
        return x

    if refusal:
        with pytest.raises(TraceValueError, match=refusal):
            f(X, np.float32(2))
    else:
        np.testing.assert_array_equal(f(X, np.float32(2)), X)
