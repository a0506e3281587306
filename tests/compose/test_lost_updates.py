"""Warnings of updates that two iterations lose, `h[k] = h[k] + v`: where it happens, and nowhere else."""

import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

SAME = np.array([0, 1, 1, 2, 3, 3, 3, 0])
OTHERS = np.array([3, 1, 0, 2, 7, 6, 5, 4])
V = np.linspace(0.5, -0.4, 8, dtype=np.float32)


def told(function: Callable[..., Any], *args: Any) -> list[str]:
    """Returns what a call is told, without the rule."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.block_until_ready(function(*args))
    texts = [str(w.message) for w in found]
    assert all(text.startswith("a race") for text in texts)
    return [text.partition("help: ")[2] for text in texts]


UPDATES = {
    "h[k] = h[k] + v": "b[k] += v",
    "h[k] = v + h[k]": "b[k] += v",
    "old = h[k]; h[k] = old - v": "b[k] -= v",
    "h[k] *= v": "b.at[k].mul(v)",
    "h[k] = jnp.minimum(h[k], v)": "b.at[k].min(v)",
    "h[k] = jnp.where(v > h[k], v, h[k])": "b.at[k].max(v)",
    "h[k] = jnp.where(h[k] > v, v, h[k])": "b.at[k].min(v)",
    "with qd.when(v >= h[k]): h[k] = v": "b.at[k].max(v)",
    "with qd.when(h[k] >= v): h[k] = v": "b.at[k].min(v)",
}


def updating(update: str, index: str = "k[i]", around: str = "") -> Any:
    """Returns the function that makes an update in a loop over `keys`."""
    lines = [
        "def f(h, keys, values):", "  order = jnp.argsort(values[...])", "  for i in qd.range(keys.shape[0]):",
        f"    k = {index.replace('k[i]', 'keys[i]')}; v = values[i]", f"    {around}{update}", "  return h",
    ]  # fmt: skip
    names: dict[str, Any] = {"qd": qd, "jnp": jnp}
    exec("\n".join(lines), names)
    return names["f"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("update", UPDATES)
def test_an_update_is_told_the_accumulation_where_a_call_has_equal_indices(update: str) -> None:
    f = qd.jit(updating(update))
    h = np.zeros(8, np.float32)
    assert told(f, h, OTHERS, V) == []
    assert told(qd.jit(updating(update)), h, SAME, V) == [f"accumulate, which loses nothing: `{UPDATES[update]}`"]
    given_later = jax.jit(qd.jit(updating(update))).lower
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (h, SAME.astype(np.int32), V)]
    assert told(lambda *args: given_later(*args) and None, *shapes) == []  # nobody sees the indices
    shapes[0] = jax.ShapeDtypeStruct((3,), np.float32)
    assert len(told(lambda *args: given_later(*args) and None, *shapes)) == 1  # but there are more than elements


@pytest.mark.full
def test_the_first_call_with_the_elements_decides_for_each_trace() -> None:
    f = qd.jit(updating("h[k] = h[k] + v"))
    h = np.zeros(8, np.float32)
    assert told(f, h, OTHERS, V) == told(f, h, SAME, V) == []  # it is told once, as all warnings of a trace are
    f = qd.jit(updating("h[k] = h[k] + v"))
    assert len(told(jax.jit(f), h, SAME, V)) == 1
    assert told(f, h, SAME, V) == []
    assert len(told(jax.grad(lambda v: f(h[:7], SAME[:7], v).sum()), V[:7])) == 1


Call = tuple["Callable[..., Any]", "tuple[Any, ...]"]
WRAPPERS: dict[str, Callable[[Any, Any, Any, Any], Call]] = {
    "jit": lambda f, h, k, v: (jax.jit(f), (h, k, v)),
    "static": lambda f, *args: (lambda *a: jax.jit(lambda n, *b: f(*b), static_argnums=0)(3, *a), args),
    "others": lambda f, *args: (lambda h, k, v: jax.jit(lambda v, *a: f(a[1], a[0], v))(v, k, h, np.float32(1)), args),
    "tree": lambda f, *args: (lambda h, k, v: jax.jit(lambda a, k: f(a["h"], k, a["v"]))({"v": v, "h": h}, k=k), args),
    "vmap": lambda f, h, k, v: (jax.vmap(f, (None, 1, None)), (h, np.stack([k[..., ::-1], k], 1), v)),
    "vmap of others": lambda f, h, k, v: (jax.vmap(f, (0, None, -1)), (np.stack([h, h]), k, np.stack([v, v], -1))),
    "vjp": lambda f, *args: (lambda h, k, v: jax.vjp(lambda v: f(h, k, v), v)[0], args),
    "jvp": lambda f, *args: (lambda h, k, v: jax.jvp(lambda v: f(h, k, v), (v,), (v,))[0], args),
}
"""A function and its arguments, transformed."""


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow if k % 16 else ()) for k in range(160)])
def test_what_transformations_around_a_call_were_given_decides(seed: int) -> None:
    draw = random.Random(seed)
    keys = draw.choice((SAME, OTHERS))
    f, args = qd.jit(updating("h[k] = h[k] + v")), (np.zeros(8, np.float32), keys, V)
    for name in draw.choices(list(WRAPPERS), k=draw.choice((1, 2, 3, 4))):
        if "vmap" not in name or args[1].ndim == args[0].ndim == 1:
            f, args = WRAPPERS[name](f, *args)
    assert len(told(f, *args)) == (keys is SAME)


@pytest.mark.full
def test_what_a_loop_of_lax_brings_is_seen_by_nobody() -> None:
    f = qd.jit(updating("h[k] = h[k] + v"))
    keys = np.stack([SAME, SAME])
    assert told(lambda: jax.lax.scan(lambda h, k: (f(h, k, V), None), jnp.zeros(8), keys)[0]) == []
    assert len(told(lambda: jax.lax.scan(lambda h, _: (f(h, SAME, V), None), jnp.zeros(8), keys)[0])) == 1


PASSING: dict[str, Callable[[Any, Any], Any]] = {
    "cond": lambda f, k: jax.lax.cond(k[0] >= 0, f, f, k),
    "switch": lambda f, k: jax.lax.switch(k[0], [f, f], k),
    "checkpoint": lambda f, k: jax.checkpoint(f)(k),
    "scan": lambda f, k: jax.lax.scan(lambda _, k: (f(k), None), jnp.zeros(8), k[None])[0],
    "jit": lambda f, k: jax.jit(f)(k),
}
"""Functions that call another with indices, which are no arguments of the `jax.jit` around them."""


@pytest.mark.parametrize("name", PASSING)
def test_indices_made_under_a_jit_are_not_taken_for_its_arguments(name: str) -> None:
    f = qd.jit(updating("h[k] = h[k] + v"))
    pass_on = jax.jit(lambda k: PASSING[name](lambda k: f(jnp.zeros(8), k, V), jnp.argsort(k)))
    assert told(pass_on, SAME) == []


def test_an_update_by_another_function_runs_in_order() -> None:
    f = qd.jit(updating("h[k] = 0.9 * h[k] + v"))
    assert told(f, np.zeros(8, np.float32), OTHERS, V) == []
    for h in (np.zeros(8, np.float32), np.zeros(4, np.float32)):
        (fix,) = told(qd.jit(updating("h[k] = 0.9 * h[k] + v")), h, SAME, V)
        assert "serial=True" in fix


FINE = (
    ("h[k] = h[k] + v", "order[i]", ""),
    ("h[k] = h[k] + v", "i", ""),
    ("h[k] = h[k] + v", "7 - i", ""),
    ("h[k] = h[k] + v", "i ^ 1", ""),
    ("h[k] = jnp.maximum(h[k], 0)", "k[i]", ""),  # one value that all of them store
    ("h[k] = v", "k[i]", ""),
    ("h[k] = h[h[k].astype(int)]", "k[i]", ""),  # as the roots of a forest
    ("h[k] = h[k] + v", "k[i]", "with qd.when(i < 2): "),  # equal ones may be left out
)


@pytest.mark.parametrize(("update", "index", "around"), FINE)
def test_what_may_be_right_is_silent(update: str, index: str, around: str) -> None:
    assert told(qd.jit(updating(update, index, around)), np.zeros(8, np.float32), SAME, V) == []


@pytest.mark.parametrize("index", ["k[i] // 2", "k[i] >> 1", "(4 * v + 4).astype(int)"])
def test_an_index_that_makes_one_of_many_is_told_under_jit(index: str) -> None:
    index = index.replace("v", "values[i]")
    assert len(told(jax.jit(qd.jit(updating("h[k] = h[k] + v", index))), np.zeros(8, np.float32), OTHERS, V)) == 1


@pytest.mark.parametrize(
    "index",
    [
        "jnp.clip(v[i].astype(jnp.int32), 0, n - 1)", "i // k[i]", "jax.lax.rem(i.astype(jnp.int32), k[i])", "e[i] % n",
        "(i * 65537 * 65537) % n", "(u[i] * jnp.uint32(2654435761) >> jnp.uint32(29)).astype(int)",
        "(i.astype(jnp.int32) << 40) % n + i", "i.astype(bool).astype(int) + i",
    ],
)  # fmt: skip
def test_special_values_and_those_that_wrap_are_no_accidents(index: str) -> None:
    lines = [
        "def f(h, k, v, u, e):",
        "  n = 8",
        "  for i in qd.range(n):",
        f"    h[i] = h[{index}] * 0.5",
        "  return h",
    ]
    names: dict[str, Any] = {"qd": qd, "jnp": jnp, "jax": jax}
    exec("\n".join(lines), names)
    v = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 5, 6, 7], np.float32)
    args = np.ones(8, np.float32), np.zeros(8, np.int32), v, np.arange(8, dtype=np.uint32), np.zeros(0, np.int32)
    with warnings.catch_warnings(), suppress(qd.QdError):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", qd.QdWarning)
        jax.block_until_ready(qd.jit(names["f"])(*args))


@pytest.mark.full
def test_long_chains_of_an_index_are_walked_without_recursion() -> None:
    def f(h: Any, k: Any, v: Any) -> Any:
        for i in qd.range(8):
            a = k[i]
            for step in range(2000):
                a = (a * 3 + step) & 7
            h[a] = h[a] + v[i]
        return h

    assert told(qd.jit(f), np.ones(8, np.float32), np.arange(8), np.ones(8, np.float32)) == []
    assert len(told(qd.jit(f), np.ones(8, np.float32), np.zeros(8, int), np.ones(8, np.float32))) <= 1


def test_of_a_thousand_million_iterations_some_are_looked_at() -> None:
    def f(x: Any) -> Any:
        z = qd.copy(x)
        for i in qd.range(10**9):
            z[i % 7] = x[i % 8]
        return z

    assert len(told(lambda x: qd.jit(f).lower(x), np.ones(8, np.float32))) == 1


INDICES = (
    "k[0, i]", "k[1, i]", "(k[0, i] + 1) % n", "k[0, k[1, i]]", "i", "n - 1 - i", "(i + 1) % n", "i // 2", "i ^ 1",
    "(3 * i) % n", "jnp.where(i < 2, i, k[0, i])", "jnp.minimum(i, n - 2)",
)  # fmt: skip
STATEMENTS = (
    "h[{a}, j] = h[{a}, j] + v[i]", "h[{a}, j] *= v[i]", "h[{a}, 0] = h[{b}, 0]", "h[{a}, j] = h[j, {b}]",
    "h[i, {a}] = h[i, {a}] - v[i]", "h[{a}, i] = h[i, {a}]", "h[{a}, j] = h[{a}, j] + v[i]; h[{b}, j] -= v[i]",
    "h[{a}, {b}] = h[{a}, {b}] + v[i]",
)  # fmt: skip


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow if k % 10 else ()) for k in range(120)])
def test_the_interpreter_finds_a_race_where_one_is_told_and_no_lost_update_elsewhere(seed: int) -> None:
    draw = random.Random(seed)
    n = draw.choice((4, 6, 8))
    keys = np.array([draw.sample(range(n), n) for _ in range(2)])
    if draw.random() < 0.3:
        keys[:, -1] = keys[:, 0]
    statement = draw.choice(STATEMENTS).format(a=draw.choice(INDICES), b=draw.choice(INDICES))
    lines = ["def f(h, k, v):", f"  n = {n}", "  for i in qd.range(n):", "    for j in qd.range(2):"]
    names: dict[str, Any] = {"qd": qd, "jnp": jnp}
    exec("\n".join([*lines, *(f"      {one}" for one in statement.split("; ")), "  return h"]), names)
    args = np.ones((n, n), np.float32), keys, np.linspace(1, 2, n, dtype=np.float32)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.block_until_ready(qd.jit(names["f"])(*args))
    try:
        jax.block_until_ready(qd.jit(names["f"], options={"debug": True})(*args))
        races = False
    except qd.InterpreterError as error:
        races = "race" in str(error)
    assert races or not found
    assert found or not races or "v" not in statement  # moves to an index from data may store any of two


STORED = {
    "h[k[i]] = v[i]": True,
    "h[k[i]] = v[i] * w[k[i]]": True,
    "h[k[i]] = 2 * v[0]": False,
    "h[k[i]] = 2 * v[k[i]]": False,
    "h[i // 2] = jnp.sin(v[i // 2] * v[0])": False,
    "h[0] = v[0]": False,
    "h[k[i]] = v[1] * w[0]; h[k[i]] = v[0]": True,
    "h[k[i]] = 1.0": False,
    "h[i] = v[i]": False,
    "h[7 - i] = v[k[i]]": False,
    "h[k[i]] += v[i]": False,
}
"""Stores, and whether two iterations make one of them at the same element with other values, with equal `k`."""


@pytest.mark.full
@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow if k % 5 else ()) for k in range(60)])
def test_a_store_at_equal_indices_is_told_where_any_of_its_values_gets_the_gradient(seed: int) -> None:
    """Told where values differ, and nowhere else; not of values themselves, of which any may stay. Elsewhere reverse
    and forward mode agree."""
    draw = random.Random(seed)
    store, keys = draw.choice(list(STORED)), draw.choice((SAME, OTHERS))
    lines = ["def f(h, k, v, w):", "  for i in qd.range(8):", *(f"    {s}" for s in store.split("; ")), "  return h"]
    names: dict[str, Any] = {"qd": qd, "jnp": jnp}
    exec("\n".join(lines), names)
    f, h = qd.jit(names["f"]), np.zeros(8, np.float32)
    call: Callable[[Any], Any] = lambda v: f(h, keys, v, V)  # noqa: E731
    if draw.random() < 0.5:
        assert told(call, V) == []
    else:  # a `jax.jit` that was called before is not traced again: nobody sees its gradient
        call = lambda v: jax.jit(f)(h, keys, v, V)  # noqa: E731
    is_told = STORED[store] and keys is SAME
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qd.QdWarning)
        rows, columns = (d(qd.jit(names["f"]), 2)(h, keys, V, V) for d in (jax.jacrev, jax.jacfwd))
    assert is_told or np.array_equal(rows, columns), store
    assert [("serial=True" in fix) for fix in told(jax.grad(lambda v: call(v).sum()), V)] == [True] * is_told
    assert told(lambda v: jax.jvp(call, (v,), (v,))[1], V) == []
