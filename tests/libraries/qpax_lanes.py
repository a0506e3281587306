"""Qpax: quadratic programs by an interior-point method, each lane with its own number of iterations."""

import jax.numpy as jnp
import numpy as np
import qpax

from tests.libraries.lanes import Lanes, spread, uniform

QPAX = Lanes()
N = 4
Q = np.diag(np.linspace(1.0, 2.0, N)) + 0.1
BOX = np.concatenate([np.eye(N), -np.eye(N)])


@QPAX(uniform(N), spread(0.2, 1.0), rtol=1e-5, atol=1e-6, single=1e-2)
def solution(q, bound):
    h = bound * jnp.ones(2 * N)
    return qpax.solve_qp_primal(jnp.asarray(Q), q, jnp.ones((1, N)), jnp.ones(1), jnp.asarray(BOX), h)


@QPAX(uniform(N), spread(0.2, 1.0), rtol=1e-5, atol=1e-6, single=1e-2)
def without_equations(q, bound):
    h = bound * jnp.ones(2 * N)
    return qpax.solve_qp_primal(jnp.asarray(Q), q, jnp.zeros((0, N)), jnp.zeros(0), jnp.asarray(BOX), h)
