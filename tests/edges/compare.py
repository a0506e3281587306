"""Compares the results of a random program as lanes, and in the body of a loop, with those under `jax.vmap`."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.errors import QdError

from .programs import Program, gradient
from .steps import is_key

WAYS = ("lanes", "gradient", "inside", "body")
RTOL = {"float16": 2e-2, "bfloat16": 5e-2, "float32": 2e-4, "complex64": 2e-4, "float64": 1e-6, "complex128": 1e-6}
"""Some numbers are computed in f32 whatever the dtype of the result is."""


def in_body(program: Program) -> Callable[..., Any]:
    """The program in the body of a loop of `qd.jit`, which loads its arguments and stores its results."""

    @qd.jit
    def run(*leaves: Any) -> Any:
        axes = jax.tree.leaves(program.in_axes, is_leaf=lambda a: a is None)
        axes = [axes[1], *axes[3:]]  # None and the tuple have no leaf
        lanes = leaves[-1].shape[0]
        slots = jax.eval_shape(jax.vmap(program, program.in_axes), *program.arguments)
        outs = [qd.empty(s.shape, s.dtype) for s in jax.tree.leaves(slots)]
        for i in qd.range(lanes):
            values = [x[...] if a is None else x[i] if a == 0 else x[..., i] for x, a in zip(leaves, axes, strict=True)]
            tree = jax.tree.structure(program.arguments)
            for out, y in zip(outs, jax.tree.leaves(program(*jax.tree.unflatten(tree, values))), strict=True):
                out[i] = y
        return jax.tree.unflatten(jax.tree.structure(slots), outs)

    return run


def has_keys(program: Program) -> bool:
    """True where typed keys come from outside or leave: buffers hold numbers."""
    slots = jax.eval_shape(jax.vmap(program, program.in_axes), *program.arguments)
    return any(map(is_key, jax.tree.leaves((program.arguments, slots))))


def ways_of(program: Program) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]]:
    """What JAX computes, what this package computes, and operands of both, by name."""
    reference = jax.vmap(program, program.in_axes)
    lanes = qd.vmap(program, program.in_axes)
    by_jax, moved = gradient(reference, program.arguments, forward=program.forward)
    by_lanes, _ = gradient(lanes, program.arguments, forward=program.forward)
    found = {"lanes": (reference, lanes, program.arguments), "gradient": (by_jax, by_lanes, moved)}

    def inside(*arguments: Any) -> Any:
        f, own = gradient(program, arguments, forward=program.forward)
        return f(*own)

    found["inside"] = (jax.vmap(inside, program.in_axes), qd.vmap(inside, program.in_axes), program.arguments)
    leaves, tree = jax.tree.flatten(program.arguments)
    if not has_keys(program):
        found["body"] = (lambda *xs: reference(*jax.tree.unflatten(tree, xs)), in_body(program), leaves)
    return found


def finding(program: Program, way: str) -> tuple[str, str]:
    """What holds: equal, wrong, crash, refused, none where JAX has none; and what there is to say of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways = ways_of(program)
        if way not in ways:
            return "none", "keys"
        by_jax, ours, operands = ways[way]
        try:
            want = plain(jax.jit(by_jax)(*operands))
        except Exception as error:  # whatever JAX raises
            return "none", first_line(error)
        try:
            got = plain(jax.jit(ours)(*operands))
        except QdError as error:
            return "refused", first_line(error)
        except Exception as error:  # what these tests look for
            return "crash", first_line(error)
    why = different(got, want)
    return ("wrong", why) if why else ("equal", "")


def first_line(error: Exception) -> str:
    """The kind of an error and how it begins."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


def plain(tree: Any) -> Any:
    """Leaves as NumPy arrays; keys as words."""
    words = lambda x: np.asarray(jax.random.key_data(x) if is_key(jnp.asarray(x)) else x)  # noqa: E731
    return jax.tree.map(words, tree)


def different(got: Any, want: Any) -> str:
    """Where results differ from JAX's; nothing where they agree."""
    if jax.tree.structure(got) != jax.tree.structure(want):
        return f"{jax.tree.structure(got)} instead of {jax.tree.structure(want)}"
    for k, (g, w) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"result {k}: {g.dtype}{g.shape} instead of {w.dtype}{w.shape}"
        rtol = RTOL.get(str(w.dtype), 0.0)
        size = np.max(np.abs(w[np.isfinite(w)]), initial=1.0) if rtol else 0.0
        bad = ~np.isclose(g, w, rtol=rtol, atol=rtol * size, equal_nan=True) if rtol else g != w
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return f"result {k} {w.dtype}{w.shape} at {at}: {g[at]} instead of {w[at]}"
    return ""
