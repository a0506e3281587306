"""Functions of whole arrays of this package, as lanes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .table import B, F, I, Module, P

Q = Module("qdtrace.algorithms")
Q("sort argsort", F(7))
Q("sort argsort", I(7))
Q("sort argsort", B(7))
Q("sort argsort", I(7, low=0, high=8), bits=3)
Q("sort", I(5), F(5), {"x": F(5, 2), "i": I(5)})
Q("compact", B(6), F(6))
Q("compact", B(6), [F(6, 2), I(6)], 3)
Q("scan", jnp.add, I(6))
Q("scan", jnp.maximum, F(6))
Q("scan", lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (P(6), P(6)))
Q("reduce_by_key", I(6, low=0, high=3, dtype=np.int16), P(6))
Q("reduce_by_key", B(6), I(6, 2), jnp.maximum, 4)
Q.without("segments", "a task of its own, with checks: between loops, not in a lane")
Q.without("boxes", "sorts with checks: between loops; its searches, `near`, `closest`, `ray`, run in lanes")
Q.without("grid", "a task of its own sorts the points: between loops; its loop, `grid.near`, runs in lanes")
