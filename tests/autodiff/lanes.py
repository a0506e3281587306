"""Functions of arrays of which each element is computed by itself."""

import inspect

import jax.numpy as jnp

import qdtrace as qd


def each(body):
    """Returns the function of arrays whose result has `body(i, x, *others)` at `i`, in the shape and dtype of `x`."""

    def of_all(x, *others):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = body(i, x, *others)
        return out

    of_all.__name__ = body.__name__
    of_all.__signature__ = inspect.Signature([*inspect.signature(body).parameters.values()][1:])
    return qd.jit(of_all)


def advance(a, k, x):
    """Returns the next state: nonlinear in the state, and it depends on the iteration."""
    return a + 0.05 * jnp.sin(a * (1 + k % 3)) - 0.02 * a * x
