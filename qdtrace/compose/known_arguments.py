"""Finds what arguments hold while JAX traces a function around the call: `jax.jit` and `jax.vmap` have their elements.

Only for warnings. Arguments of bodies of `lax` loops are known to nobody before they run.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.trace import compat
from qdtrace.trace.source import is_jax_file

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from jax.typing import ArrayLike

_LANES = 4
"""Number of calls of a `jax.vmap` that are looked at."""


def contents_of(value: object) -> list[Any]:
    """Returns the elements of an argument, under `jax.vmap` those of the first calls; none where nobody knows them."""
    if not isinstance(value, Tracer):
        is_here = not isinstance(value, jax.Array) or (not value.is_deleted() and value.is_fully_addressable)
        return [value] if is_here else []
    if (primal := getattr(value, "primal", None)) is not None:
        return contents_of(primal)
    if (axis := compat.batch_axis(value)) is not None:
        whole = [np.asarray(x) for x in contents_of(compat.variable_of(value))]
        return [np.take(x, k, axis) for x in whole for k in range(min(x.shape[axis], _LANES))]
    found = _argument(value)
    return [] if found is None else contents_of(found)


def is_linearised(value: object) -> bool:
    """Returns whether reverse mode takes a derivative along an argument, or `jax.linearize` does."""
    while isinstance(value, Tracer) and type(value).__name__ != "LinearizeTracer":
        primal = getattr(value, "primal", None)
        if primal is None:
            primal = compat.variable_of(value) if hasattr(value, "batch_dim") else _argument(value)
        value = primal
    return isinstance(value, Tracer)


def _argument(tracer: object) -> ArrayLike | None:
    """Returns the argument of the `jax.jit` that a tracer stands for; None if it is none."""
    variables, own = compat.arguments_of(tracer), compat.variable_of(tracer)
    at = next((n for n, v in enumerate(variables) if v is own), None)
    given = None if at is None else _arguments_of_call(compat.trace_of(tracer))
    if at is None or given is None:
        return None
    for leaves in (given, [x for x in given if isinstance(x, (jax.Array, np.ndarray))]):  # without static ones
        if [np.shape(x) for x in leaves] == [v.aval.shape for v in variables]:
            return leaves[at]
    return None


def _arguments_of_call(trace: object) -> list[ArrayLike] | None:
    """Returns the arguments of the `jax.jit` that a trace was begun for; None where another function began it: what
    `lax.cond`, `jax.checkpoint` and such pass on are no arguments of the call around them."""
    frame: FrameType | None = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _begun(frame) is not trace:
        frame = frame.f_back
    while frame is not None and (frame := frame.f_back) is not None and _begun(frame) is None:
        if frame.f_code.co_name == "cache_miss" and is_jax_file(frame.f_code.co_filename):
            return jax.tree.leaves([frame.f_locals.get(name) for name in ("args", "kwargs")])
    return None


def _begun(frame: FrameType) -> object | None:
    """Returns the trace that a frame of JAX began; None if it is no such frame."""
    code = frame.f_code
    is_one = code.co_name.startswith("trace_to_jaxpr") and is_jax_file(code.co_filename)
    return frame.f_locals.get("trace") if is_one else None
