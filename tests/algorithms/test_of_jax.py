"""Sorts of many keys and long running totals of JAX between loops are tasks on a CPU, with its results, derivatives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.compose import by_xla

LENGTH = 4173
DRAW = np.random.default_rng(0)
SPECIAL = [np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0, 1.0]
SORTS: dict[str, Callable[[Any], Any]] = {
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "descending": lambda x: jnp.argsort(x, descending=True),
    "columns": lambda x: jnp.sort(jnp.stack([x, x[::-1]], 1), axis=0),
    "rows": lambda x: jnp.argsort(jnp.concatenate([x, x])[:8000].reshape(80, 100), axis=1),
    "pairs": lambda x: lax.sort((x, jnp.arange(x.size), x[::-1]), num_keys=1),
    "in a function": jax.jit(lambda x: x[jnp.argsort(x)] + jnp.flip(jnp.sort(x))),
}
TOTALS: dict[str, Callable[[Any], Any]] = {
    "cumsum": jnp.cumsum,
    "reverse": lambda x: lax.cumsum(x, reverse=True),
    "rows": lambda x: jnp.cumsum(jnp.stack([x, x[::-1]]), axis=1),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_xla, "_LONG", {"sort": ("dimension", 64, LENGTH), "cumsum": ("axis", LENGTH, LENGTH)})


def between_loops(f: Callable[[Any], Any]) -> Any:
    @qd.jit(pure=False)
    def program(x: Any) -> Any:
        moved = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            moved[i] = x[x.shape[0] - 1 - i]
        return jax.tree.map(qd.copy, f(moved[...]))

    return program


def names(f: Any, x: Any) -> set[str]:
    return {name for name in ("qd_sorted", "qd_totals") if name in str(jax.make_jaxpr(f)(x))}


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16", "bool"])
@pytest.mark.parametrize("name", SORTS)
def test_sorts_have_the_bits_of_jax(name: str, dtype: str) -> None:
    x = (DRAW.normal(size=LENGTH) * 100).astype(dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x[: len(SPECIAL)] = SPECIAL
    program = between_loops(SORTS[name])
    assert names(program, x) == {"qd_sorted"}
    for got, want in zip(*(jax.tree.leaves(f) for f in (program(x), SORTS[name](jnp.asarray(x[::-1])))), strict=True):
        assert got.dtype == want.dtype
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float64", "int64"])
@pytest.mark.parametrize("name", TOTALS)
def test_running_totals(name: str, dtype: str) -> None:
    with jax.enable_x64(dtype.endswith("64")):
        x = (DRAW.normal(size=LENGTH) * 100).astype(dtype)
        program = between_loops(TOTALS[name])
        assert names(program, x) == {"qd_totals"}
        got, want = program(x), TOTALS[name](jnp.asarray(x[::-1]))
        assert got.dtype == want.dtype
        # some two roots of the length of roundings, of a sum of magnitudes
        bound = 2 * LENGTH**0.5 * np.finfo(dtype).eps * np.abs(x).sum() if x.dtype.kind == "f" else 0
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


@pytest.mark.full
def test_totals_of_what_is_no_number_and_of_zeros() -> None:
    program = between_loops(jnp.cumsum)
    x = np.full(LENGTH, -0.0, np.float32)
    assert np.signbit(program(x)).all()
    x[100], x[3000] = np.inf, -np.inf
    got = program(x[::-1].copy())
    assert not got[:100].any()
    assert (got[100:3000] == np.inf).all()
    assert np.isnan(got[3000:]).all()


@pytest.mark.full
@pytest.mark.parametrize("name", ["sort", "pairs", "cumsum", "reverse"])
def test_derivatives_and_lanes_are_those_of_jax(name: str) -> None:
    f = {**SORTS, **TOTALS}[name]
    x, weights = (DRAW.normal(size=(2, LENGTH)).astype(np.float32) for _ in range(2))
    program = between_loops(f)

    def loss(f: Any) -> Any:
        return lambda x: sum((leaf * jnp.sin(leaf) * weights[0]).sum() for leaf in jax.tree.leaves(f(x)))

    by_us, by_jax = loss(program), loss(lambda x: f(x[::-1]))
    assert names(jax.grad(by_us), x[0])
    want = jax.jit(jax.vmap(jax.grad(by_jax)))(x)
    for derivative in (jax.vmap(jax.grad(by_us)), jax.grad(lambda x: jax.vmap(by_us)(x).sum())):
        np.testing.assert_allclose(jax.jit(derivative)(x), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_what_is_short_or_has_no_task_is_left_to_xla() -> None:
    x = jnp.zeros(LENGTH)
    for f in (
        lambda x: jnp.sort(x[1:]),
        lambda x: jnp.sort(jnp.zeros((200, 63)) + x[0], axis=1),
        lambda x: jnp.cumsum(x[1:]),
        lambda x: jnp.cumsum(x.astype(jnp.float16)),
        lambda x: jnp.cumsum(x[:, None] + jnp.zeros(2), axis=0),
        lambda x: jnp.lexsort((x, x)),
        lambda x: jnp.sort(x * 1j),
    ):
        assert not names(between_loops(f), x)


def test_gpus_run_operations_of_jax() -> None:
    traced = jax.jit(qd.jit(lambda x: (jnp.sort(x[...]), jnp.cumsum(x[...])), pure=False)).trace(jnp.zeros(LENGTH))
    texts = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu")}
    assert [name for name, text in texts.items() if "custom_call" in text] == ["cpu"]
    assert "stablehlo.sort" in texts["cuda"]
    assert "bitcast_convert" not in texts["cuda"]  # floats are compared as JAX compares them
