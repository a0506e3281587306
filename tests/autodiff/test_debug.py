"""`debug=True` through derivatives and batches: values, and errors that name the line of the user."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import BoundsError, CheckError, InterpreterError

DEBUG = {"debug": True}
X = np.linspace(0.1, 1.0, 4)
Y = np.cos(X)


@qd.jit(options=DEBUG)
def ours(x, y):
    """Two tasks, a loop that ends by itself, an accumulation."""
    n = x.shape[0]
    a = qd.empty(x.shape, x.dtype)
    for i in qd.range(n):
        a[i] = jnp.sin(x[i]) * x[(i + 1) % n]
    total = qd.zeros((), x.dtype)
    for i in qd.range(n):
        s = qd.local(a[(i + 1) % n])
        for _ in qd.while_(lambda s=s: s.value > 0.1):
            s.value = s.value * 0.5 * y[i]
        total[()] += s.value * y[i]
    return total[()]


def theirs(x, y):
    s = jnp.roll(jnp.sin(x) * jnp.roll(x, -1), -1)
    for _ in range(6):
        s = jnp.where(s > 0.1, s * 0.5 * y, s)
    return (s * y).sum()


VALUES = {
    "value": lambda f: f(X, Y),
    "grad": lambda f: jax.grad(f, (0, 1))(X, Y),
    "jit of value_and_grad": lambda f: jax.jit(jax.value_and_grad(f, (0, 1)))(X, Y),
    "jvp": lambda f: jax.jvp(f, (X, Y), (Y, X)),
    "linearize": lambda f: jax.linearize(f, X, Y)[1](Y, X),
    "vmap": lambda f: jax.vmap(f, (0, None))(np.stack([X, Y]), Y),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1)), (0, None))(np.stack([X, Y]), Y),
    "grad of vmap": lambda f: jax.grad(lambda x, y: jax.vmap(f, (0, None))(jnp.stack([x, y]), y).sum(), (0, 1))(X, Y),
    "hessian": lambda f: jax.hessian(f)(X, Y),
    "reverse of reverse": lambda f: jax.jacrev(jax.jacrev(f))(X, Y),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    got, want = VALUES[name](ours), jax.jit(lambda: VALUES[name](theirs))()
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


@qd.jit(options=DEBUG)
def beyond(x):
    out = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] = x[i] ** 2 * x[i + 1]
    return out


@qd.jit(options=DEBUG)
def racing(x):
    out = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i * 0] = x[i] ** 2
    return out


@qd.jit(options=DEBUG)
def unset(x):
    half = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0] - 1):
        half[i] = x[i] ** 2
    out = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] = half[x.shape[0] - 1 - i] ** 2
    return out


@qd.jit(options=DEBUG)
def unwanted(x):
    out = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        qd.check(x[i] < 0.5, "x is too large")
        out[i] = x[i] ** 2
    return out


FAULTS = {
    beyond: (BoundsError, "index 4 is out of bounds for axis 0 of `x`", "x[i + 1]"),
    racing: (InterpreterError, "race on", "out[i * 0]"),
    unset: (InterpreterError, "is read before anything is stored there", "half[x.shape[0] - 1 - i]"),
    unwanted: (CheckError, "x is too large", "qd.check"),
}

RUNS = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: jax.jvp(f, (X,), (Y,)),
    "linearize": lambda f: jax.linearize(f, X),
    "vmap": lambda f: jax.vmap(f)(np.stack([X, X])),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))(np.stack([X, X])),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())(np.stack([X, X])),
    "hessian": lambda f: jax.hessian(lambda x: f(x).sum())(X),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("faulty", FAULTS, ids=lambda f: f.__name__)
def test_errors_name_the_line(faulty, name):
    kind, said, code = FAULTS[faulty]
    lines, start = inspect.getsourcelines(faulty.__wrapped__)
    line = start + next(k for k, text in enumerate(lines) if code in text)
    with pytest.raises(kind) as caught:
        RUNS[name](faulty)
    assert said in str(caught.value)
    assert f"{__file__}:{line} in {faulty.__name__}" in str(caught.value)


def test_under_jit_the_text_of_the_error_is_in_that_of_jax():
    with pytest.raises(jax.errors.JaxRuntimeError, match="index 4 is out of bounds for axis 0 of `x`"):
        jax.block_until_ready(jax.jit(jax.grad(lambda x: beyond(x).sum()))(X))


@pytest.mark.cpu
@pytest.mark.parametrize("name", RUNS)
def test_errors_of_compiled_code_are_those_of_the_call(name):
    """However long the run takes: the call waits for what may fail, also where arrays stand behind tracers."""

    @qd.jit
    def long(x):
        out = qd.zeros((1_000_000,), x.dtype)
        for i in qd.range(1_000_000):
            out[i] = jnp.sin(x[i % 4 + i // 999_999])
        return out[-x.shape[0] :]

    with pytest.raises(BoundsError, match="index 4 is out of bounds for axis 0 of `x`"):
        RUNS[name](long)
