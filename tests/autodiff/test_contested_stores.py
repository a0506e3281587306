"""Stores to elements that other iterations store to, too: the element's gradient goes to one of them.

Random programs store values that follow from the element, so any iteration's value is the one that stays; or any
values, in one thread, where the last one stays. They are compared with the loop in order (`serial=True`) and with
forward mode.
"""

import random
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

SIZE = 40  # iterations: more than a step of lanes, and a rest
ELEMENTS = 12
INDICES = ("k[i]", "i // 4", "i % 5", "0", "jnp.minimum(i, 7)", "k[i ^ 1]", "(i * i) % 11", "p[i] % 12")
VALUES = ("{w}[c] * s[1]", "s[0] * s[2]", "jnp.sin({w}[c]) * s[2] + {w}[11 - c]", "jnp.where({w}[c] > 0, s[0], {w}[c])")
OWN = ("x[i] * s[1]", "jnp.sin(x[i]) * {w}[c]")
STORES = (
    "h[c] = {value}",
    "if_(m[c] > 0): h[c] = {value}",
    "if_(m[i] > 0): h[c] = {value}",
    "for j in qd.range(2): h[jnp.minimum(c + j, 11)] = {value_at}",
    "h[c] = {value}; y[i] = h[c] * x[i]",
    "t = {value}; h[c] = t; g[c, i % 2] = t * s[3]",
    "h[c] = {value}; q[p[i]] = x[i] * s[3]",
)


def drawn(seed: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """Returns a function whose iterations store to common elements, the same in order, and its arguments.

    With odd seeds iterations store values of their own.
    """
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    values, stores = (VALUES + OWN, [s for s in STORES if "for" not in s]) if seed % 2 else (VALUES, STORES)
    lines = ["def f(w, x, s, h, k, p, m):", "  h, g = qd.copy(h), qd.zeros((12, 2), w.dtype)",
             "  y, q = qd.zeros(n, w.dtype), qd.zeros(n, w.dtype)"]  # fmt: skip
    for number in range(draw.randint(1, 2)):
        # of two loops, the second reads what the first one stored
        memory = "h0" if number and draw.random() < 0.5 else "w"
        lines += ["  h0 = qd.copy(h)", "  for i in loop(n):", f"    c = {draw.choice(INDICES)}"]
        value = draw.choice(values).format(w=memory)
        at = f"{memory}[jnp.minimum(c + j, 11)] * s[1]"
        store = draw.choice(stores).format(value=value, value_at=at).replace("if_(", "with qd.when(")
        lines += [f"    {each}" for each in store.split("; ")]
    lines += ["  return h, g, y, q"]
    made: list[Any] = []
    for loop in (qd.range, lambda n: qd.range(n, serial=True)):
        names: dict[str, Any] = {"qd": qd, "jnp": jnp, "n": SIZE, "loop": loop}
        exec("\n".join(lines), names)
        made.append(names["f"])
    floats = (rng.normal(size=size) for size in (ELEMENTS, SIZE, 4, ELEMENTS))
    integers = rng.integers(0, ELEMENTS, SIZE), rng.permutation(SIZE), rng.integers(0, 2, SIZE)
    return (*made, (*floats, *(a.astype(np.int32) for a in integers)))


def derivatives(function: Any, args: tuple[Any, ...], mode: Any, threads: int | None = None) -> list[Any]:
    """Returns the derivatives of all results by all floats, as matrices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qd.QdWarning)
        of = mode(qd.jit(function, options={"num_threads": threads} if threads else {}), (0, 1, 2, 3))
        return [np.asarray(d) for d in jax.tree.leaves(of(*args))]


def seeds() -> list[Any]:
    """In programs of odd numbers values differ and the last iteration stays: they need one thread, so a CPU."""
    marks = lambda k: (*[pytest.mark.slow][: k >= 6], *[pytest.mark.cpu][: k % 2])  # noqa: E731
    return [pytest.param(k, marks=marks(k)) for k in range(300)]


@pytest.mark.sample(full=100)
@pytest.mark.full
@pytest.mark.parametrize("seed", seeds())
def test_gradients_of_stores_to_common_elements(seed: int) -> None:
    many, one, args = drawn(seed)
    threads = 1 if seed % 2 else None
    rows, columns = (derivatives(many, args, mode, threads) for mode in (jax.jacrev, jax.jacfwd))
    for a, b, c in zip(rows, derivatives(one, args, jax.jacrev), columns, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-12)


@pytest.mark.full
def test_one_of_many_threads_takes_the_gradient() -> None:
    n, rng = 1 << 17, np.random.default_rng(0)

    @qd.jit
    def f(v: Any, k: Any, s: Any) -> Any:
        h, flag = qd.zeros(n, v.dtype), qd.zeros(1, v.dtype)
        for i in qd.range(n):
            h[k[i]] = v[k[i] // 2]
            flag[0] = 2 * s
        return h, flag

    k, v, c = rng.integers(0, 64, n).astype(np.int32), rng.normal(size=n // 2), np.zeros(n)
    c[:64] = np.arange(64)  # integers have exact sums in any order
    gradient = jax.grad(lambda v, s: (f(v, k, s)[0] * c).sum() + 3 * f(v, k, s)[1].sum(), (0, 1))
    for _ in range(3):
        dv, ds = gradient(v, 1.0)
        np.testing.assert_array_equal(dv[:32], c[0:64:2] + c[1:64:2])
        assert not dv[32:].any()
        assert ds == 6


def test_a_counter_beside_stores_to_common_elements() -> None:
    """Old values of the user's atomics that no derivative needs are no obstacle."""

    @qd.jit
    def f(x: Any, k: Any) -> Any:
        h, count, order = qd.zeros(4, x.dtype), qd.zeros(1, jnp.int32), qd.zeros(x.shape, jnp.int32)
        for i in qd.range(x.shape[0]):
            order[i] = qd.atomic_add(count, 0, 1)
            h[k[i]] = x[k[i]] ** 2
        return h, order

    x, k = np.arange(1.0, 9.0), np.array([0, 3, 0, 0, 1, 3, 3, 1])
    np.testing.assert_array_equal(jax.grad(lambda x: f(x, k)[0].sum())(x), [2, 4, 0, 8, 0, 0, 0, 0])
