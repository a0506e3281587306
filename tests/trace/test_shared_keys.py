"""Warnings of random numbers that all iterations draw with one key: told where they are one, and nowhere else."""

import random
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

DRAWS = (
    "jax.random.uniform({})", "jax.random.normal({})", "jax.random.randint({}, (), 0, 1 << 30)",
    "jax.random.exponential({})", "jax.random.normal({}, (3,))[1]", "jax.random.uniform({}, minval=x[i], maxval=2.0)",
    "noise({}, x[i])", "jax.random.bits({})",
)  # fmt: skip
KEYS = {
    "key": True,
    "jax.random.key(3)": True,
    "jax.random.PRNGKey(3)": True,
    "jax.random.fold_in(key, 7)": True,
    "jax.random.split(key)[0]": True,
    "jax.random.fold_in(key, i)": False,
    "jax.random.fold_in(key, k[i])": False,
    "jax.random.fold_in(jax.random.fold_in(key, 1), 8 - i)": False,
    "jax.random.key(k[i])": False,
    "keys[i]": False,
}
"""Keys, and whether all iterations have one."""


def run(body: list[str]) -> tuple[Any, list[str]]:
    """Returns the results of a loop over 8 elements with that body, and what it was told."""
    lines = ["def f(x, k, keys, key):", "  y = qd.zeros(8)", "  for i in qd.range(8):"]
    lines += [*("    " + line for line in body), "  return y"]
    names: dict[str, Any] = {"qd": qd, "jax": jax, "noise": jax.jit(lambda key, v: v * 0 + jax.random.normal(key))}
    exec("\n".join(lines), names)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        args = np.zeros(8, np.float32), np.arange(8), jax.random.split(jax.random.key(5), 8), jax.random.key(0)
        y = qd.jit(names["f"])(*args)
    return np.asarray(y), [str(w.message) for w in found if w.category is qd.QdWarning]


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow if k % 6 else ()) for k in range(80)])
def test_it_is_told_where_all_numbers_are_one(seed: int) -> None:
    draw = random.Random(seed)
    key = draw.choice(list(KEYS))
    number = draw.choice(DRAWS).format(key)
    body = draw.choice(
        (
            [f"y[i] = {number}"],
            ["with qd.when(i >= 0):", f"  y[i] = {number}"],
            ["s = qd.local(0.0)", "for j in qd.range(2):", f"  s += {number.replace('i)', 'j + 2 * i)')}", "y[i] = s"],
        )
    )
    y, told = run(body)
    assert (len(np.unique(y)) == 1) == KEYS[key], body
    assert [text.startswith("each iteration of this qd.range draws") for text in told] == [True] * KEYS[key], body


@pytest.mark.full
def test_it_is_told_of_each_loop_alone() -> None:
    inner = ["own = jax.random.fold_in(key, i)", "s = qd.local(0.0)", "for j in qd.range(4):"]
    assert len(run([*inner, "  s += jax.random.uniform(own)", "y[i] = s"])[1]) == 1
    assert run([*inner, "  s += jax.random.uniform(jax.random.fold_in(own, j))", "y[i] = s"])[1] == []
    body = ["c = qd.local(0.0)", "for _ in qd.while_(lambda: c.value < 2):", "  c += jax.random.uniform(key)"]
    (told,) = run(body)[1]
    assert "qd.while_" in told


@pytest.mark.parametrize(
    "body", ["y[i] = jax.random.uniform(key, (8,))[i]", "y[i] = i * jax.random.split(key, 8)[i].size"]
)  # fmt: skip
def test_an_element_of_an_array_of_numbers_is_silent(body: str) -> None:
    assert run([body])[1] == []


@pytest.mark.full
def test_lanes_have_one_number_as_under_vmap() -> None:
    key = jax.random.key(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = qd.vmap(lambda v: v + jax.random.normal(key))(jnp.zeros(8))
    np.testing.assert_allclose(y, np.full(8, jax.random.normal(key)), rtol=1e-6)
