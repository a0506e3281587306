"""`debug=True` through derivatives and batches: values, and errors that name the line of the user."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.autodiff.loops.policy import StorageChoice
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


@qd.jit
def counted(x, n):
    """A loop by a count and one by a condition."""
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.range(n[i]):
            v.value = jnp.sin(v.value)
        for _ in qd.while_(lambda: v.value > 0.1):  # noqa: B023 - traced at once
            v.value = v.value * v.value
        out[i] = v.value
    return out


@pytest.mark.full
@pytest.mark.cpu
def test_storage_says_how_often_loops_ran_in_the_interpreter():
    x = np.array([0.5, 0.9, 0.2])
    low = qd.jit(jax.grad(lambda x, n: counted(x, n).sum())).lower(x, np.array([1, 1, 1]))
    before = [choice.reason for choice in low.storage]
    assert [choice.ran for choice in low.storage] == [None, None]
    with qd.options(debug=True):
        counted(x, np.array([3, 0, 1]))
    assert [choice.ran for choice in low.storage] == [3, 5]
    with qd.options(debug=True):
        jax.grad(lambda x: counted(x, np.array([7, 4, 6])).sum())(x)
        counted(x, np.array([0, 0, 0]))
    assert [choice.ran for choice in low.storage] == [7, 5]
    said = [f"{reason}; with debug=True the loop ran {k} iterations at most, and all fit" for reason, k in
            zip(before, (7, 5), strict=True)]  # fmt: skip
    assert [choice.reason for choice in low.storage] == said


@pytest.mark.parametrize(
    ("ran", "steps", "said"),
    [
        (0, 1, "and all fit"),
        (32, 1, "and all fit"),
        (33, 1, "of which one state in 2 was kept"),
        (64, 1, "of which one state in 2 was kept"),
        (65, 1, "of which one state in 4 was kept"),
        (33, 8, "and all fit"),
        (257, 8, "of which one state in 16 was kept"),
    ],
)
def test_a_thinned_stack_says_what_a_run_dropped(ran, steps, said):
    choice = StorageChoice(None, "thinned", 137, 548, 5, steps, steps - 1)
    assert choice.after(ran).reason == f"thinned; with debug=True the loop ran {ran} iterations at most, {said}"
    assert choice.after(None) is choice


def test_storage_of_all_states_drops_none():
    choice = StorageChoice(None, "all", 64, 256)
    assert str(choice.after(9)) == "all; with debug=True the loop ran 9 iterations at most"
