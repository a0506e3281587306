"""Derivatives are refused, or not, whether indices are checked or not: what a check gives is the index."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError

ROW, P = np.array([1, 4, 4, 10, 25, 40], np.int32), np.array([4, 2, 0, 1, 3], np.int32)
LENGTH, Y = np.array([5, 4, 3, 2, 5], np.int32), np.linspace(0.1, 1.0, 40)
X = np.linspace(0.1, 1.0, 80).reshape(8, 10)

# places stored and loaded, of elements `j` of rows that lie one behind the other
IN_ROWS = {
    "before": lambda j: (j, j - 1),
    "itself": lambda j: (j, j),
    "both before": lambda j: (j - 1, j - 1),
    "two before": lambda j: (j, j - 2),
    "clamped": lambda j: (j, jnp.maximum(j - 2, 0)),
}
# and of row `i` of a matrix; `p` tells rows apart and no pass knows
IN_MATRIX = {
    "before": lambda i, k, p: ((i, k), (i, k - 1)),
    "before, next row": lambda i, k, p: ((i + 1, k), (i + 1, k - 1)),
    "before, row by data": lambda i, k, p: ((p[i], k), (p[i], k - 1)),
    "row above": lambda i, k, p: ((k, i), (k - 1, i)),
    "every other": lambda i, k, p: ((i, 2 * k - 2), (i, 2 * k - 4)),
    "around": lambda i, k, p: ((i, k % 8), (i, (k + 3) % 8)),
    "around, row by data": lambda i, k, p: ((p[i], k % 8), (p[i], (k + 3) % 8)),
    "by data": lambda i, k, p: ((i, p[k - 2]), (i, p[k - 2])),
}


def rows(places):
    @qd.jit
    def f(y):
        row = jnp.asarray(ROW)
        for i in qd.range(len(ROW) - 1):
            for j in qd.range(row[i] + 1, row[i + 1]):
                stored, loaded = places(j)
                y[stored] = jnp.sin(y[loaded])
        return y

    return lambda y: jnp.cos(f(y)).sum(), Y


def matrix(places):
    @qd.jit
    def f(x):
        p, n = jnp.asarray(P), jnp.asarray(LENGTH)
        for i in qd.range(len(P)):
            for k in qd.range(2, n[i]):
                stored, loaded = places(i, k, p)
                x[stored] = jnp.sin(x[loaded])
        return x

    return lambda x: jnp.cos(f(x)).sum(), X


def verdict(f, x, bounds):
    with qd.options(bounds=bounds):
        try:
            return np.asarray(jax.grad(f)(x))
        except GradientError as error:
            return error.rule


@pytest.mark.full
@pytest.mark.sample(2, full=3)
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("make", "places"),
    [
        *(pytest.param(rows, each, id=f"rows, {name}") for name, each in IN_ROWS.items()),
        *(pytest.param(matrix, each, id=f"matrix, {name}") for name, each in IN_MATRIX.items()),
    ],
)
def test_a_check_changes_no_verdict(make, places):
    f, x = make(places)
    checked, unchecked = (verdict(f, x, bounds) for bounds in ("raise", "unchecked"))
    if isinstance(checked, str) or isinstance(unchecked, str):
        assert checked == unchecked
    else:
        np.testing.assert_allclose(checked, unchecked, rtol=1e-12)


@pytest.mark.full
@pytest.mark.cpu
def test_gradients_of_a_recurrence_on_rows():
    f, y = rows(IN_ROWS["before"])
    qd.check_grads(f, (y,))


@pytest.mark.cpu
def test_an_index_in_front_of_the_first_element_is_an_error():
    @qd.jit
    def f(y, n):
        for i in qd.range(1):
            for j in qd.range(n[i], 5):
                y[j] = jnp.sin(y[j - 1])
        return y

    assert np.isfinite(f(Y, np.array([1], np.int32))).all()
    assert np.isfinite(f(Y, np.array([5], np.int32))).all()
    with pytest.raises(Exception, match=r"(?s)-1.*y\[j\] = jnp.sin"):
        qd.block_until_ready(f(Y, np.array([0], np.int32)))
