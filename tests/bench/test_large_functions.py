"""The large functions of the benchmark at small sizes: what is timed must be right."""

import sys
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from benchmarks import large_functions
from benchmarks.large_functions import arguments, heavy, heavy_arrays, stages


@pytest.mark.full
def test_heavy_loops_agree_with_arrays() -> None:
    (x,) = arguments("heavy")
    given = x[:100]
    np.testing.assert_allclose(qd.jit(heavy(3))(given), jax.jit(heavy_arrays(3))(given), rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"mixed": True}, {"mixed": True, "edited": True}], ids=str)
def test_stages(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    a, b, w = (jnp.asarray(rng.uniform(-1, 1, size=shape), jnp.float32) for shape in ((20,), (20,), (20, 12)))
    got = qd.jit(stages(3, **settings))(a, b, w)
    for k in range(3):
        s = a if k % 2 == 0 else b
        v = s
        for m in range(12):
            wave = jnp.cos if settings.get("mixed") and k >> m & 1 else jnp.sin
            v = v * (1 + 0.01 * (k + m)) + wave(v + 0.1 * m)
            w = w.at[:, m].set(v)
            v = v + jnp.roll(s, -m)
        v = jnp.tanh(v) if settings.get("edited") and k == 1 else v
        a, b = (a, v) if k % 2 == 0 else (v, b)
    for one, other in zip(got, (a, b, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


class Matrix(np.ndarray):
    """A matrix of Quadrants."""

    def __new__(cls, rows: Any) -> Any:
        return np.asarray(rows).view(cls)

    def determinant(self) -> Any:
        return np.linalg.det(self)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["heavy", "stages"])
def test_the_source_for_quadrants_computes_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as Python, with NumPy for Quadrants."""
    same = lambda x: x  # noqa: E731
    of_numpy = {"sin": np.sin, "cos": np.cos, "exp": np.exp, "sqrt": np.sqrt}
    types = SimpleNamespace(ndarray=lambda: None)
    fake = SimpleNamespace(kernel=same, static=same, types=types, Matrix=Matrix, **of_numpy)
    monkeypatch.setitem(sys.modules, "quadrants", cast("Any", fake))
    module: dict[str, Any] = {}
    exec(large_functions._quadrants_source(kind, 2), module)
    a = np.linspace(0.1, 0.9, 20)
    given = (a, np.zeros((3, 20))) if kind == "heavy" else (a, np.zeros(20), np.zeros((20, 12)))
    with jax.enable_x64(True):
        want = large_functions.ARRAYS[kind](2)(*map(jnp.asarray, given if kind == "stages" else given[:1]))
    module["run"](*given)
    for one, other in zip(given if kind == "stages" else given[1:], jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_a_process_says_what_it_took() -> None:
    times = large_functions.first_call("stages", 2)
    assert 0 < times["rest"] < times["total"]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["heavy", "stages"])
def test_the_trace_of_jax_is_of_the_same_arithmetic(kind: str) -> None:
    given = arguments(kind)
    ours, of_jax = qd.jit(large_functions.FUNCTIONS[kind](2))(*given), jax.jit(large_functions.ARRAYS[kind](2))(*given)
    assert large_functions.first_trace(kind, 2, of_jax=True)["trace"] > 0
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(of_jax), strict=True):
        # determinants of entries above 1e13 overflow, to inf or NaN by the order of their terms, which is XLA's choice
        finite = np.isfinite(one) & np.isfinite(other)
        assert finite.mean() > 0.8
        np.testing.assert_allclose(one[finite], other[finite], rtol=1e-3, atol=1e-3)
