"""Names of other packages that somebody looks for in this one: what is written here."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from qdtrace.errors import TraceAttributeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALL = "no decorator is needed: a Python function is called like any other"
_MEMORY = "give it as an argument, or make it in the function: `qd.zeros(shape, dtype)`"
_THREADS = "the index of an iteration comes from its loop: `for i in qd.range(n):`"
_LANE = "loops run when the function is called, one thread an iteration: `for i in qd.range(n):` under qd.jit"
_JIT = "write `@qd.jit`"
_VALUES = "small vectors and matrices are arrays of jnp: `jnp.array([a, b])`"
_ORDER = "loops run one after another: what has to wait goes into a second `for i in qd.range(n):`"
_FULL = "write `qd.full(x.shape, v, x.dtype)`"
_TYPES = {
    f"{short}{bits}": f"write `jnp.{long}{bits}`"
    for short, long, least in (("f", "float", 16), ("i", "int", 8), ("u", "uint", 8))
    for bits in (8, 16, 32, 64)
    if bits >= least
}
_WORDS = {
    **_TYPES,
    "atomic_mul": "write `b.at[k].mul(v)`", "atomic_sub": "write `b[k] -= v`", "full_like": _FULL, "ones_like": _FULL,
    "program_id": _THREADS, "Field": _MEMORY,
    "Matrix": _VALUES, "Vector": _VALUES, "cast": "write `x.astype(dtype)`", "field": _MEMORY,
    "func": _CALL, "grouped": "write `for i, j in qd.ndrange(*x.shape):`", "init": "leave it out: JAX's device is used",
    "kernel": _JIT, "launch": _LANE, "max": "write `jnp.maximum(a, b)`", "min": "write `jnp.minimum(a, b)`",
    "ndarray": _MEMORY, "njit": _JIT, "prange": "write `qd.range(n)`",
    "print": 'write `jax.debug.print("{}", x)`', "randn": "write `jax.random.normal(jax.random.fold_in(key, i))`",
    "random": "write `jax.random.uniform(jax.random.fold_in(key, i))`", "select": "write `jnp.where(condition, a, b)`",
    "static": "leave it out: `for` and `if` of Python are static", "struct": "write `@qd.dataclass`",
    "sync": _ORDER, "sync_threads": _ORDER, "syncthreads": _ORDER, "template": "name it in static_argnames of qd.jit",
    "tid": _THREADS,
}  # fmt: skip


_NORM = "write `jnp.linalg.norm(v)`"
_UNIT = "write `v / jnp.linalg.norm(v)`"
_OF_VALUES = {
    **{name: f"components are numbered: `v[{k}]`" for names in ("xyzw", "rgba") for k, name in enumerate(names)},
    **dict.fromkeys(("length", "magnitude", "norm"), _NORM),
    **dict.fromkeys(("normalize", "normalized"), _UNIT),
    **dict.fromkeys(("length_sq", "norm_sqr"), "write `jnp.dot(v, v)`"),
    "cast": "write `v.astype(dtype)`", "cross": "write `jnp.cross(a, b)`", "determinant": "write `jnp.linalg.det(v)`",
    "inverse": "write `jnp.linalg.inv(v)`", "n": "write `v.shape[0]`", "m": "write `v.shape[1]`",
    "numpy": "leave it out: the value is an array of JAX", "outer_product": "write `jnp.outer(a, b)`",
    "value": "leave it out: what is loaded is a value",
}  # fmt: skip


def of_value(name: str) -> str:
    """Returns what is written in place of an attribute that arrays of JAX do not have; empty if it is not known."""
    home = next((home for home, module in (("jnp", jnp), ("jnp.linalg", jnp.linalg)) if hasattr(module, name)), "")
    return _OF_VALUES.get(name) or (f"write `{home}.{name}(v)`" if home else "")


def missing(name: str, names: Sequence[str]) -> TraceAttributeError:
    """Returns the error for a name that the package does not have; it has `names`."""
    near = difflib.get_close_matches(name, names, 1, cutoff=0.75)
    homes = ("jnp", jnp), ("jax.lax", jax.lax), ("jax", jax)
    home = next((home for home, module in homes if name.isidentifier() and hasattr(module, name)), "")
    if name in _WORDS:
        help = _WORDS[name]
    elif home:
        help = f"write `{home}.{name}`"
    else:
        help = f"did you mean `qd.{near[0]}`?" if near else "`dir(qd)` lists all names, docs/language.md explains them"
    return TraceAttributeError.here(f"module 'qdtrace' has no attribute {name!r}", help=help)
