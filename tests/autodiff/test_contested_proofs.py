"""Which stores other iterations may make, too: proofs, against the elements that iterations reach in NumPy."""

import random
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.autodiff.atomics import contested_stores
from qdtrace.ir.parser import parse_program

APART = (
    "h[i] = v", "h[15 - i] = v", "h[2 * i] = v; h[2 * i + 1] = v", "h[i] = v; h[i + 16] = v", "g[i // 4, i % 4] = v",
    "h[i ^ 3] = v", "g[i, 1] = v; g[i, 0] = v", "h[(i + 5) % 16] = v",
    "g[(i + 15) % 16, 0] = v; g[(i + 1) % 16, 1] = v", "h[i + 1] = v; if_(i == 0): h[0] = v; if_(i == 15): h[17] = v",
    "if_(i % 2 > 0): h[i // 2] = v",
    "h[3 * i + m[0] % 3] = v", "for j in qd.range(4): g[i, k[j] % 4] = v",
)  # fmt: skip
MEETING = (
    "h[k[i]] = v", "h[i // 2] = v", "h[0] = v", "h[i] = v; h[i + 1] = v", "for j in qd.range(4): g[k[j], 0] = v",
    "h[(i + 5) % 15] = v", "h[(i + 1) % 16] = v; h[i] = v", "if_(i > 1): h[0] = v", "h[jnp.minimum(i, 9)] = v",
)  # fmt: skip


def function(n: int, statements: list[str]) -> Any:
    """Returns the function that runs statements in a loop of `n` iterations."""
    lines = ["def f(x, k, m):", "  h, g, p = (qd.zeros(s, x.dtype) for s in (64, (16, 4), (40, 40)))"]
    lines += [f"  for i in qd.range({n}):", "    v = jnp.sin(x[i])"]
    lines += [f"    {s.replace('if_', 'with qd.when')}" for s in statements]
    names: dict[str, Any] = {"qd": qd, "jnp": jnp}
    exec("\n".join([*lines, "  return h, g, p"]), names)
    return names["f"]


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:a race")
@pytest.mark.parametrize("store", [*APART, *MEETING])
def test_only_stores_that_may_meet_are_exchanged(store: str) -> None:
    f = qd.jit(function(16, store.split("; ")))
    gradient = qd.jit(jax.grad(lambda *args: sum((y**2).sum() for y in f(*args))))
    low = gradient.lower(np.ones(16), np.arange(16), np.ones(1, np.int32))
    assert ("exchange" in str(low.graph())) == (store in MEETING)


INDICES = (
    "(i + {a}) % {n}", "(i * {a}) % {n}", "jnp.minimum(i, {a})", "i // {a}", "i % {a}", "{n} - 1 - i", "i + {a}", "{a}",
    "jnp.where(i == {a}, 0, i + 1)", "i ^ {a}", "jnp.maximum(i - {a}, 0)", "{a} * i",
)  # fmt: skip
CONDITIONS = ("i >= 0", "i > 1", "i % 2 == 0", "k[i] > 0", "i == 3")


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow if k >= 20 else ()) for k in range(1000)])
def test_stores_that_meet_are_never_taken_for_apart(seed: int) -> None:
    draw = random.Random(seed)
    n, stores = draw.randint(4, 17), list[tuple[str, str, str]]()
    index = lambda: draw.choice(INDICES).format(n=draw.choice((n, n, n + 1, n - 1)), a=draw.randint(1, n))  # noqa: E731
    for _ in range(draw.randint(1, 2)):
        stores.append((index(), index(), draw.choice(CONDITIONS)))
    made = function(n, [f"if_({c}): p[({a}) % 40, ({b}) % 40] = v" for a, b, c in stores])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qd.QdWarning)
        program = parse_program(qd.jit(made).lower(np.ones(n), np.arange(n), np.ones(1)).graph("joined"))
    found = {e for task in program.tasks for e in contested_stores(task, (*program.params, *program.buffers))}
    owner: dict[Any, int] = {}
    meets = False
    for i in range(n):
        known = {"i": np.int64(i), "jnp": np, "k": np.arange(n)}
        places = {(int(eval(a, known)) % 40, int(eval(b, known)) % 40) for a, b, c in stores if eval(c, known)}
        meets |= not places.isdisjoint(owner)
        owner |= dict.fromkeys(places, i)
    assert found or not meets, stores
