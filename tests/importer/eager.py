"""The tracing API in plain Python on NumPy arrays: what a program means, iteration by iteration."""

import builtins
from itertools import product
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

range = builtins.range


class Buffer:
    """A mutable array; what is read is a JAX array."""

    def __init__(self, content: Any) -> None:
        self.content = np.array(content)

    shape = property(lambda self: self.content.shape)

    def __getitem__(self, index: Any) -> Any:
        return jnp.asarray(self.content[_plain(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.content[_plain(index)] = np.asarray(value)


def _plain(index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(int(k) if not isinstance(k, slice) and k is not Ellipsis else k for k in parts)


class Cell(Buffer):
    """A cell; rank 0 or an array."""

    value = property(lambda self: self[...], lambda self, v: self.__setitem__(..., v))

    def __iadd__(self, other: Any) -> Self:
        self.value = self.value + other
        return self

    def __jax_array__(self) -> Any:
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.content, dtype)


def zeros(shape: Any, dtype: Any = np.float32) -> Buffer:
    """A buffer of zeros."""
    return Buffer(np.zeros(shape, dtype))


def local(value: Any) -> Cell:
    """A cell."""
    return Cell(value)


def ndrange(*extents: int) -> Any:
    """Index tuples."""
    return product(*map(range, extents))
