"""The option `divergence`: what may be done about lanes that leave a loop at different times."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from benchmarks.peers.qdtrace_peer import ragged_rows
from lowering.llvm.target import Target
from lowering.simd.divergence.refill import LEAST_BITS
from qdtrace.errors import TraceTypeError, TraceValueError

N = 9000
X = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.0, N), jnp.float32)
TRIPS = jnp.asarray(np.minimum(np.random.default_rng(1).geometric(0.1, N), 60), jnp.int32)
OFFSETS = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(TRIPS)])
COLUMNS = jnp.asarray(np.random.default_rng(3).integers(0, N, int(OFFSETS[-1])), jnp.int32)
W = jnp.asarray(np.random.default_rng(2).normal(size=int(OFFSETS[-1])), jnp.float32)


def until_small(x: jax.Array, k: jax.Array) -> jax.Array:
    """A `while` on a value: trips are not known in front of it."""
    return lax.while_loop(lambda s: s > 0.01, lambda s: jnp.sin(s) * jnp.exp(-s) * jnp.cos(s / (1.0 + k)), x)


def nested(x: jax.Array, k: jax.Array) -> jax.Array:
    """A long `for` in a branch of such a `while`."""

    def visit(s: tuple[Any, Any]) -> tuple[Any, Any]:
        n, a = s
        return n - 1, lax.cond(n % 3 == 0, lambda a: lax.fori_loop(0, n % 7, settle, a), lambda a: a + 0.5, a)

    def settle(j: Any, b: Any) -> Any:
        return jnp.sin(b) * jnp.exp(-b) + jnp.cos(b * j)

    return lax.while_loop(lambda s: s[0] > 0, visit, (k, x))[1]


def rows(x: jax.Array, k: jax.Array) -> jax.Array:
    """Rows of a sparse matrix: spans that are neighbours."""
    del k
    return ragged_rows(OFFSETS, COLUMNS, W, x)


refills = pytest.mark.skipif(
    jax.default_backend() != "cpu" or Target.host().vector_bits < LEAST_BITS, reason="lanes are not refilled here"
)
FUNCTIONS: dict[str, Any] = {"while": qd.vmap(until_small), "nested": qd.vmap(nested), "rows": rows}
WORDS = {"refill": "refill", "ordering": "ordered", "spans": "apart", "flattening": "as one"}
MAY = {
    "auto": set(WORDS), "masks": set(), "refill": {"refill"}, "ordering": {"ordering"}, "spans": {"ordering", "spans"},
    "flattening": {"refill", "flattening"},
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_strategy_gives_the_same_values_and_is_the_only_one(name: str) -> None:
    f, found, reasons = FUNCTIONS[name], {}, {}
    for kind in MAY:
        made = qd.jit(lambda *a: f(*a), options={"divergence": kind, "fast_math": False})
        found[kind] = made(X, TRIPS)
        if jax.default_backend() == "cpu":
            reasons[kind] = " ".join(t.reason for t in made.lower(X, TRIPS).tasks)
    for kind, value in found.items():
        np.testing.assert_array_equal(value, found["masks"], err_msg=kind)
    for kind, reason in reasons.items():
        assert {k for k, word in WORDS.items() if word in reason} <= MAY[kind], (kind, reason)


@pytest.mark.parametrize(("name", "kind"), [("while", "refill"), ("rows", "ordering"), ("rows", "spans")])
@refills
def test_a_strategy_is_taken_where_it_pays(name: str, kind: str) -> None:
    made = qd.jit(lambda *a: FUNCTIONS[name](*a), options={"divergence": kind})
    (task,) = [t for t in made.lower(X, TRIPS).tasks if "lanes" in t.reason]
    assert WORDS[kind] in task.reason


@refills
def test_a_hint_of_the_loop_is_stronger() -> None:
    def f(x: jax.Array) -> jax.Array:
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0], refill=True):
            out[i] = until_small(x[i], TRIPS[i])
        return out

    assert "refill" in qd.jit(f, options={"divergence": "masks"}).lower(X).tasks[0].reason


def test_other_values_are_refused() -> None:
    with pytest.raises(TraceValueError, match="divergence"):
        qd.options(divergence="none")
    with pytest.raises(TraceTypeError, match="divergence"):
        qd.options(divergence=True)
