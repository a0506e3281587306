"""Loops and conditions that are made and not used, which Python alone would drop."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import qdtrace as qd

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.arange(4, dtype=np.float32)


def made(n: Any) -> Any:
    return qd.range(n)


def dropped_when(x):
    for i in qd.range(4):
        qd.when(x[i] > 1)
        x[i] = 0.0


def dropped_otherwise(x):
    for i in qd.range(4):
        with qd.when(x[i] > 1):
            x[i] = 0.0
        qd.otherwise()
        x[i] = 1.0


def dropped_while(x):
    for i in qd.range(4):
        qd.while_(lambda: x[i] < 3)  # noqa: B023
        x[i] = 1.0


def dropped_range(x):
    qd.range(4)


def dropped_inner_range(x):
    for _ in qd.range(4):
        qd.range(1, 4, 2)


def dropped_ndrange(x):
    qd.ndrange(2, (1, 3))


def dropped_by_a_helper(x):
    made(4)


REFUSED: dict[Callable[..., Any], tuple[str, str]] = {
    dropped_when: ("qd.when", "with qd.when(condition):"),
    dropped_otherwise: ("qd.otherwise", "with qd.otherwise():"),
    dropped_while: ("qd.while_", "for _ in qd.while_(condition):"),
    dropped_range: ("qd.range", "for i in qd.range(n):"),
    dropped_inner_range: ("qd.range", "for i in qd.range(n):"),
    dropped_ndrange: ("qd.ndrange", "for i, j in qd.ndrange(n, m):"),
    dropped_by_a_helper: ("qd.range", "for i in qd.range(n):"),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_a_statement_that_drops_it_is_refused(function):
    noun, statement = REFUSED[function]
    with pytest.raises(qd.TraceValueError) as caught:
        qd.jit(lambda x: (function(x), x)[1])(X)
    lines = str(caught.value).splitlines()
    word = statement.partition(" ")[0]
    assert lines[0] == f"a {noun} does nothing unless a `{word}` statement runs it"
    assert __file__ in lines[1]
    assert noun in lines[2]
    assert f"help: write `{statement}` and indent what belongs to it" in lines


def held_when(x):
    for i in qd.range(4):
        positive = qd.when(x[i] > 1)  # noqa: F841
        x[i] = 0.0


def held_while(x):
    for i in qd.range(4):
        loop = qd.while_(lambda: x[i] < 3)  # noqa: B023, F841
        x[i] = 1.0


@pytest.mark.parametrize(("function", "noun"), [(held_when, "qd.when"), (held_while, "qd.while_")])
def test_one_that_a_variable_held_to_its_end_is_warned_of(function, noun):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        qd.jit(lambda x: (function(x), x)[1])(X)
    (warning,) = told
    assert issubclass(warning.category, qd.QdWarning)
    assert str(warning.message).startswith(f"a {noun} does nothing unless a ")
    assert (warning.filename, warning.lineno) == (__file__, function.__code__.co_firstlineno + 2)


def range_for_later(x):
    r = qd.range(4)

    def body():
        for i in r:
            x[i] = 1.0

    body()


def range_for_twice(x):
    r = qd.range(4)
    for i in r:
        x[i] += 1.0
    for i in r:
        x[i] += 1.0


def range_that_a_function_gives(x):
    for i in made(4):
        x[i] = 2.0


def range_that_is_not_needed(x):
    r = qd.range(4)
    if x.shape == (5,):
        for i in r:
            x[i] = 2.0


def range_in_a_dict(x):
    loops = {"rows": qd.range(4), "columns": qd.range(2)}
    for i in loops["rows"]:
        for _ in loops["columns"]:
            x[i] += 1.0


def when_for_later(x):
    for i in qd.range(4):
        large = qd.when(x[i] > 1)
        with large:
            x[i] = 0.0
        rest = qd.otherwise()
        with rest:
            x[i] = 3.0


def when_on_a_stack(x):
    for i in qd.range(4):
        with contextlib.ExitStack() as stack:
            stack.enter_context(qd.when(x[i] > 1))
            x[i] = 0.0


def rows():
    yield from qd.range(4)


def generator_closed_early(x):
    started = rows()
    started.close()
    for i in rows():
        x[i] = 2.0


@contextlib.contextmanager
def large(x, i):
    with qd.when(x[i] > 1):
        yield


def when_of_a_context_manager(x):
    for i in qd.range(4):
        with large(x, i):
            x[i] = 0.0


def called_for_its_effect(x):
    """A `qd.vmap` makes its loop itself, whatever becomes of the result."""
    qd.vmap(lambda a: a + 1)(x)


USED = [
    range_for_later, range_for_twice, range_that_a_function_gives, range_that_is_not_needed, range_in_a_dict,
    when_for_later, when_on_a_stack, generator_closed_early, when_of_a_context_manager, called_for_its_effect,
]  # fmt: skip


@pytest.mark.parametrize("function", USED, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("error")
def test_one_that_is_used_otherwise(function):
    qd.jit(lambda x: (function(x), x)[1])(X)
