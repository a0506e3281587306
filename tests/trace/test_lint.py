# ruff: noqa: B023, E501
"""State that a loop carries is refused, and a loop outside of a `for` statement, with the line and the fix."""

from __future__ import annotations

import time

import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import TraceValueError
from tests.trace.text import clean

X = np.ones(8, np.float32)


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
        help: iterations run in parallel: to sum over them, accumulate into a buffer made before the loop: `s = qd.zeros(())` and `s[()] += v`; what each one makes goes into its own element, `b[i] = v`, and a random key is made from the index, `jax.random.fold_in(key, i)`
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


def test_swapped_buffers(refusal) -> None:
    assert refusal(TraceValueError, swapped_buffers, X) == clean("""
        `x` would carry a value from one iteration of the qd.range to the next
          at FILE:3 in swapped_buffers
              y[0] = x[0]
        note: the qd.range is at FILE:2 in swapped_buffers
        note: its body is traced once for all iterations
        help: a cell cannot hold a buffer: copy back at the end of the body, `for j in qd.range(n): a[j] = b[j]`, or unroll the loop, `for s in range(steps):`, or put lax.fori_loop around the qd.jit function
    """)  # fmt: skip


def rotated_buffers(x):
    pair = [x, qd.zeros(8)]
    for _ in qd.range(4, serial=True):
        pair[1][0] = pair[0][0]
        pair.reverse()
    return x


def test_buffers_rotated_in_a_list(refusal) -> None:
    text = refusal(TraceValueError, rotated_buffers, X).splitlines()
    assert text[0] == "`pair[0]` would carry a value from one iteration of the qd.range to the next"
    assert text[-1].startswith("help: a cell cannot hold a buffer: copy back")


class Counter:
    k = 0

    def next(self):
        self.k += 1
        return self.k


def counted(x):
    counter = Counter()
    for i in qd.range(8):
        x[i] = counter.next()
    return x


def test_the_constants_that_differ_are_shown(refusal) -> None:
    assert refusal(TraceValueError, counted, X) == clean("""
        `counter.k` would carry a value from one iteration of the qd.range to the next
          at FILE:3 in counted
              x[i] = counter.next()
        note: the qd.range is at FILE:2 in counted
        note: its body is traced once for all iterations
        note: it gives 1.0 for the first iteration, 2.0 for the second
        help: iterations run in parallel: to sum over them, accumulate into a buffer made before the loop: `s = qd.zeros(())` and `s[()] += v`; what each one makes goes into its own element, `b[i] = v`, and a random key is made from the index, `jax.random.fold_in(key, i)`
    """)  # fmt: skip


def drawn(x):
    for i in qd.range(8):
        x[i] = np.random.random()
    return x


def clocked(x):
    for i in qd.range(8):
        x[i] = time.perf_counter_ns() % 10_000_019
    return x


@pytest.mark.parametrize(("function", "name"), [(drawn, "np.random.random"), (clocked, "time.perf_counter_ns")])
def test_a_number_drawn_in_a_body(refusal, function, name) -> None:
    text = refusal(TraceValueError, function, X).splitlines()
    assert text[0] == f"`{name}` would carry a value from one iteration of the qd.range to the next"
    assert text[1] == f"  at FILE:2 in {function.__name__}"
    assert text[-1] == (
        "help: make it from the index: `jax.random.fold_in(key, i)` for a random key, `table[i]` for numbers made "
        "before the loop"
    )


def used_up(x):
    once = iter([1.0])
    for i in qd.range(8):
        x[i] = next(once)
    return x


def left_the_second_time(x):
    seen = []
    for i in qd.range(8):
        x[i] = 1
        seen.append(1)
        if len(seen) == 2:
            break
    return x


def test_a_body_that_cannot_be_traced_again(refusal) -> None:
    assert refusal(TraceValueError, used_up, X) == clean("""
        `once` would carry a value from one iteration of the qd.range to the next
          at FILE:3 in used_up
              x[i] = next(once)
        note: the qd.range is at FILE:2 in used_up
        note: its body is traced once for all iterations
        note: traced for a second iteration, the body raises StopIteration
        help: make it from the index: `jax.random.fold_in(key, i)` for a random key, `table[i]` for numbers made before the loop
    """)  # fmt: skip
    text = refusal(TraceValueError, left_the_second_time, X).splitlines()
    assert text[0] == "`seen[0]` would carry a value from one iteration of the qd.range to the next"
    assert text[1] == "  at FILE:6 in left_the_second_time"
    assert text[-2] == "note: traced for a second iteration, the body is left early"


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
        (tuple_carried, "state", 4),
        (list_item, "total[0]", 3),
        (read_in_lambda, "t", 3),
        (by_nonlocal, "count", 9),
        (by_captured, "t", 4),
        (attribute, "ray.pos", 4),
    ],
)
def test_carried(refusal, function, name, line) -> None:
    first, where, *_ = refusal(TraceValueError, function, X).splitlines()
    assert first == f"`{name}` would carry a value from one iteration of the qd.range to the next"
    assert where.startswith(f"  at FILE:{line} in {function.__name__}")


def while_condition(x):
    for i in qd.range(8):
        err = x[i]
        for _ in qd.while_(lambda: err > 0.1):
            err = x[i] * 0.5
            x[i] = err
    return x


def test_while_condition_reads_a_python_variable(refusal) -> None:
    assert refusal(TraceValueError, while_condition, X) == clean("""
        `err` would carry a value from one iteration of the qd.while_ to the next
          at FILE:3 in while_condition.<locals>.<lambda>
              for _ in qd.while_(lambda: err > 0.1):
        note: the qd.while_ is at FILE:3 in while_condition
        note: its body is traced once for all iterations
        help: keep it in a cell made before the loop: `c = qd.local(start)`, then `c.value` and `c.value = v`
    """)


def changing_condition(x):
    for i in qd.range(8):
        c = qd.local(0.0)
        counter = Counter()
        for _ in qd.while_(lambda: c < 3 * counter.next()):
            c += 1
        x[i] = c
    return x


def test_a_condition_that_changes_something(refusal) -> None:
    text = refusal(TraceValueError, changing_condition, X).splitlines()
    assert text[0] == "`counter.k` would carry a value from one iteration of the qd.while_ to the next"
    assert text[1] == "  at FILE:4 in changing_condition.<locals>.<lambda>"


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


def in_inner_comprehension(x):
    values = [x[i] + k for k in (1, 2) for i in qd.range(8)]
    return values


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
        (in_inner_comprehension, "qd.range"),
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
