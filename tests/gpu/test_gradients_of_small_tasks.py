"""Gradients of functions of many small loops: series of tasks in one launch, with buffers in memory of the block, sums,
loops that load ahead and loops of unknown length among them; against the same steps as array operations of JAX."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.gpu.fake import FakeDriver, Launched, fake_backend

SIZES = (1, 3, 31, 33, 40)
SOME = (0, 4)
MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 200)]
DEVICE = [pytest.param(seed, marks=pytest.mark.gpu) for seed in range(200, 230)]


class Places(NamedTuple):
    """Integers that loops look at."""

    gather: Any
    """Elements, some of them more than once."""
    ends: Any
    """Where the rows of a sparse matrix end; the first begins at 0."""
    column: Any
    """Of its elements."""
    trips: Any
    """How often a loop runs."""


Arrays = dict[str, Any]
STEPS: dict[str, tuple[Callable[..., None], Callable[..., Arrays]]] = {}


def step(theirs: Callable[..., Arrays]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a loop `ours(m, a, b, p)`, of buffers m and names a and b, and what it changes as array operations."""

    def register(ours: Callable[..., None]) -> Callable[..., None]:
        STEPS[ours.__name__] = ours, theirs
        return ours

    return register


@step(lambda m, a, b, p: {b: jnp.sin(m[a][p.gather]) + 0.5 * m[b]})
def gathered(m: Any, a: str, b: str, p: Any) -> None:
    for i in qd.range(m[a].shape[0]):
        m[b][i] = jnp.sin(m[a][p.gather[i]]) + 0.5 * m[b][i]


@step(lambda m, a, b, p: {b: m[b].at[p.gather].add(m[a] * m["few"][0])})
def scattered(m: Any, a: str, b: str, p: Any) -> None:
    for i in qd.range(m[a].shape[0]):
        m[b][p.gather[i]] += m[a][i] * m["few"][0]


@step(lambda m, a, b, p: {"few": jnp.tanh(m["few"]).at[jnp.arange(m[a].size) % 3].add(m[a] * jnp.cos(m[b]))})
def summed(m: Any, a: str, b: str, p: Any) -> None:
    for i in qd.range(3):
        m["few"][i] = jnp.tanh(m["few"][i])
    for i in qd.range(m[a].shape[0]):
        m["few"][i % 3] += m[a][i] * jnp.cos(m[b][i])


def of_rows(m: Arrays, a: str, b: str, p: Places) -> Arrays:
    rows = jnp.searchsorted(p.ends, jnp.arange(p.column.size), side="right")
    return {b: jnp.tanh(jnp.zeros_like(m[b]).at[rows].add(m["w"] * m[a][p.column]))}


@step(of_rows)
def rows(m: Any, a: str, b: str, p: Any) -> None:
    fresh = qd.empty(m[b].shape, m[b].dtype)
    for i in qd.range(m[a].shape[0]):
        total = qd.local(m["w"][0] * 0)
        for j in qd.range(jnp.where(i > 0, p.ends[jnp.maximum(i - 1, 0)], 0), p.ends[i]):
            total.value = total.value + m["w"][j] * m[a][p.column[j]]
        fresh[i] = jnp.tanh(total.value)
    m[b] = fresh


def of_iterations(m: Arrays, a: str, b: str, p: Places) -> Arrays:
    v = m[a]
    for k in range(12):
        v = jnp.where(k < p.trips, jnp.sin(v * m[b] + m["few"][1]), v)
    return {a: v}


@step(of_iterations)
def iterated(m: Any, a: str, b: str, p: Any) -> None:
    for i in qd.range(m[a].shape[0]):
        v, k = qd.local(m[a][i]), qd.local(0)
        for _ in qd.while_(lambda v=v, k=k, i=i: k.value < p.trips[i]):
            v.value = jnp.sin(v.value * m[b][i] + m["few"][1])
            k += 1
        m[a][i] = v.value


@step(lambda m, a, b, p: {a: m[b], b: m[a]})
def swapped(m: Any, a: str, b: str, p: Any) -> None:
    m[a], m[b] = m[b], m[a]


class Drawn(NamedTuple):
    """A function of floats, twice, and arguments."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    args: list[np.ndarray]


def drawn(seed: int) -> Drawn:
    """The function of a number: 6 to 12 steps, one of them of unknown length; of 3 arrays, it gives 2 and 3 sums."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    n = draw.choice(SIZES)
    ends = np.sort(rng.integers(0, 3 * n, n))
    names = draw.choices([name for name in STEPS if name != "iterated"], k=draw.randint(6, 12))
    names[draw.randrange(len(names))] = "iterated"
    chosen = [(name, *draw.sample("xyz", 2)) for name in names]
    places = Places(rng.integers(0, n, n), ends, rng.integers(0, n, max(1, ends[-1])), rng.integers(0, 12, n))

    @qd.jit
    def ours(x: Any, y: Any, w: Any, p: Places) -> Any:
        m = {"x": x, "y": y, "z": qd.zeros(n, x.dtype), "w": w, "few": qd.full(3, 0.5, x.dtype)}
        for name, a, b in chosen:
            STEPS[name][0](m, a, b, p)
        return m["x"], m["z"], m["few"]

    def theirs(x: Any, y: Any, w: Any, p: Places) -> Any:
        m = {"x": x, "y": y, "z": jnp.zeros_like(x), "w": w, "few": jnp.full(3, 0.5)}
        for name, a, b in chosen:
            m |= STEPS[name][1](m, a, b, p)
        return m["x"], m["z"], m["few"]

    args = [rng.normal(size=n), rng.normal(size=n), rng.normal(size=places.column.size)]
    return Drawn(*(lambda *floats, f=f: f(*floats, places) for f in (ours, theirs)), args)


@contextmanager
def on_a_gpu() -> Iterator[FakeDriver | None]:
    """Functions run on a fake device, where there is no other."""
    if jax.default_backend() == "gpu":
        yield None
        return
    with fake_backend() as (fake, driver), ExitStack() as stack:
        stack.enter_context(qd.options(block_dim=4, offline_cache=False))
        for module in ("call", "derivative"):
            stack.enter_context(mock.patch(f"qdtrace.compose.{module}.backend", return_value=fake))
        yield driver


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [*SOME, *MORE, *DEVICE])
def test_like_jax(seed: int) -> None:
    """Results, adjoints, and their derivative in a direction."""
    rng = np.random.default_rng(seed + 1)

    def derivatives(f: Callable[..., Any], floats: list[Any], adjoints: Any, direction: list[Any]) -> Any:
        def pulled(*floats: Any) -> Any:
            return jax.vjp(f, *floats)[1](adjoints)

        return f(*floats), jax.jvp(pulled, floats, direction)

    with jax.enable_x64(True):
        ours, theirs, floats = drawn(seed)
        direction = [rng.normal(size=v.shape) for v in floats]
        adjoints = tuple(jnp.asarray(rng.normal(size=n)) for n in (floats[0].size, floats[0].size, 3))
        want = jax.jit(derivatives, static_argnums=0)(theirs, floats, adjoints, direction)
        with on_a_gpu() as driver:
            got = jax.jit(derivatives, static_argnums=0)(ours, floats, adjoints, direction)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-9 * max(1, np.abs(w).max()))
    if driver is not None and seed in SOME:
        launched = [one for one in driver.asked if isinstance(one, Launched)]
        assert any(0 in one.arguments[:-4] for one in launched)  # buffers in memory of the block have no address
