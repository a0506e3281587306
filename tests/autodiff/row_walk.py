"""A recurrence along rows of a sparse structure, for tests of what derivatives keep of its loops."""

from typing import Any

import jax.numpy as jnp

import qdtrace as qd


def walk(start: Any, x: Any) -> Any:
    """Walks from `start[i]` to `start[i + 1]` for each row."""
    out = qd.empty(start.shape[0] - 1, x.dtype)
    for i in qd.range(start.shape[0] - 1):
        a = qd.local(x[0])
        for k in qd.range(start[i], start[i + 1]):
            a.value = jnp.sin(a.value) * x[k]
        out[i] = a.value
    return out
