"""Warnings of updates that two iterations lose, `h[k] = h[k] + v`: where it happens, and nowhere else."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

if TYPE_CHECKING:
    from collections.abc import Callable

SAME = np.array([0, 1, 1, 2, 3, 3, 3, 0])
OTHERS = np.array([3, 1, 0, 2, 7, 6, 5, 4])
V = np.linspace(0.5, -0.4, 8, dtype=np.float32)


def told(function: Callable[..., Any], *args: Any) -> list[str]:
    """Returns what a call is told, without the rule."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.block_until_ready(function(*args))
    texts = [str(w.message) for w in found]
    assert all(text.startswith("a race where two iterations have one index: both") for text in texts)
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
    assert told(jax.jit(qd.jit(updating(update))), h, OTHERS, V) == []  # nobody sees the indices
    many = np.zeros(3, np.float32)
    assert len(told(jax.jit(qd.jit(updating(update))), many, SAME % 3, V)) == 1  # but there are more than elements


def test_the_first_call_with_the_elements_decides_for_each_trace() -> None:
    f = qd.jit(updating("h[k] = h[k] + v"))
    h = np.zeros(8, np.float32)
    jax.jit(f)(h, SAME, V)
    assert told(f, h, OTHERS, V) == told(f, h, SAME, V) == []  # it is told once, as all warnings of a trace are
    assert len(told(jax.grad(lambda v: f(h[:7], SAME[:7], v).sum()), V[:7])) == 1


def test_an_update_of_many_by_another_function_runs_in_order() -> None:
    f = qd.jit(updating("h[k] = 0.9 * h[k] + v"))
    assert told(f, np.zeros(8, np.float32), SAME, V) == []
    (fix,) = told(f, np.zeros(4, np.float32), SAME, V)
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


def drawn(draw: random.Random) -> tuple[str, bool, int, np.ndarray]:
    """Returns an index pair, whether all its races are told, the size of its axes, and what it is computed from."""
    n = draw.choice((2, 5, 8))
    size = n + draw.choice((0, 0, 3, 3, -1))
    keys = np.array([draw.sample(range(n), n) for _ in range(3)]) % size
    if draw.random() < 0.5:
        keys[:, -1] = keys[:, 0]
    row = draw.randrange(3)
    first = draw.choice((f"k[{row}, i]", f"k[{row}, i]", f"(k[{row}, i] + 1) % {size}"))
    second = draw.choice(("0", "j", "j", "i % 2", "k[2, i]", f"{size - 1} - i % {size}"))
    return f"{first}, {second}", "%" not in first and second in "0j", size, keys


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow if k % 4 else ()) for k in range(48)])
def test_the_interpreter_finds_a_race_where_one_is_told(seed: int) -> None:
    index, all_told, size, keys = drawn(random.Random(seed))
    update = f"h[{index}] = h[{index}] + v[i]"
    lines = [
        "def f(h, k, v):",
        "  for i in qd.range(k.shape[1]):",
        "    for j in qd.range(2):",
        f"      {update}",
        "  return h",
    ]
    names: dict[str, Any] = {"qd": qd}
    exec("\n".join(lines), names)
    args = np.zeros((size, size + 2), np.float32), keys, np.ones(keys.shape[1], np.float32)
    found = told(qd.jit(names["f"]), *args)
    try:
        jax.block_until_ready(qd.jit(names["f"], options={"debug": True})(*args))
        races = False
    except qd.InterpreterError as error:
        races = "race" in str(error)
    assert races or not found
    assert found or not (races and all_told)
