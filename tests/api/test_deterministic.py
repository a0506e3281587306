"""`deterministic=True`: sums of floats have the same bits in every run and on any number of threads."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

SIZE, ELEMENTS = 1 << 18, 80_000
"""Iterations that are worth several threads, and elements of f32 that a chunk has no room for."""
STATEMENTS = {
    "h[k[i]] += v[i]": "copies for each of at most 8 pieces",
    "h[k[i]] += v[i]; g[k[i] // 2] -= v[i] ** 2": "copies for each of at most 8 pieces",
    "h[k[i]] += v[i]; g[k[i]] += v[i] * h0[i % 9]; total[0] += v[i]": "copies for each of at most 8 pieces",
    "h[k[i]] += v[i]; h.at[k[i] // 2].max(v[i])": "in order on one thread",
    "h[k[i]] += v[i] * qd.atomic_add(total, 0, v[i])": "in order on one thread",
    "if_(v[i] > 0): h[k[i]] += v[i]": "copies for each of at most 8 pieces",
    "for j in qd.range(2): h[k[i] ^ j] += v[i] * j": "copies for each of at most 8 pieces",
}
"""Statements of a loop, and what is told of the launch."""


def summing(statements: str) -> Any:
    """Returns the function that runs statements in a loop over keys and values."""
    lines = ["def f(k, v):", "  h0, total = qd.copy(v[:9]), qd.zeros(1, v.dtype)"]
    lines += ["  h, g = qd.zeros(m, v.dtype), qd.zeros(m, v.dtype)", "  for i in qd.range(k.shape[0]):"]
    lines += [f"    {s.replace('if_', 'with qd.when')}" for s in statements.split("; ")]
    names: dict[str, Any] = {"qd": qd, "m": ELEMENTS}
    exec("\n".join([*lines, "  return h, g, total"]), names)
    return names["f"]


def drawn(seed: int = 0) -> tuple[Any, Any]:
    """Returns keys, and values of many sizes."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=SIZE) * 10.0 ** rng.integers(-3, 3, SIZE)
    return rng.integers(0, ELEMENTS, SIZE).astype(np.int32), values.astype(np.float32)


def runs(function: Any, *args: Any, wrapped: Any = lambda f: f) -> list[Any]:
    """Returns the results of a function by several numbers of threads, several times."""
    found: list[Any] = []
    for threads in (1, 2, 3, None):
        f = wrapped(qd.jit(function, options={"deterministic": True, "num_threads": threads}))
        found += [jax.tree.map(np.asarray, f(*args)) for _ in range(2)]
    return found


def same_bits(found: list[Any]) -> None:
    for other in found[1:]:
        for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.sample(3)
@pytest.mark.parametrize("statements", STATEMENTS)
def test_sums_have_the_same_bits_on_any_number_of_threads(statements: str) -> None:
    k, v = drawn()
    f = summing(statements)
    same_bits(found := runs(f, k, v))
    for a, b in zip(found[0], qd.jit(f, options={"num_threads": 1})(k, v), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=np.abs(b).max() * 1e-6)  # roundings in another order
    (task,) = qd.jit(f, options={"deterministic": True}).lower(k, v, target="cpu").tasks
    assert STATEMENTS[statements] in task.reason


def test_values_are_those_of_numpy() -> None:
    k, v = drawn()
    want, sizes = np.zeros(ELEMENTS), np.zeros(ELEMENTS)
    np.add.at(want, k, v)
    np.add.at(sizes, k, np.abs(v))
    got = qd.jit(summing("h[k[i]] += v[i]"), options={"deterministic": True})(k, v)[0]
    assert (np.abs(got - want) <= 20 * np.finfo(np.float32).eps * sizes).all()  # of at most some 20 additions each


@pytest.mark.full
def test_gradients_and_lanes_have_the_same_bits() -> None:
    """The reverse of loads accumulates, and that of stores to common elements exchanges."""
    k, v = drawn()
    x = v[:ELEMENTS]

    def f(x: Any) -> Any:
        y, h = qd.zeros(SIZE, x.dtype), qd.zeros(ELEMENTS, x.dtype)
        for i in qd.range(SIZE):
            y[i] = jnp.sin(x[keys[i]]) * x[keys[i] // 3]
            h[keys[i] // 2] = x[keys[i] // 2] ** 2
        return y, h

    keys = jnp.asarray(k)
    of = lambda f: lambda x: jax.grad(lambda x: sum((y**3).sum() for y in f(x)))(x)  # noqa: E731
    same_bits(found := runs(f, x, wrapped=of))
    want = of(qd.jit(f, options={"num_threads": 1}))(x)
    np.testing.assert_allclose(found[0], want, rtol=1e-4, atol=np.abs(want).max() * 1e-6)
    same_bits(runs(summing("h[k[i]] += v[i]"), np.stack([k, k[::-1]]), np.stack([v, v]), wrapped=jax.vmap))


def test_sums_of_integers_stay_as_they_are() -> None:
    def f(k: Any) -> Any:
        h = qd.zeros(ELEMENTS * 2, jnp.int32)
        for i in qd.range(k.shape[0]):
            h[k[i]] += 1
        return h

    k = drawn()[0]
    f = qd.jit(f)
    with qd.options(deterministic=True):
        assert f.lower(k, target="cpu").tasks[-1].reason.endswith("copies a thread or locks")


def test_on_a_gpu_sums_are_exact_and_other_updates_are_refused() -> None:
    def f(k: Any, v: Any) -> Any:
        total = qd.zeros((), v.dtype)
        for i in qd.range(k.shape[0]):
            total[()] += v[i]
        return total

    k, v = drawn()
    fixed = {"deterministic": True}
    reason = qd.jit(f, options=fixed).lower(k, v, target="sm_90").tasks[-1].reason
    assert "1 sums in registers" in reason
    assert "deterministic=True" in reason
    low = qd.jit(summing("h[k[i]] += v[i]"), options=fixed).lower(k, v, target="sm_90")
    assert [t.name for t in low.tasks] == ["f.0", "f.0_exact"]
    assert "atomicrmw add" in low.as_text("llvm")
    assert "fadd" in low.as_text("llvm")
    low = qd.jit(summing("h.at[k[i]].max(v[i])"), options=fixed).lower(k, v, target="sm_90")
    with pytest.raises(qd.QdError, match=r"(?s)deterministic=True needs .* atomic updates of .* on a GPU.*help:"):
        low.as_text("llvm")
    with pytest.raises(qd.QdError, match=r"deterministic=True needs code by LLVM"):
        _ = qd.jit(f, options={**fixed, "codegen": "triton"}).lower(k, v, target="sm_90").tasks


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow) for k in range(30)])
def test_random_sums(seed: int) -> None:
    draw = random.Random(seed)
    simple, blocks = ([s for s in STATEMENTS if (":" in s) == has_block] for has_block in (False, True))
    made = "; ".join([*draw.sample(simple, 2), *draw.sample(blocks, draw.randint(0, 1))])
    k, v = drawn(seed)
    same_bits(runs(summing(made), k, v))
