"""Warnings of what a program does wrong in every run, before it runs: races, and buffers that are read unset."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd

if TYPE_CHECKING:
    from collections.abc import Callable

X = jnp.array([3.0, -1.0, 4.0, 1.0])


def steps_in_parallel(x: Any) -> Any:
    v = qd.copy(x)
    for _ in qd.range(100):
        for i in qd.range(1, 3):
            v[i] = 0.5 * (x[i - 1] + x[i + 1])
        for i in qd.range(4):
            x[i] = v[i]
    return x


def sum_by_stores(x: Any) -> Any:
    s = qd.zeros(())
    for i in qd.range(4):
        s[()] = s[()] + x[i]
    return s


def least_by_stores(x: Any) -> Any:
    s = qd.full((), jnp.inf)
    for i in qd.range(4):
        s[()] = jnp.minimum(s[()], x[i])
    return s


def search_for_the_largest(x: Any) -> Any:
    s = qd.full((), -jnp.inf)
    for i in qd.range(4):
        with qd.when(x[i] > s[()]):
            s[()] = x[i]
    return s


def last_one_wins(x: Any) -> Any:
    s = qd.zeros(())
    for i in qd.range(4):
        s[()] = x[i]
    return s


def last_one_under_a_flag(x: Any) -> Any:
    flag = jnp.sum(x[...]) > 2
    s = qd.zeros(())
    for i in qd.range(4):
        with qd.when(flag):
            s[()] = x[i]
    return s


def prefix_sum(x: Any) -> Any:
    for i in qd.range(3):
        x[i + 1] = x[i] + x[i + 1]
    return x


def stencil_in_place(x: Any) -> Any:
    for i in qd.range(1, 3):
        x[i] = 0.5 * (x[i - 1] + x[i + 1])
    return x


def stencil_in_place_of_two_axes(x: Any) -> Any:
    y = qd.zeros((3, 4))
    for i, j in qd.ndrange((1, 3), 4):
        y[i, j] = y[i - 1, j] + x[j]
    return y


def two_stores_a_distance_apart(x: Any) -> Any:
    o = qd.zeros(5)
    for i in qd.range(4):
        o[i] = x[i]
        o[i + 1] = -x[i]
    return o


def divided_by_the_first(x: Any) -> Any:
    for i in qd.range(4):
        x[i] = x[i] / x[0]
    return x


def divided_by_the_sum(x: Any) -> Any:
    for i in qd.range(4):
        x[i] = x[i] / jnp.sum(x[...])
    return x


def pulled_by_all_others(x: Any) -> Any:
    for i in qd.range(4):
        pull = qd.local(0.0)
        for j in qd.range(4):
            with qd.when(i != j):
                pull += x[j] - x[i]
        x[i] += 0.1 * pull
    return x


def accumulated_stencil_in_place(x: Any) -> Any:
    for i in qd.range(1, 4):
        x[i] += x[i - 1]
    return x


def mirrored_and_read(x: Any) -> Any:
    for i in qd.range(2):
        x[2 * i + 1] = x[3 - 2 * i] * x[1]
    return x


def count_that_is_read(x: Any) -> Any:
    n = qd.zeros(())
    for i in qd.range(4):
        n[()] += 1.0
        x[i] = n[()]
    return x


ONE = "all iterations of the loop store to the same element"
RACES = {
    steps_in_parallel: (f"{ONE} of `v`", "steps in time"),
    sum_by_stores: (f"{ONE} of `s`", "accumulate: `b[k] += v`"),
    least_by_stores: (f"{ONE} of `s`", "accumulate"),
    search_for_the_largest: (f"{ONE} of `s`", "`b.at[k].min(v)`, `max`"),
    last_one_wins: (f"{ONE} of `s`", "give each iteration an element of its own"),
    last_one_under_a_flag: (f"{ONE} of `s`", "give each iteration an element of its own"),
    prefix_sum: ("reads an element of `x` that another iteration stores", "new = qd.copy(x)"),
    stencil_in_place: ("reads an element of `x` that another iteration stores", "new = qd.copy(x)"),
    stencil_in_place_of_two_axes: ("reads an element of `y` that another iteration stores", "serial=True"),
    divided_by_the_first: ("reads an element of `x` that another iteration stores", "new = qd.copy(x)"),
    divided_by_the_sum: ("reads an element of `x` that another iteration stores", "new = qd.copy(x)"),
    pulled_by_all_others: ("reads an element of `x` that another iteration stores", "new = qd.copy(x)"),
    accumulated_stencil_in_place: ("reads an element of `x` that another iteration stores", "new = qd.copy(x)"),
    mirrored_and_read: ("reads an element of `x` that another iteration stores", "new = qd.copy(x)"),
    count_that_is_read: ("reads an element of `n` that another iteration stores", "serial=True"),
    two_stores_a_distance_apart: ("two iterations store to the same element of `o`", "accumulate"),
}


@pytest.mark.parametrize("function", RACES, ids=lambda f: f.__name__)
def test_a_certain_race_is_a_warning_at_its_line(function: Callable[[Any], Any]) -> None:
    rule, fix = RACES[function]
    with pytest.warns(qd.QdWarning) as told:
        qd.jit(function)(X)
    (warning,) = told
    assert str(warning.message).startswith("a race: ")
    assert rule in str(warning.message)
    assert fix in str(warning.message)
    assert warning.filename == __file__
    assert function.__code__.co_firstlineno < warning.lineno


@pytest.mark.parametrize("function", RACES, ids=lambda f: f.__name__)
def test_the_interpreter_finds_the_same_races(function: Callable[[Any], Any]) -> None:
    with pytest.raises(qd.InterpreterError, match="race"):
        qd.jit(function, options={"debug": True})(X)


def flag_of_many(x: Any) -> Any:
    found, any_one = qd.zeros((), bool), qd.zeros((), bool)
    for i in qd.range(4):
        any_one[()] = True
        with qd.when(x[i] > 2):
            found[()] = True
    return found, any_one


def the_last_by_its_index(x: Any) -> Any:
    last = qd.zeros(())
    for i in qd.range(4):
        with qd.when(i == 3):
            last[()] = x[i]
    return last


def every_second_in_place(x: Any) -> Any:
    for i in qd.range(0, 4, 2):
        x[i] = x[i + 1]
    return x


def flipped_in_place(x: Any) -> Any:
    for i in qd.range(2):
        a, b = x[i], x[3 - i]
        x[i] = b
        x[3 - i] = a
    return x


def borders_of_one_value(x: Any) -> Any:
    o = qd.ones(5)
    for i in qd.range(4):
        o[i] = 0
        o[i + 1] = 0
    return x, o


def steps_in_one_thread(x: Any) -> Any:
    for _ in qd.range(3, serial=True):
        for i in qd.range(1, 3):
            x[i] = 0.5 * (x[i - 1] + x[i + 1])
    return x


def one_iteration(x: Any) -> Any:
    s = qd.zeros(())
    for _ in qd.range(1):
        for i in qd.range(4):
            s[()] = s[()] + x[i]
    return s


def accumulated(x: Any) -> Any:
    s, most = qd.zeros(()), qd.zeros(())
    for i in qd.range(4):
        s[()] += x[i]
        most.at[()].max(x[i])
    return s, most


def halves_that_do_not_meet(x: Any) -> Any:
    for i in qd.range(2):
        x[i] = x[i + 2]
    return x


def set_before_it_is_read(x: Any) -> Any:
    a = qd.empty(4)
    b = qd.empty(())
    for i in qd.range(4):
        a[i] = x[i]
        a[i] += 1
    b[()] = 0
    for i in qd.range(4):
        b[()] += a[i]
    return b


def others_divided_by_the_first(x: Any) -> Any:
    for i in qd.range(1, 4):
        x[i] = x[i] / x[0]
    return x


def pulled_by_the_other_half(x: Any) -> Any:
    for i in qd.range(2):
        for j in qd.range(2, 4):
            x[i] += x[j]
    return x


def stored_at_its_own_index(x: Any) -> Any:
    k = jnp.array([3, 2, 1, 0])
    for i in qd.range(4):
        x[i] = x[i] + k[i]
    for i in qd.range(4, serial=True):
        x[k[i]] = x[k[i]] + 1
    for i in qd.range(4):
        x[k[i]] += 1
    return x


def flag_that_is_read(x: Any) -> Any:
    found = qd.zeros((), bool)
    for i in qd.range(4):
        with qd.when(~found[()]):
            x[i] = 1.0
    return x


def read_by_whom_stores_it(x: Any) -> Any:
    for i in qd.range(2):
        pull = qd.local(0.0)
        with qd.when(i != 1):
            pull += x[0]
        x[i] += pull
    return x


def read_in_a_loop_without_iterations(x: Any) -> Any:
    for i in qd.range(4):
        for _ in qd.range(0):
            x[i] += x[0]
    return x


FINE = (
    read_by_whom_stores_it, read_in_a_loop_without_iterations, stored_at_its_own_index,
    others_divided_by_the_first, pulled_by_the_other_half, flag_that_is_read,
    flag_of_many, the_last_by_its_index, every_second_in_place, flipped_in_place, borders_of_one_value,
    steps_in_one_thread, one_iteration, accumulated, halves_that_do_not_meet, set_before_it_is_read,
)  # fmt: skip


@pytest.mark.parametrize("function", FINE, ids=lambda f: f.__name__)
def test_what_races_in_no_run_is_silent(function: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(qd.jit(function)(X))


def added_to_unset(x: Any) -> Any:
    out = qd.empty(4)
    for i in qd.range(4):
        out[i] += x[i]
    return out


def read_unset(x: Any) -> Any:
    out = qd.empty(4)
    for i in qd.range(4):
        x[i] = x[i] + out[i]
    return x


@pytest.mark.parametrize("function", [added_to_unset, read_unset], ids=lambda f: f.__name__)
def test_a_buffer_that_is_read_unset_is_a_warning(function: Callable[[Any], Any]) -> None:
    does = "added to" if function is added_to_unset else "read"
    with pytest.warns(qd.QdWarning, match=f"`out` is {does} before anything is stored in it.*\n.*qd.zeros") as told:
        qd.jit(function)(X)
    assert [w.lineno for w in told] == [function.__code__.co_firstlineno + 3]
    with pytest.raises(qd.InterpreterError):
        qd.jit(function, options={"debug": True})(X)


def test_a_loop_that_another_iteration_ends_is_no_mistake() -> None:
    @qd.jit
    def takes_turns(x: Any) -> Any:
        turn = qd.zeros((), int)
        for i in qd.range(4, serial=True):
            for _ in qd.while_(lambda: qd.atomic_add(turn, (), 1) < i):  # noqa: B023
                x[i] += 1
        return turn

    assert takes_turns(X) == 4


def drawn_loop(draw: random.Random) -> tuple[str, str]:
    """Returns a body that stores into `x` of ten elements and reads it, for 1 to 2 or to 5, and its inner loop."""
    low, size = draw.randrange(5), draw.randrange(1, 5)
    inner = f"for j in qd.range({low}, {low + size}):"
    index = draw.choice(("j", "j + 1", "i", "i + 1", "i - 1", "0", "3", "9", "k[i]", "2 * i - 1", "9 - j", "j // 2"))
    condition = draw.choice(("", "", "with qd.when(i != j): ", "with qd.when(x[0] > 5): "))
    place = draw.choice(("i", "i", "i", "i + 1", "i + 3", "7 - i", "2 * i - 1", "9 - 2 * (i - 1)"))
    store = draw.choice((f"x[{place}] += v", f"x[{place}] = v"))
    return f"{condition}s.value = s.value + x[{index}]", f"{inner}|{store}"


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow if k % 5 else ()) for k in range(30)])
def test_the_interpreter_finds_a_race_where_one_is_told(seed: int) -> None:
    read, rest = drawn_loop(random.Random(seed))
    inner, store = rest.split("|")
    stop = 3 if seed % 3 == 0 else 6
    lines = [
        "def f(x, k):", f"  for i in qd.range(1, {stop}):", "    s = qd.local(0.0)", f"    {inner}", f"      {read}",
        "    v = s.value", f"    {store}", "  return x",
    ]  # fmt: skip
    names: dict[str, Any] = {"qd": qd}
    exec("\n".join(lines), names)
    x, k = jnp.arange(10.0), jnp.array([9, 9, 9, 9, 9, 9])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        qd.jit(names["f"]).lower(x, k)
    if told:
        with pytest.raises(qd.InterpreterError, match="race"):
            jax.block_until_ready(qd.jit(names["f"], options={"debug": True})(x, k))
