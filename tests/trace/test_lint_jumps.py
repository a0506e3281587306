# ruff: noqa: B023, E501
"""Leaving a traced body by Python's own statements is refused, with the line and the fix."""

from __future__ import annotations

import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import TraceValueError
from tests.trace.text import clean

X = np.ones(8, np.float32)


def continue_under_when(x):
    for i in qd.range(5):
        with qd.when(i >= 2):
            continue
        x[i] = 1
    return x


def test_continue_under_when(refusal) -> None:
    assert refusal(TraceValueError, continue_under_when, X) == clean("""
        a statement that leaves a qd.when would do so whatever the condition is
          at FILE:3 in continue_under_when
              continue
        note: the qd.when is at FILE:2 in continue_under_when
        note: the code after it would never be traced
        help: write qd.continue_if(condition) for `continue`, qd.break_if(condition) for `break`; for `return` put the rest of the function under `with qd.otherwise():`
    """)  # fmt: skip


def continue_with_more(x):
    for i in qd.range(5):
        with qd.when(i >= 2):
            x[i] = 3
            for _ in range(2):
                x[i] = 4
            continue
        x[i] = 1
    return x


def break_under_when(x):
    for i in qd.range(5, serial=True):
        with qd.when(i >= 2):
            break
        x[i] = 1
    return x


def return_under_when(x):
    for i in qd.range(5):
        with qd.when(i >= 2):
            return x
        x[i] = 1
    return x


def store_below(x, i):
    with qd.when(i >= 2):
        return
    x[i] = 1


def return_in_helper(x):
    for i in qd.range(5):
        store_below(x, i)
    return x


def continue_under_otherwise(x):
    for _ in qd.range(5):
        for i in qd.range(5):
            with qd.when(i >= 2):
                x[i] = 2
            with qd.otherwise():
                continue
            x[i] = 1
    return x


def continue_in_while(x):
    for i in qd.range(5):
        c = qd.local(0)
        for _ in qd.while_(lambda: c < 4):
            c += 1
            with qd.when(c == 2):
                continue
            x[i] = 1
    return x


def continue_of_two(x):
    for i in qd.range(5):
        with qd.when(i >= 2), qd.when(i < 3):
            continue
        x[i] = 1
    return x


@pytest.mark.parametrize(
    ("function", "word", "name"),
    [
        (continue_with_more, "continue", "qd.when"),
        (break_under_when, "break", "qd.when"),
        (return_under_when, "return", "qd.when"),
        (return_in_helper, "return", "qd.when"),
        (continue_under_otherwise, "continue", "qd.otherwise"),
        (continue_in_while, "continue", "qd.when"),
        (continue_of_two, "continue", "qd.when"),
    ],
)
def test_jump_under_a_condition(refusal, function, word, name) -> None:
    text = refusal(TraceValueError, function, X).splitlines()
    assert text[0] == f"a statement that leaves a {name} would do so whatever the condition is"
    assert text[2].split()[0] == word


# -- left early -------------------------------------------------------------------------------------------------------


def breaks(x):
    for i in qd.range(8):
        x[i] = 1
        break
    return x


def returns(x):
    for i in qd.range(8):
        x[i] = 1
        return x
    return x


def raises_and_swallows(x):
    try:
        for i in qd.range(8):
            x[i] = 1
            raise KeyError
    except KeyError:
        pass
    return x


def breaks_inner(x):
    for i in qd.range(8):
        for _ in qd.while_(lambda: True):
            x[i] = 1
            if X.size:
                break
        x[i] = 2
    return x


def test_break_leaves_a_loop(refusal) -> None:
    assert refusal(TraceValueError, breaks, X) == clean("""
        the body of a qd.range must run to its end, it was left early
          at FILE:3 in breaks
              break
        note: the qd.range is at FILE:1 in breaks
        help: a traced body runs once for all iterations: leave a loop with qd.break_if(condition), or put the rest of the body under `with qd.when(condition):`
    """)  # fmt: skip


@pytest.mark.parametrize("function", [returns, raises_and_swallows])
def test_leaving_a_range(refusal, function) -> None:
    first = refusal(TraceValueError, function, X).splitlines()[0]
    assert first == "the body of a qd.range must run to its end, it was left early"


def test_leaving_a_while(refusal) -> None:
    text = refusal(TraceValueError, breaks_inner, X).splitlines()
    assert text[0] == "the body of a qd.while_ must run to its end, it was left early"
    assert text[3] == "note: the qd.while_ is at FILE:2 in breaks_inner"
