"""Arrays without elements in lanes: results of every family of operations, indices into them, what is made of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

X = jnp.array([0.2, 0.7, 1.3])
NOWHERE = np.zeros(0, np.int32)
NOTHING = jnp.zeros((0, 3))
TRIPS = 4


def _is_infinite(x: Any) -> Any:
    return jnp.where(jnp.isinf(x), 1.0, 0.0).sum()


def _wide(z: Any) -> Any:
    return jnp.tile(z, (1, 20))  # more columns than an index of registers chooses from one by one


# Functions of an array of shape (0, 3), a traced index, three numbers and a number.
CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "dynamic_slice": lambda z, t, v, x: lax.dynamic_slice(_wide(z), (t, t), (0, 2)).sum(),
    "dynamic_index": lambda z, t, v, x: lax.dynamic_index_in_dim(_wide(z).T, t, 0).sum(),
    "row": lambda z, t, v, x: _wide(z).T[t].sum(),
    "rows": lambda z, t, v, x: jnp.take(_wide(z), jnp.array([t, 0]), axis=1).sum(),
    "slice of nothing": lambda z, t, v, x: lax.dynamic_slice_in_dim(v, t, 0).sum() + x,
    "gather": lambda z, t, v, x: v[NOWHERE].sum(),
    "set a column": lambda z, t, v, x: z.at[:, t].set(1.0).sum(),
    "set": lambda z, t, v, x: v.at[NOWHERE].set(z[:, 0]).sum(),
    "add": lambda z, t, v, x: v.at[NOWHERE].add(z[:, 0]).sum(),
    "max of updates": lambda z, t, v, x: v.at[NOWHERE].max(z[:, 0]).sum(),
    "update_slice": lambda z, t, v, x: lax.dynamic_update_slice(v, z[:, 0], (t,)).sum(),
    "update_rows": lambda z, t, v, x: lax.dynamic_update_slice(jnp.ones((4, 3)) * x, z, (t, 0)).sum(),
    "product": lambda z, t, v, x: (z.T @ z).sum() + x,
    "product with a vector": lambda z, t, v, x: (z @ v).sum(),
    "dot": lambda z, t, v, x: jnp.dot(z[:, 0], z[:, 1]),
    "sum": lambda z, t, v, x: z.sum(0).sum(),
    "prod": lambda z, t, v, x: z.prod(0).sum() * x,
    "max": lambda z, t, v, x: jnp.max(z, axis=0, initial=-1.0).sum(),
    "reduce_max": lambda z, t, v, x: _is_infinite(lax.reduce_max(z, (0,))),
    "any": lambda z, t, v, x: (z > 0).any(0).sum(),
    "logsumexp": lambda z, t, v, x: _is_infinite(jax.nn.logsumexp(z, 0)),
    "concatenate": lambda z, t, v, x: jnp.concatenate([z, v[None], z]).sum(),
    "pad": lambda z, t, v, x: lax.pad(z, x, ((1, 1, 0), (0, 0, 1))).sum(),
    "cumsum": lambda z, t, v, x: jnp.cumsum(z, 0).sum(),
    "sort": lambda z, t, v, x: lax.sort((z, z), num_keys=1)[1].sum(),
    "argmax": lambda z, t, v, x: jnp.argmax(z, 1).sum(),
    "top_k": lambda z, t, v, x: lax.top_k(v, 0)[0].sum(),
    "where": lambda z, t, v, x: jnp.where(z > 0, z, v).sum(),
    "clamp": lambda z, t, v, x: jnp.clip(z, 0, x).sum(),
    "scan of nothing": lambda z, t, v, x: lax.scan(lambda c, a: (c + a.sum() + x, a), x, z)[0],
    "scan that carries it": lambda z, t, v, x: lax.scan(lambda c, a: ((c[0] * 2, c[1] + a), c[0]), (z, x), v)[0][1],
    "loop that carries it": lambda z, t, v, x: lax.fori_loop(0, 3, lambda i, c: (c[0] + 1, c[1] + 1), (z, x))[1],
    "while": lambda z, t, v, x: lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * 2, c[1] + 1), (z, 0 * x))[1],
    "cond": lambda z, t, v, x: lax.cond(x > 0.5, lambda a: a + 1, lambda a: a * 2, z).sum() + x,
    "switch": lambda z, t, v, x: lax.switch(t % 2, [lambda a: a, lambda a: a + 1], z).sum(),
    "jit": lambda z, t, v, x: jax.jit(lambda a, i: a.T[i].sum() + lax.dynamic_slice(a, (i, i), (0, 1)).sum())(z, t) + x,
    "vmap": lambda z, t, v, x: jax.vmap(lambda a: a.sum() * x)(z).sum(),
    "reshape": lambda z, t, v, x: jnp.broadcast_to(z.reshape(3, 0, 1), (3, 0, 2)).transpose(2, 0, 1).sum(),
    "bitcast": lambda z, t, v, x: lax.bitcast_convert_type(z, jnp.int32).sum(),
    "complex": lambda z, t, v, x: jnp.abs((z + 1j) * v).sum() + ((z + 1j).sum(0) * x).real.sum(),
    "fft": lambda z, t, v, x: jnp.abs(jnp.fft.fft(z, axis=1)).sum(),
    "solve": lambda z, t, v, x: jnp.linalg.solve(jnp.eye(3) * (2 + x), z.T).sum(),
    "triangular solve": lambda z, t, v, x: jax.scipy.linalg.solve_triangular(jnp.eye(3) * (2 + x), z.T).sum(),
    "factorisations": lambda z, t, v, x: jnp.linalg.cholesky(z @ z.T).sum() + jnp.linalg.qr(z.T)[0].sum() + x,
    "eigenvalues": lambda z, t, v, x: jnp.linalg.eigh(z @ z.T)[0].sum() + x,
    "convolution": lambda z, t, v, x: lax.conv_general_dilated(z[None], jnp.ones((2, 0, 1)), (1,), "VALID").sum() + x,
    "window": lambda z, t, v, x: lax.reduce_window(z, 0.0, lax.add, (1, 2), (1, 1), "VALID").sum(),
    "random": lambda z, t, v, x: jax.random.uniform(jax.random.key(3), (0, 2)).sum() + x,
    "keys": lambda z, t, v, x: jax.random.key_data(jax.random.split(jax.random.key(3), 0)).sum() + x,
    "segments": lambda z, t, v, x: jax.ops.segment_sum(z[:, 0], NOWHERE, 3).sum() + x,
    "search": lambda z, t, v, x: jnp.searchsorted(z[:, 0], x) + jnp.searchsorted(v, z[:, 0]).sum() + x,
    "rule": lambda z, t, v, x: jax.nn.relu(z).sum() + jax.nn.softmax(z, 1).sum() + x,
    "checkpoint": lambda z, t, v, x: jax.checkpoint(jnp.sin)(z).sum() + x,
    "derivative": lambda z, t, v, x: jax.grad(lambda a: a.T[t].sum())(z).sum() + x,
}


def _in_loop(call: Any, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, TRIPS, lambda t, s: s + call(make(s), t, jnp.arange(3.0) * x, x), x)


WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "in a loop": lambda call: _in_loop(call, lambda s: jnp.zeros((0, 3)) * s),
    "captured": lambda call: _in_loop(call, lambda s: NOTHING),
    "of an array in memory": lambda call: _in_loop(call, lambda s: (jnp.ones((300, 3)) * s)[:0]),
    "inlined": lambda call: _in_loop(jax.jit(call), lambda s: jnp.zeros((0, 3)) * s),
}


@pytest.mark.full
@pytest.mark.sample(6, full=3)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_made_of_no_elements_is_that_of_jax(name: str) -> None:
    """In all ways; a call has the derivative of two of them, the next call of the others."""
    for k, make in enumerate(WAYS.values()):
        f = make(CALLS[name])
        want = jax.jit(jax.vmap(f))(X)
        got = qd.vmap(f)(X)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5)
        turn = (k + [*CALLS].index(name)) % 2 == 0
        if turn and name not in ("while", "derivative"):  # JAX has no reverse of the first
            slope, by_jax = (jax.jit(jax.grad(lambda x, m=m, f=f: m(f)(x).sum()))(X) for m in (qd.vmap, jax.vmap))
            np.testing.assert_allclose(slope, by_jax, rtol=1e-5)
