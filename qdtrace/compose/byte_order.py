"""NumPy arrays in the other byte order: JAX refuses them at first, and misreads them once a function is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN: set[type] = set()
"""Types met so far that hold no array of NumPy: looked up at each call, which has little time."""


def is_foreign(x: Any) -> bool:
    """True for an array in the other byte order."""
    return type(x) is np.ndarray and not x.dtype.isnative


def has_foreign(arguments: Iterable[Any]) -> bool:
    """True when an argument, or a leaf of one, is in the other byte order."""
    for x in arguments:
        kind = type(x)
        if kind is np.ndarray:
            if not x.dtype.isnative:
                return True
        elif kind not in PLAIN:
            if isinstance(x, (jax.Array, np.generic, int, float, complex, str)):
                PLAIN.add(kind)
            elif any(map(is_foreign, jax.tree.leaves(x))):
                return True
    return False


def native(x: Any) -> Any:
    """The same numbers in the byte order of this machine."""
    return x.astype(x.dtype.newbyteorder("=")) if is_foreign(x) else x
