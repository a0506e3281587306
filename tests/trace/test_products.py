"""The work of products and factorisations of a task, from which on arrays of 65 to 256 elements are memory, and of
elements, which are from 96 elements on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.trace.products import UNKNOWN_TRIPS, matrix_work

A, V = np.eye(10, dtype=np.float32), np.ones(10, np.float32)


@pytest.mark.parametrize(
    ("f", "work"),
    [
        pytest.param(lambda a, v: jnp.tanh(a) * v, 0, id="no product"),
        pytest.param(lambda a, v: a @ v, 100, id="one product"),
        pytest.param(lambda a, v: v @ v + a[0], 0, id="a product of small arrays"),
        pytest.param(lambda a, v: lax.fori_loop(0, 7, lambda _, v: a @ v, v), 700, id="in a loop"),
        pytest.param(
            lambda a, v: lax.while_loop(lambda v: v[0] > 0, lambda v: a @ v, v), 100 * UNKNOWN_TRIPS, id="in a while"
        ),
        pytest.param(lambda a, v: lax.cond(v[0] > 0, lambda: a @ v, lambda: v), 100, id="in a branch"),
        pytest.param(lambda a, v: jax.jit(jnp.matmul)(a, v), 100, id="in a call"),
        pytest.param(lambda a, v: jnp.linalg.cholesky(a), 1000, id="a factorisation"),
    ],
)
def test_matrix_work(f, work):
    assert matrix_work(jax.make_jaxpr(f)(A, V).eqns, 64) == work


def steps(f, p):
    return lax.fori_loop(0, 20, lambda _, p: f @ p @ f.T * 0.5 + jnp.eye(f.shape[0]), p)


def test_the_program_does_not_grow_with_its_matrices():
    """On a CPU. A graphics processor has registers for 256 scalars, and asks for code without loops."""
    if jax.default_backend() != "cpu":
        pytest.skip("a machine that asks for scalars")

    def lines(n):
        p = np.broadcast_to(np.eye(n, dtype=np.float32), (5, n, n))
        return qd.jit(qd.vmap(steps)).lower(p, p).graph().count("\n")

    with qd.options(array_mapping="lanes"):
        small, large = lines(9), lines(15)
    assert large < 1.2 * small < 300


@pytest.mark.parametrize("n", [9, 12, 16])
def test_elementwise_work_on_boards_is_in_loops(n):
    """Chains over arrays of 65 to 95 elements keep registers; a product of one row changes nothing. From 96 on loops
    take 0.5 to 1 of the time that scalars take, and compile in a quarter."""
    f = lambda a, v: jnp.sum(jnp.exp(-a * a) * v, axis=0) + a[0] @ v  # noqa: E731
    a, v = (np.ones(shape, np.float32) for shape in ((5, n, n), (5, n)))
    graph = qd.jit(lambda a, v: qd.vmap(f)(a, v)).lower(a, v).graph()
    if n == 9 or jax.default_backend() != "cpu":
        assert "cell" not in graph
    else:
        assert "cell" in graph
        assert graph.count("\n") < 250  # 1,000 as scalars
