"""Gradients of `qd.jit(sizes="any")`, taken directly: one program of adjoints for all lengths."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.lengths.programs import arguments, function_of
from tests.lengths.test_any_length import EXACT, FIRST, LENGTHS, added, met

pytestmark = pytest.mark.cpu


def halved(x: Any, h: Any) -> Any:
    total = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.while_(lambda v=v: v.value > 1):
            v.value = v.value * 0.5 + jnp.sin(v.value) * h
        total[()] += v.value
    return total


def close(got: Any, want: Any) -> None:
    """Sums that iterations add to are in any order: roundings of 24 bits, of a few thousand terms."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.shape, g.dtype, g.weak_type) == (w.shape, w.dtype, w.weak_type)
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 * float(jnp.abs(w).max(initial=0)))


@pytest.mark.full
def test_a_new_length_compiles_nothing() -> None:
    one, each = jax.value_and_grad(qd.jit(halved, sizes="any")), jax.value_and_grad(qd.jit(halved))
    met(one, *((jnp.linspace(0, 5, n), 0.25) for n in (5, 6, 8, 9)))
    for n in LENGTHS:
        x = jnp.linspace(0, 5, n)
        got, work = added(one, x, 0.25)
        assert (work.programs, work.compiled, work.linked) == (0, 0, 0)
        close(got, each(x, 0.25))


@pytest.mark.full
@pytest.mark.sample(6, full=3)
@pytest.mark.parametrize("seed", [k for k in range(13) if k != 5])  # of 5, code depends on the length
def test_random_functions(seed: int) -> None:
    f, rng = function_of(seed), np.random.default_rng(seed)
    one, each = qd.jit(f, sizes="any", options=EXACT), qd.jit(f, options=EXACT)
    moved = [(0, 2, 3), (0,), (2, 3), (3, 0)][seed % 4]

    def gradients(f: Any, *args: Any) -> Any:
        def of_some(*some: Any) -> Any:
            given = list(args)
            for k, x in zip(moved, some, strict=True):
                given[k] = x
            return f(*given)

        out, pull = jax.vjp(of_some, *[jnp.asarray(args[k]) for k in moved])
        cotangents = jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(y.dtype), out[:3])
        return out[:3], pull((*cotangents, np.zeros((), jax.dtypes.float0)))

    met(partial(gradients, one), *(arguments(n, m) for n, m in FIRST))
    shared = 0
    for n, m in zip(rng.choice(LENGTHS[:-1], 3), rng.choice(LENGTHS[:-1], 3), strict=True):
        got, work = added(gradients, one, *arguments(n, m))
        shared += work.programs == 0
        close(got, gradients(each, *arguments(n, m)))
    assert shared


def gathered(x: Any, y: Any, k: Any) -> Any:
    """Returns a result, an argument as it is, one that is not real, and the first once more."""
    out = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] += x[k[i]] * y[i] * x.shape[0]
    return {"out": out, "y": y, "k": k, "again": out}


def operands(n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(2, n)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(rng.integers(0, max(n, 1), n).astype(np.int32))


def loss(f: Any, x: Any, y: Any, k: Any) -> Any:
    found = f(x, y, k)
    return (found["out"] * jnp.cos(y)).sum() + (found["y"] ** 2).sum() + found["again"][-1:].sum()


def of_gathered(x: Any, y: Any, k: Any) -> Any:
    return {"out": x[k] * y * x.shape[0], "y": y, "again": x[k] * y * x.shape[0]}


SHARED = {
    "both": lambda f, x, y, k: jax.value_and_grad(partial(loss, f), (0, 1))(x, y, k),
    "same": lambda f, x, y, k: jax.grad(lambda x: loss(f, x, x, k))(x),
    "constants": lambda f, x, y, k: jax.grad(lambda z: (f(x, y, k)["out"] * z).sum())(x),
    "results that nobody uses": lambda f, x, y, k: jax.grad(lambda x: f(x, y, k)["again"].sum())(x),
}
COMPILED = {
    "jit": lambda f, x, y, k: jax.jit(jax.grad(partial(loss, f)))(x, y, k),
    "jacrev": lambda f, x, y, k: jax.jacrev(lambda x: f(x, y, k)["out"])(x),
    "hessian": lambda f, x, y, k: jax.hessian(lambda x: f(x, x, k)["out"].sum())(x),
    "grad of grad": lambda f, x, y, k: jax.grad(lambda y: jax.grad(partial(loss, f))(x, y, k).sum())(y),
    "vmap of grad": lambda f, x, y, k: jax.vmap(lambda s: jax.grad(partial(loss, f))(x * s, y, k))(jnp.arange(3.0)),
    "grad of vmap": lambda f, x, y, k: jax.grad(lambda x: jax.vmap(lambda s: loss(f, x * s, y, k))(x[:2]).sum())(x),
    "jvp": lambda f, x, y, k: jax.jvp(lambda x: f(x, y, k)["out"], (x,), (y,)),
    "linearize": lambda f, x, y, k: jax.linearize(lambda x: f(x, y, k)["out"], x)[1](y),
    "checkpoint": lambda f, x, y, k: jax.grad(jax.checkpoint(partial(loss, f)))(x, y, k),
    "jit of adjoints": lambda f, x, y, k: jax.jit(jax.vjp(lambda x: f(x, y, k)["out"], x)[1])(y),
    "grad of adjoints": lambda f, x, y, k: jax.grad(lambda c: jax.vjp(f, x, y, k)[1](like(f(x, y, k), c))[0].sum())(y),
}


def like(results: Any, cotangent: Any) -> Any:
    """Returns a cotangent for each real result."""
    return {k: np.zeros(v.shape, jax.dtypes.float0) if k == "k" else cotangent for k, v in results.items()}


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", [*SHARED, *COMPILED])
def test_transformations(name: str) -> None:
    around, f = {**SHARED, **COMPILED}[name], qd.jit(gathered, sizes="any")
    for n in (3, 4, 6, 7):
        got = around(f, *operands(n))
        close(got, around(of_gathered if "adjoints" not in name else qd.jit(gathered), *operands(n)))
    if name in SHARED:
        for n in (9, 17, 40):  # a product with 1 is another graph
            got, work = added(partial(around, f), *operands(n))
            assert work.programs == 0
            close(got, around(of_gathered, *operands(n)))


@pytest.mark.full
def test_results_that_nobody_uses_compile_nothing() -> None:
    """Not even JAX's zeros in place of their adjoints."""

    @partial(qd.jit, sizes="any")
    def f(x: Any, y: Any) -> Any:
        total = qd.zeros((), jnp.int32)
        for i in qd.range(x.shape[0]):
            y[i] = y[i] * x[i]
            x[i] = x[i] * x[i]
            total[()] += 1
        return x, y, total

    seconds: dict[str, float] = {}

    def note(event: str, duration_secs: float, **_: Any) -> None:
        seconds[event] = duration_secs

    def of(n: int) -> Any:
        x = jax.device_put(np.arange(n, dtype=np.float32))
        squares, pull = jax.vjp(lambda x: f(x, np.ones(n, np.float32))[0], x)
        _, pull_both = jax.vjp(lambda *args: f(*args)[1:], x, x)
        return squares, *pull(x), *pull_both((x, np.zeros((), jax.dtypes.float0)))

    for n in (3, 4, 6, 7):
        of(n)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        for n in (9, 17):
            x = np.arange(n, dtype=np.float32)
            np.testing.assert_array_equal(of(n), (x * x, 2 * x * x, x * x, x * x))
        assert not [e for e in seconds if "backend_compile" in e]
        jax.jit(lambda x: x + 3)(1.0)
        assert [e for e in seconds if "backend_compile" in e]
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.full
def test_no_elements() -> None:
    f = qd.jit(gathered, sizes="any")
    for n in (3, 4, 0, 6, 7, 0):
        close(jax.grad(partial(loss, f))(*operands(n)), jax.grad(partial(loss, of_gathered))(*operands(n)))


@pytest.mark.full
def test_an_index_outside_of_its_array() -> None:
    f = qd.jit(gathered, sizes="any")
    gradient = met(jax.grad(partial(loss, f)), *map(operands, (3, 4, 6, 7)))
    x, y, k = operands(9)
    with pytest.raises(qd.BoundsError, match=r"index 9 is out of bounds .* with shape \(9,\)"):
        gradient(x, y, k.at[4].set(9))
    close(gradient(x, y, k), jax.grad(partial(loss, of_gathered))(x, y, k))


@pytest.mark.full
def test_an_array_of_numpy_that_changes_before_adjoints_are_asked_for() -> None:
    f = qd.jit(gathered, sizes="any")

    def pull_of(x: Any, y: Any, k: Any) -> Any:
        return jax.vjp(lambda x: f(x, y, k)["out"], x)[1]

    for n in (3, 4, 6):
        x, y, k = operands(n)
        pull_of(x, np.asarray(y), k)
    x, y, k = operands(9)
    given = np.array(y)
    pull, work = added(pull_of, x, given, k)
    assert work.programs == 0
    given[:] = np.nan
    close(pull(y)[0], jax.vjp(lambda x: of_gathered(x, y, k)["out"], x)[1](y)[0])


@pytest.mark.full
def test_a_rule_for_reverse_mode_is_compiled_for_each_length() -> None:
    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return 2 * x

    twice.defvjp(lambda x: (2 * x, None), lambda _, c: (5 * c,))

    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            total[()] += twice(x[i])
        return total

    gradient = met(jax.grad(f), *((jnp.ones(n),) for n in (3, 4, 6)))
    with pytest.warns(qd.QdWarning, match="has a derivative rule for reverse mode"):
        close(gradient(jnp.ones(7)), 5 * jnp.ones(7))
    close(gradient(jnp.ones(8)), 5 * jnp.ones(8))
