"""Warnings of what a program does wrong in every run, before it runs: races, and buffers that are read unset."""

import random
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd
from tests.written import written

X = jnp.array([3.0, -1.0, 4.0, 1.0])
ONE = "all iterations of the loop store to the same element"
READS = "reads an element of `x` that another iteration stores"
RACES = {
    "steps in parallel": (
        "v = qd.copy(x)\nfor _ in qd.range(100):\n    for i in qd.range(1, 3):\n"
        "        v[i] = 0.5 * (x[i - 1] + x[i + 1])\n    for i in qd.range(4):\n        x[i] = v[i]\nreturn x",
        f"{ONE} of `v`", "steps in time",
    ),
    "sum by stores": (
        "s = qd.zeros(())\nfor i in qd.range(4):\n    s[()] = s[()] + x[i]\nreturn s",
        f"{ONE} of `s`", "accumulate: `b[k] += v`",
    ),
    "least by stores": (
        "s = qd.full((), jnp.inf)\nfor i in qd.range(4):\n    s[()] = jnp.minimum(s[()], x[i])\nreturn s",
        f"{ONE} of `s`", "accumulate",
    ),
    "search for the largest": (
        "s = qd.full((), -jnp.inf)\nfor i in qd.range(4):\n    with qd.when(x[i] > s[()]):\n        s[()] = x[i]\n"
        "return s",
        f"{ONE} of `s`", "`b.at[k].min(v)`, `max`",
    ),
    "last one wins": (
        "s = qd.zeros(())\nfor i in qd.range(4):\n    s[()] = x[i]\nreturn s",
        f"{ONE} of `s`", "give each iteration an element of its own",
    ),
    "last one under a flag": (
        "flag = jnp.sum(x[...]) > 2\ns = qd.zeros(())\nfor i in qd.range(4):\n    with qd.when(flag):\n"
        "        s[()] = x[i]\nreturn s",
        f"{ONE} of `s`", "give each iteration an element of its own",
    ),
    "prefix sum": (
        "for i in qd.range(3):\n    x[i + 1] = x[i] + x[i + 1]\nreturn x",
        READS, "new = qd.copy(x)",
    ),
    "stencil in place": (
        "for i in qd.range(1, 3):\n    x[i] = 0.5 * (x[i - 1] + x[i + 1])\nreturn x",
        READS, "new = qd.copy(x)",
    ),
    "stencil in place of two axes": (
        "y = qd.zeros((3, 4))\nfor i, j in qd.ndrange((1, 3), 4):\n    y[i, j] = y[i - 1, j] + x[j]\nreturn y",
        "reads an element of `y` that another iteration stores", "serial=True",
    ),
    "divided by the first": (
        "for i in qd.range(4):\n    x[i] = x[i] / x[0]\nreturn x",
        READS, "new = qd.copy(x)",
    ),
    "divided by the sum": (
        "for i in qd.range(4):\n    x[i] = x[i] / jnp.sum(x[...])\nreturn x",
        READS, "new = qd.copy(x)",
    ),
    "pulled by all others": (
        "for i in qd.range(4):\n    pull = qd.local(0.0)\n    for j in qd.range(4):\n"
        "        with qd.when(i != j):\n            pull += x[j] - x[i]\n    x[i] += 0.1 * pull\nreturn x",
        READS, "new = qd.copy(x)",
    ),
    "accumulated stencil in place": (
        "for i in qd.range(1, 4):\n    x[i] += x[i - 1]\nreturn x",
        READS, "new = qd.copy(x)",
    ),
    "mirrored and read": (
        "for i in qd.range(2):\n    x[2 * i + 1] = x[3 - 2 * i] * x[1]\nreturn x",
        READS, "new = qd.copy(x)",
    ),
    "count that is read": (
        "n = qd.zeros(())\nfor i in qd.range(4):\n    n[()] += 1.0\n    x[i] = n[()]\nreturn x",
        "reads an element of `n` that another iteration stores", "serial=True",
    ),
    "two stores a distance apart": (
        "o = qd.zeros(5)\nfor i in qd.range(4):\n    o[i] = x[i]\n    o[i + 1] = -x[i]\nreturn o",
        "two iterations store to the same element of `o`", "accumulate",
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_a_certain_race_is_a_warning_at_its_line(name: str) -> None:
    program, rule, fix = RACES[name]
    function = written(program)
    with pytest.warns(qd.QdWarning) as told:
        qd.jit(function)(X)
    (warning,) = told
    assert str(warning.message).startswith("a race: ")
    assert rule in str(warning.message)
    assert fix in str(warning.message)
    assert warning.filename == function.__code__.co_filename
    assert warning.lineno > 1


@pytest.mark.parametrize("program", [program for program, _, _ in RACES.values()], ids=[*RACES])
def test_the_interpreter_finds_the_same_races(program: str) -> None:
    with pytest.raises(qd.InterpreterError, match="race"):
        qd.jit(written(program), options={"debug": True})(X)


FINE = {
    "read by whom stores it": (
        "for i in qd.range(2):\n    pull = qd.local(0.0)\n    with qd.when(i != 1):\n        pull += x[0]\n"
        "    x[i] += pull\nreturn x"
    ),
    "read in a loop without iterations": (
        "for i in qd.range(4):\n    for _ in qd.range(0):\n        x[i] += x[0]\nreturn x"
    ),
    "stored at its own index": (
        "k = jnp.array([3, 2, 1, 0])\nfor i in qd.range(4):\n    x[i] = x[i] + k[i]\n"
        "for i in qd.range(4, serial=True):\n    x[k[i]] = x[k[i]] + 1\nfor i in qd.range(4):\n    x[k[i]] += 1\n"
        "return x"
    ),
    "others divided by the first": "for i in qd.range(1, 4):\n    x[i] = x[i] / x[0]\nreturn x",
    "pulled by the other half": "for i in qd.range(2):\n    for j in qd.range(2, 4):\n        x[i] += x[j]\nreturn x",
    "flag that is read": (
        "found = qd.zeros((), bool)\nfor i in qd.range(4):\n    with qd.when(~found[()]):\n        x[i] = 1.0\nreturn x"
    ),
    "flag of many": (
        "found, any_one = qd.zeros((), bool), qd.zeros((), bool)\nfor i in qd.range(4):\n    any_one[()] = True\n"
        "    with qd.when(x[i] > 2):\n        found[()] = True\nreturn found, any_one"
    ),
    "the last by its index": (
        "last = qd.zeros(())\nfor i in qd.range(4):\n    with qd.when(i == 3):\n        last[()] = x[i]\nreturn last"
    ),
    "every second in place": "for i in qd.range(0, 4, 2):\n    x[i] = x[i + 1]\nreturn x",
    "flipped in place": "for i in qd.range(2):\n    a, b = x[i], x[3 - i]\n    x[i] = b\n    x[3 - i] = a\nreturn x",
    "borders of one value": "o = qd.ones(5)\nfor i in qd.range(4):\n    o[i] = 0\n    o[i + 1] = 0\nreturn x, o",
    "steps in one thread": (
        "for _ in qd.range(3, serial=True):\n    for i in qd.range(1, 3):\n        x[i] = 0.5 * (x[i - 1] + x[i + 1])\n"
        "return x"
    ),
    "one iteration": (
        "s = qd.zeros(())\nfor _ in qd.range(1):\n    for i in qd.range(4):\n        s[()] = s[()] + x[i]\nreturn s"
    ),
    "accumulated": (
        "s, most = qd.zeros(()), qd.zeros(())\nfor i in qd.range(4):\n    s[()] += x[i]\n    most.at[()].max(x[i])\n"
        "return s, most"
    ),
    "halves that do not meet": "for i in qd.range(2):\n    x[i] = x[i + 2]\nreturn x",
    "set before it is read": (
        "a = qd.empty(4)\nb = qd.empty(())\nfor i in qd.range(4):\n    a[i] = x[i]\n    a[i] += 1\nb[()] = 0\n"
        "for i in qd.range(4):\n    b[()] += a[i]\nreturn b"
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_what_races_in_no_run_is_silent(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(qd.jit(written(FINE[name]))(X))


@pytest.mark.parametrize(("does", "line"), [("added to", "out[i] += x[i]"), ("read", "x[i] = x[i] + out[i]")])
def test_a_buffer_that_is_read_unset_is_a_warning(does: str, line: str) -> None:
    function = written(f"out = qd.empty(4)\nfor i in qd.range(4):\n    {line}\nreturn x, out")
    with pytest.warns(qd.QdWarning, match=f"`out` is {does} before anything is stored in it.*\n.*qd.zeros") as told:
        qd.jit(function)(X)
    assert [w.lineno for w in told] == [4]
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
