"""Limits of arrays of integers, found once for each array.

A JAX array never changes, so its limits are kept as long as it lives: another array may get the address of one that
is gone. Arrays of NumPy may change, so nothing is kept of these.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.counters import count
from qdtrace.limits import limits_in

if TYPE_CHECKING:
    from qdtrace.limits import Limits

_known: dict[int, Limits] = {}
"""Limits of JAX arrays that live, by their `id`."""


def limits_of(value: object) -> Limits | None:
    """Returns the limits of an array of integers or of an integer; None for tracers and all others."""
    if isinstance(value, Tracer | bool | np.bool_):
        return None
    if isinstance(value, jax.Array):
        return _limits_of_array(value)
    is_number = isinstance(value, int | np.ndarray | np.integer)
    array = np.asarray(value) if is_number else None
    return None if array is None or array.dtype.kind not in "iu" else _found(array)


def _limits_of_array(array: jax.Array) -> Limits | None:
    if (kept := _known.get(id(array))) is not None:
        return kept
    is_readable = not array.is_deleted() and array.is_fully_addressable
    if not is_readable or getattr(array.dtype, "kind", None) not in ("i", "u"):  # keys have none, int4 another
        return None
    limits = _known[id(array)] = _found(np.asarray(array))
    weakref.finalize(array, _known.pop, id(array), None).atexit = False
    return limits


def _found(array: np.ndarray) -> Limits:
    count(size_reductions=1)
    return limits_in(array)
