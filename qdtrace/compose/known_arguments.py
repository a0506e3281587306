"""Finds what arguments hold while JAX traces a function around the call: `jax.jit` and `jax.vmap` have their elements.

Only for warnings. Arguments of bodies of `lax` loops are known to nobody before they run.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.trace import compat
from qdtrace.trace.source import is_jax_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_LANES = 4
"""Number of calls of a `jax.vmap` that are looked at."""


def contents_of(value: Any) -> list[Any]:
    """Returns the elements of an argument, under `jax.vmap` those of the first calls; none where nobody knows them."""
    return _contents(value, _calls(sys._getframe()))  # pyright: ignore[reportPrivateUsage]


def _contents(value: Any, calls: Iterator[list[Any]]) -> list[Any]:
    """Returns the elements of a value; `calls` are the arguments of each `jax.jit` around it, the innermost first."""
    if not isinstance(value, Tracer):
        is_here = not isinstance(value, jax.Array) or (not value.is_deleted() and value.is_fully_addressable)
        return [value] if is_here else []
    if (primal := getattr(value, "primal", None)) is not None:
        return _contents(primal, calls)
    if (axis := compat.batch_axis(value)) is not None:
        whole = [np.asarray(x) for x in _contents(compat.variable_of(value), calls)]
        return [np.take(x, k, axis) for x in whole for k in range(min(x.shape[axis], _LANES))]
    found = _argument(value, calls)
    return [] if found is None else _contents(found, calls)


def _argument(tracer: Any, calls: Iterator[list[Any]]) -> Any:
    """Returns the argument of the `jax.jit` that a tracer stands for; None if it is none."""
    variables, own = compat.arguments_of(tracer), compat.variable_of(tracer)
    at = next((n for n, v in enumerate(variables) if v is own), None)
    for given in () if at is None else calls:
        if any(compat.trace_of(x) is compat.trace_of(tracer) for x in given):
            continue  # a call inside of the function
        for leaves in (given, [x for x in given if isinstance(x, (jax.Array, np.ndarray))]):  # without static ones
            if [np.shape(x) for x in leaves] == [v.aval.shape for v in variables]:
                return leaves[at or 0]
    return None


def _calls(frame: FrameType | None) -> Iterator[list[Any]]:
    """Yields the arguments of each `jax.jit` that is being traced, the innermost first."""
    while frame is not None:
        if frame.f_code.co_name == "cache_miss" and is_jax_file(frame.f_code.co_filename):
            yield jax.tree.leaves([frame.f_locals.get(name) for name in ("args", "kwargs")])
        frame = frame.f_back
