"""`jax.grad` of `qd.vmap(f)` against `jax.vmap(jax.grad(f))`, for functions of JAX at their edges.

Functions are differentiated together: each has operands of its own, so the gradient of the sum has that of each.
"""

from itertools import zip_longest

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.autodiff.functions import ELEMENTARY, OF_VECTORS, WITH_WHILE


def rows_of(points):
    """One row of arguments for each lane; a function with fewer of them has its first again."""
    lanes = zip_longest(*points)
    return [np.array([p[0] if x is None else x for x, p in zip(lane, points, strict=True)], float) for lane in lanes]


def groups(table, size):
    names = list(table)
    return [names[k : k + size] for k in range(0, len(names), size)]


def check(table, names, gradient=jax.grad, limit=1e-9):
    functions, points = zip(*[table[n] for n in names], strict=True)
    lanes = np.stack(rows_of([list(map(np.asarray, p)) for p in points]))
    total = lambda xs: sum(f(xs[k]) for k, f in enumerate(functions))  # noqa: E731
    got = jax.grad(lambda xs: qd.vmap(total)(xs).sum())(lanes)
    want = jax.jit(jax.vmap(gradient(total)))(lanes)
    for k, name in enumerate(names):
        # a cast to f32 makes of the last bit of f64 the last bit of f32
        rtol = 2e-7 if name == "a cast down and up" else limit
        np.testing.assert_allclose(got[:, k], want[:, k], rtol=rtol, atol=1e-11, err_msg=f"{name} at {points[k]}")


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("names", groups(ELEMENTARY, 25), ids=lambda names: names[0])
@pytest.mark.full
def test_of_a_number(names):
    check(ELEMENTARY, names)


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("names", groups(OF_VECTORS, 10), ids=lambda names: names[0])
@pytest.mark.full
def test_of_a_vector(names):
    check(OF_VECTORS, names)


@pytest.mark.parametrize("names", groups(WITH_WHILE, 4), ids=lambda names: names[0])
@pytest.mark.full
def test_loops_of_any_length(names):
    """Reverse mode where JAX has forward mode alone."""
    check(WITH_WHILE, names, jax.jacfwd)
