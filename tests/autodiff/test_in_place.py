"""Gradients of programs that change arrays in place and read them again are those of differences, or are refused."""

from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.autodiff import rows, tape
from qdtrace.errors import GradientError
from tests.autodiff.factors import FACTORS
from tests.autodiff.solves import SOLVES
from tests.autodiff.tables import TABLES

PROGRAMS = SOLVES | FACTORS | TABLES
NEEDS_A_BOUND = {
    "forward substitution, columns in place",
    "back substitution, columns in place",
    "Gauss-Seidel, five sweeps in a task",
    "Gauss-Seidel, sweeps by an argument",
    "Gauss-Seidel, until convergence in a task",
    "successive over-relaxation",
    "red and black, sweeps by an argument",
    "Cholesky factors of sizes",
    "LU factor, size by an argument",
    "stencil in place",
    "two arrays, sweeps by an argument",
    "power iteration in a task",
    "constraints in order",
    "insertion sort",
}
"""Programs whose gradient is refused where the array is large."""
UNKNOWN = {"ragged rows, three sweeps"}
"""Programs whose gradient is refused whatever the size: an iteration has a part of an array that no index names."""


def check(f, floats, rest):
    """Compares values and gradients of two batch elements, one of them outside of `jit` too."""
    rng = np.random.default_rng(1)

    def loss(*args):
        return sum((jnp.cos(jnp.arange(y.size)).reshape(y.shape) * y).sum() for y in jax.tree.leaves(f(*args, *rest)))

    number = range(len(floats))
    slopes = jax.grad(loss, tuple(number))(*floats)
    pairs = [np.stack([a, a * rng.uniform(0.99, 1.01, np.shape(a))]) for a in floats]
    values, batched = jax.jit(jax.vmap(jax.value_and_grad(loss, tuple(number))))(*pairs)
    plain = jax.jit(loss)
    for k in range(2):
        args, got = [p[k] for p in pairs], [g[k] for g in batched]
        np.testing.assert_allclose(values[k], plain(*args), rtol=1e-12)
        along = [rng.normal(size=np.shape(a)) for a in args]
        ends = [plain(*(a + h * d for a, d in zip(args, along, strict=True))) for h in (1e-5, -1e-5)]
        want = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(
            sum(np.vdot(g, d) for g, d in zip(got, along, strict=True)), want, rtol=1e-6, atol=1e-7
        )
        if k == 0:
            for a, b in zip(slopes, got, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def refused(f, floats, rest):
    total = lambda *args: sum(y.sum() for y in jax.tree.leaves(f(*args, *rest)))  # noqa: E731
    with pytest.raises(GradientError) as caught:
        jax.grad(total, tuple(range(len(floats))))(*floats)
    *_, advice = str(caught.value).splitlines()
    assert advice.startswith("help: give each such loop its most iterations (`most=64`)")


@pytest.mark.cpu
@pytest.mark.sample(16, full=5)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.full
def test_gradients(name):
    (refused if name in UNKNOWN else check)(*PROGRAMS[name])


@pytest.mark.cpu
@pytest.mark.sample(full=3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.full
def test_gradients_where_tapes_and_rows_are_too_long(name, monkeypatch):
    """What large arrays do, with small ones."""
    monkeypatch.setattr(tape, "LONG_TAPE", -1)
    monkeypatch.setattr(rows, "ROW_BYTES", 0)
    f, floats, rest = PROGRAMS[name]
    code = f.__wrapped__
    other = FunctionType(code.__code__, code.__globals__, "long", code.__defaults__, code.__closure__)
    # another function, of which nothing is derived before
    (refused if name in UNKNOWN | NEEDS_A_BOUND else check)(qd.jit(other), floats, rest)
