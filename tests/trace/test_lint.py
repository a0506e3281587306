# ruff: noqa: B023, E501
"""Silent traps of tracing are refused, with the line and the fix; ordinary code is not."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from jax import lax

from qdtrace import trace as qd
from qdtrace.errors import TraceValueError

X = np.ones(8, np.float32)


def clean(text: str) -> str:
    return dedent(text).strip("\n")


# -- refused ----------------------------------------------------------------------------------------------------------


def carried_number(x):
    count = 0
    for i in qd.range(8):
        count = count + 1
        x[i] = count
    return x


def carried_in_thread(x):
    for i in qd.range(8):
        previous = x[0]
        for j in qd.range(8):
            x[i] = previous + 1
            previous = x[j]
    return x


def test_carried_number(refusal) -> None:
    assert refusal(TraceValueError, carried_number, X) == clean("""
        `count` would carry a value from one iteration of the qd.range to the next
          at FILE:3 in carried_number
              count = count + 1
        note: the qd.range is at FILE:2 in carried_number
        note: its body is traced once for all iterations
        help: iterations run in parallel: to sum over them, accumulate into a buffer made before the loop: `s = qd.zeros(())` and `s[()] += v`
    """)  # fmt: skip


def test_carried_tracer_in_a_serial_loop(refusal) -> None:
    assert refusal(TraceValueError, carried_in_thread, X) == clean("""
        `previous` would carry a value from one iteration of the qd.range to the next
          at FILE:4 in carried_in_thread
              x[i] = previous + 1
        note: the qd.range is at FILE:3 in carried_in_thread
        note: its body is traced once for all iterations
        help: keep it in a cell made before the loop: `c = qd.local(start)`, then `c.value` and `c.value = v`
    """)


def swapped_buffers(x):
    y = qd.zeros(8)
    for _ in qd.range(4, serial=True):
        y[0] = x[0]
        x, y = y, x
    return x


def augmented(x):
    total = 0.0
    for i in qd.range(8):
        total += x[i]
    return x


def cell_rebound(x):
    for i in qd.range(8):
        c = qd.local(0.0)
        for j in qd.range(8):
            c = c + x[j]
        x[i] = c
    return x


def tuple_carried(x):
    for i in qd.range(8):
        state = (x[0], x[1])
        for _ in qd.range(8):
            state = (state[1], state[0] + 1)
        x[i] = 1
    return x


def list_item(x):
    total = [0.0]
    for i in qd.range(8):
        total[0] = total[0] + x[i]
    return x


def list_append(x):
    seen = []
    for i in qd.range(8):
        seen.append(x[i])
    return x


def read_in_lambda(x):
    t = 1.0
    for i in qd.range(8):
        x[i] = lax.cond(x[i] > 0, lambda: t, lambda: 2.0)
        t = x[i]
    return x


def by_nonlocal(x):
    count = 0

    def bump():
        nonlocal count
        count = count + 1
        return count

    for i in qd.range(8):
        x[i] = bump()
    return x


def by_captured(x):
    t = 1.0

    def scaled(v):
        return v * t

    for i in qd.range(8):
        x[i] = scaled(x[i])
        t = x[i]
    return x


@qd.dataclass
class Ray:
    pos: object
    steps: object


def attribute(x):
    for i in qd.range(8):
        ray = Ray(x[i], 0)
        for _ in qd.range(8):
            ray.pos = ray.pos + 1.0
        x[i] = 1
    return x


@pytest.mark.parametrize(
    ("function", "name", "line"),
    [
        (swapped_buffers, "x", 3),
        (augmented, "total", 3),
        (cell_rebound, "c", 4),
        (tuple_carried, "state", 4),
        (list_item, "total[0]", 2),
        (list_append, "seen[0]", 2),
        (read_in_lambda, "t", 3),
        (by_nonlocal, "count", 9),
        (by_captured, "t", 7),
        (attribute, "ray.pos", 3),
    ],
)
def test_carried(refusal, function, name, line) -> None:
    first, where, *_ = refusal(TraceValueError, function, X).splitlines()
    assert first == f"`{name}` would carry a value from one iteration of the qd.range to the next"
    assert where == f"  at FILE:{line} in {function.__name__}"


def while_condition(x):
    for i in qd.range(8):
        err = x[i]
        for _ in qd.while_(lambda: err > 0.1):
            err = x[i] * 0.5
            x[i] = err
    return x


def test_while_condition_reads_a_python_variable(refusal) -> None:
    assert refusal(TraceValueError, while_condition, X) == clean("""
        the condition of the qd.while_ reads `err`, which the body sets as a Python variable
          at FILE:3 in while_condition
              for _ in qd.while_(lambda: err > 0.1):
        note: the condition and the body are traced once for all iterations
        help: keep it in a cell made before the loop: `c = qd.local(start)`, then `c.value` and `c.value = v`
    """)


def flag_after(x):
    found = False
    for i in qd.range(8):
        x[i] = 1
        found = True
    if found:
        x[0] = 2
    return x


def test_static_value_read_after_the_loop(refusal) -> None:
    assert refusal(TraceValueError, flag_after, X) == clean("""
        `found` is set inside the qd.range and read after it
          at FILE:5 in flag_after
              if found:
        note: the qd.range is at FILE:2 in flag_after
        note: its body is traced once, also when it would not run at all
        help: set it outside of the loop, or keep it in a buffer or a qd.local
    """)


def in_enumerate(x):
    for k, i in enumerate(qd.range(8)):
        x[i] = k
    return x


def in_list(x):
    for i in list(qd.range(8)):
        x[i] = 1
    return x


def in_zip(x):
    for i, k in zip(qd.range(8), range(8), strict=False):
        x[i] = k
    return x


def in_comprehension(x):
    values = [x[i] for i in qd.range(8)]
    return values


def in_inner_comprehension(x):
    values = [x[i] + k for k in (1, 2) for i in qd.range(8)]
    return values


def in_generator(x):
    return sum(x[i] for i in qd.range(8))


def in_starred(x):
    print(*qd.range(8))
    return x


def in_unpacking(x):
    (i,) = qd.range(8)
    x[i] = 1
    return x


def in_ndrange_list(x):
    return list(qd.ndrange(2, 4))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (in_enumerate, "qd.range"),
        (in_list, "qd.range"),
        (in_zip, "qd.range"),
        (in_comprehension, "qd.range"),
        (in_inner_comprehension, "qd.range"),
        (in_generator, "qd.range"),
        (in_starred, "qd.range"),
        (in_unpacking, "qd.range"),
        (in_ndrange_list, "qd.ndrange"),
    ],
)
def test_loop_outside_a_for_statement(refusal, function, name) -> None:
    text = refusal(TraceValueError, function, X).splitlines()
    first = "a {} needs to stand in a `for` statement of its own, not in enumerate, zip, list or a comprehension"
    assert text[0] == first.format(name)
    assert text[1].startswith("  at FILE:1 in ")
    assert (
        text[-1]
        == f"help: write `for i in {name}(...):`; the body is traced once, and i is the index of every iteration"
    )


def continue_under_when(x):
    for i in qd.range(5):
        with qd.when(i >= 2):
            continue
        x[i] = 1
    return x


def test_continue_under_when(refusal) -> None:
    assert refusal(TraceValueError, continue_under_when, X) == clean("""
        a `continue` under qd.when would hold whatever the condition is
          at FILE:3 in continue_under_when
              continue
        note: the qd.when is at FILE:2 in continue_under_when
        note: the code after it would never be traced
        help: use qd.continue_if(condition)
    """)


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
    text = refusal(TraceValueError, function, X)
    assert text.splitlines()[0] == f"a `{word}` under {name} would hold whatever the condition is"


def set_under_when(x):
    for i in qd.range(8):
        t = 0.0
        with qd.when(x[i] > 0):
            t = 1.0
        x[i] = t
    return x


def test_set_under_when(refusal) -> None:
    assert refusal(TraceValueError, set_under_when, X) == clean("""
        `t` is set under qd.when and read after it
          at FILE:5 in set_under_when
              x[i] = t
        note: the qd.when is at FILE:3 in set_under_when
        note: Python sets it whatever the condition is
        help: use jnp.where(condition, a, b), or keep it in a cell: `c = qd.local(start)` and `c.value = v`
    """)


def set_in_both(x):
    for i in qd.range(8):
        a, b = x[i], x[0]
        with qd.when(x[i] > 0):
            t = a
        with qd.otherwise():
            t = b
        x[i] = t
    return x


def item_under_when(x):
    for i in qd.range(8):
        parts = [1.0, 2.0]
        with qd.when(x[i] > 0):
            parts[0] = 3.0
        x[i] = parts[0]
    return x


def test_set_in_both_branches(refusal) -> None:
    assert refusal(TraceValueError, set_in_both, X).splitlines()[0] == "`t` is set under qd.otherwise and read after it"


def test_list_item_set_under_when(refusal) -> None:
    assert refusal(TraceValueError, item_under_when, X).splitlines()[0] == "`parts[0]` is set under qd.when"


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
