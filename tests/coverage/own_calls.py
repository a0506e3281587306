"""Functions of whole arrays of this package, as lanes."""

import jax.numpy as jnp
import numpy as np

from .table import B, F, I, Module, Operand, P

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
Q("segments", Operand(lambda _, number: np.sort(I(6, low=0, high=4).draw(_, number), axis=-1)), 4)
Q.without("append", "room for results of unknown length, between loops: its `push` runs in loops")
Q.without("boxes", "sorts with checks: between loops; its searches, `near`, `closest`, `ray`, run in lanes")
Q.without("grid", "a task of its own sorts the points: between loops; its loop, `grid.near`, runs in lanes")

PYTREE = "of the pytree, for JAX"
Module("qdtrace.Grid").without("near", "a loop, not a function: in loops and lanes")
Module("qdtrace.Grid").without("reached", "the cells that `near` walks: in loops and lanes")
Module("qdtrace.Boxes").without("near", "a loop, not a function: in loops and lanes")
Module("qdtrace.Boxes").without("closest ray", "searches of a tree that is made between loops: in loops and lanes")
Module("qdtrace.Boxes").without("refit", "a tree of boxes that have moved: between loops")
for holder in ("Grid", "Boxes"):
    Module(f"qdtrace.{holder}").without("tree_flatten tree_unflatten", PYTREE)
Module("qdtrace.Append").without("push", "into what `qd.append` makes between loops: in loops")
S = Module("qdtrace.sparse")
S.without("sparsity", "reads a pattern from a function, before anything is compiled")
S.without("sparse_hessian sparse_jacobian", "make functions whose loops are tasks: under jax.jit, jax.vmap, jax.grad")
Module("qdtrace.Sparsity").without("to_bcoo to_bcsr to_scipy", "formats of matrices for JAX and SciPy: around loops")
