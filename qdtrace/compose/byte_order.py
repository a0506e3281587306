"""NumPy arrays in the other byte order, which JAX refuses at first, and misreads once a function is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN: set[type] = set()
"""Types met so far that hold no NumPy array, so that a call only looks up its arguments' types."""


def is_foreign(x: object) -> bool:
    """Returns whether a value is an array in the other byte order."""
    return type(x) is np.ndarray and not x.dtype.isnative


def has_foreign(arguments: Iterable[Any]) -> bool:
    """Returns whether an argument, or a leaf of one, is in the other byte order."""
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
    """Returns the same numbers in the byte order of this machine."""
    return x.astype(x.dtype.newbyteorder("=")) if is_foreign(x) else x
