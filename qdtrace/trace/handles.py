"""Base of buffers and cells: a handle of memory, with the shape and dtype of its content."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdtrace.errors import TraceTypeError
from qdtrace.trace.lengths import recording
from qdtrace.trace.operators import ArrayOperators

if TYPE_CHECKING:
    from typing import Self

    import jax
    import numpy as np


class MemoryHandle(ArrayOperators):
    """Memory that a traced function may store into."""

    __slots__ = ("_handle",)
    noun_of_names: str

    def __init__(self, handle: jax.Array) -> None:
        self._handle = handle

    @property
    def handle(self) -> jax.Array:
        """The tracer that stands for the memory in markers."""
        return self._handle

    @property
    def tracer(self) -> jax.Array:
        """The tracer of the memory, to tell memories apart; reading it is not a use of the memory."""
        return self._handle

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        running = recording()
        known = running and running.shape_of(self._handle)
        return known or tuple(self._handle.shape)

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self._handle.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            what = type(self).__name__.lower()
            raise TraceTypeError.here(f"len() needs at least one axis, got a {what} of shape ()")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype}{list(self.shape)})"

    if TYPE_CHECKING:  # made from `operators.INPLACE`, for buffers and for cells

        def __iadd__(self, value: object, /) -> Self: ...
        def __isub__(self, value: object, /) -> Self: ...
        def __imul__(self, value: object, /) -> Self: ...
        def __itruediv__(self, value: object, /) -> Self: ...
        def __ifloordiv__(self, value: object, /) -> Self: ...
        def __imod__(self, value: object, /) -> Self: ...
        def __ipow__(self, value: object, /) -> Self: ...
        def __imatmul__(self, value: object, /) -> Self: ...
        def __iand__(self, value: object, /) -> Self: ...
        def __ior__(self, value: object, /) -> Self: ...
        def __ixor__(self, value: object, /) -> Self: ...
        def __ilshift__(self, value: object, /) -> Self: ...
        def __irshift__(self, value: object, /) -> Self: ...
