"""`debug=True` for arrays of a processor and of a GPU: each fault is an error with the user's line, what is right is
computed, and a failure leaves nothing behind."""

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.compose import debug
from tests.gpu.faults import FAULTS, FUEL, NANS, RACES, Fault, X, mixed, passing


def _summed(f: Callable[..., Any]) -> Callable[..., Any]:
    def total(x: Any, k: Any) -> Any:
        out = f(x, k)
        return out.sum(), out

    return total


EAGER = {
    "call": lambda f: f,
    "vmap": lambda f: lambda x, k: jax.vmap(f, (None, 0))(x, k[None])[0],
    "value of grad": lambda f: lambda x, k: jax.value_and_grad(_summed(f), has_aux=True)(x, k)[0][1],
    "vmap of grad": lambda f: (
        lambda x, k: jax.vmap(jax.value_and_grad(_summed(f), has_aux=True), (None, 0))(x, k[None])[0][1][0]
    ),
}
"""What is called at once, each with the results of the function."""
COMPILED = {
    "jit": jax.jit,
    "jit of vmap of grad": lambda f: jax.jit(EAGER["vmap of grad"](f)),
    "loop": lambda f: jax.jit(lambda x, k: jax.lax.fori_loop(0, 2, lambda _, y: f(x + 0 * y, k), x)),
    "branch": lambda f: jax.jit(lambda x, k: jax.lax.cond(x.sum() > 0, f, lambda x, k: x, x, k)),
}


@pytest.fixture(autouse=True)
def _little_fuel(monkeypatch) -> None:
    monkeypatch.setattr(debug, "_FUEL", FUEL)


def drawn(names: Iterable[str]) -> list[Any]:
    """Faults in functions of these names. Where one element gets sums and maxima, derivatives are refused."""
    return [
        pytest.param(fault, name, id=f"{fault.function.__name__}{fault.k}-{name}")
        for fault, name in itertools.product(FAULTS, names)
        if fault.function is not mixed or "grad" not in name
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("fault", "around"), drawn(EAGER))
def test_a_call_raises_the_fault_itself(put, fault: Fault, around: str) -> None:
    """In between, values are right; the arrays are where those of the arguments are."""
    run = EAGER[around](fault.program)
    x, right, wrong = put((X, np.array(fault.right, np.int32), np.array(fault.k, np.int32)))
    for _ in range(2):
        out = run(x, right)
        np.testing.assert_allclose(out, fault.want(X, np.array(fault.right)), rtol=1e-6)
        assert out.devices() == x.devices()
        with pytest.raises(fault.kind) as raised:
            run(x, wrong)
        assert type(raised.value) is fault.kind
        assert re.match(fault.said, str(raised.value))
        assert fault.is_in(str(raised.value))
    jax.effects_barrier()  # nothing is left behind


@pytest.mark.sample(2)
@pytest.mark.parametrize(("fault", "around"), drawn(COMPILED))
def test_under_jit_the_error_of_jax_has_its_text(put, fault: Fault, around: str) -> None:
    """Raised by the call or, where that does not wait, by `qd.block_until_ready`: then as what it is."""
    run = COMPILED[around](fault.program)
    x, right, wrong = put((X, np.array(fault.right, np.int32), np.array(fault.k, np.int32)))
    want = fault.want(X, np.array(fault.right))
    for _ in range(2):
        np.testing.assert_allclose(run(x, right), want, rtol=1e-6)
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError, fault.kind)) as raised:
            qd.block_until_ready(run(x, wrong))
        assert fault.is_in(str(raised.value))
    np.testing.assert_allclose(run(x, right), want, rtol=1e-6)


def test_races_name_both_iterations(put) -> None:
    (fault,) = (f for f in RACES if f.function is passing)
    with pytest.raises(qd.InterpreterError) as raised:
        fault.program(*put((X, np.array(fault.k, np.int32))))
    first, second = raised.value.notes
    assert first == f"iteration 0 reads it at {fault.at}"
    assert second == f"iteration 1 stores to it at {fault.at}"


def test_a_derivative_makes_nan(put) -> None:
    """The root has an infinite slope at 0, which is multiplied by 0: in the derivative alone."""

    def norm(x: Any) -> Any:
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = jnp.sqrt(x[i] * x[i])
        return out

    slope = jax.grad(lambda x: qd.jit(norm, options=dict(NANS))(x).sum())
    np.testing.assert_array_equal(slope(put(np.float32([2, -3]))), [1, -1])
    for run in (slope, jax.jit(slope)):  # JAX calls what it is, not `norm`
        with pytest.raises((jax.errors.JaxRuntimeError, qd.InterpreterError), match="makes NaN of") as raised:
            qd.block_until_ready(run(put(np.float32([2, 0]))))
        assert f"{__file__}:{norm.__code__.co_firstlineno + 3} in " in str(raised.value)


@pytest.mark.full
def test_gradients(put, monkeypatch) -> None:
    """Of a loop that ends by itself, with its stack, and of a sum."""
    monkeypatch.setattr(debug, "_FUEL", 10**6)

    @qd.jit(options={"debug": True})
    def halved(x):
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            v = qd.local(x[i])
            for _ in qd.while_(lambda: v.value > 0.6):  # noqa: B023
                v.value = v.value * v.value * 0.2
            total[()] += v.value
        return total[()]

    def by_jax(x):
        for _ in range(6):
            x = jnp.where(x > 0.6, x * x * 0.2, x)
        return x.sum()

    want = np.asarray(jax.grad(by_jax)(X))
    np.testing.assert_allclose(jax.grad(halved)(put(X)), want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(halved))(put(X)), want, rtol=1e-5)
    batch = put(np.stack([X, X[::-1]]))
    np.testing.assert_allclose(jax.vmap(jax.grad(halved))(batch), np.stack([want, want[::-1]]), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(halved, (put(X),), (put(X),))[1], want @ X, rtol=1e-5)
