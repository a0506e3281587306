"""Loops over what is near a place: what those of grids and trees share, and the positions that both take."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.algorithms.arguments import array_of
from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace.arguments import as_values
from qdtrace.trace.context import current
from qdtrace.trace.diagnosis.lint import check_iteration
from qdtrace.trace.diagnosis.results import Use, expect_use

if TYPE_CHECKING:
    from collections.abc import Iterator


class NearLoop(ABC):
    """A loop of the thread over what is at most a radius away from a place."""

    def __init__(self, name: str, form: str, place: Any, radius: Any) -> None:
        """Takes how the loop is called and written. Raises TraceValueError if the radius is no number."""
        if jnp.ndim(radius):
            raise TraceValueError.here(
                f"{name} needs a number as radius, got shape {jnp.shape(radius)}", help="give that of the place: `r[i]`"
            )
        self.name, self.place, self.radius = name, place, as_values(radius)
        self.use: Use = expect_use(self, name, form)

    def __iter__(self) -> Iterator[jax.Array]:
        check_in_loop(self.name)
        self.use.is_made = True
        check_iteration(sys._getframe(1), self.name)  # pyright: ignore[reportPrivateUsage]
        return self._trace()

    @abstractmethod
    def _trace(self) -> Iterator[jax.Array]:
        """Yields the number of what is near, once."""


def check_in_loop(what: str) -> None:
    """Raises TraceValueError outside of loops."""
    if not current(what).in_thread:
        raise TraceValueError.here(
            f"{what} needs to be in a loop", help="put the loop over places around it: `for i in qd.range(n):`"
        )


def positions_of(value: Any, what: str, rows: str, row: str) -> jax.Array:
    """Returns floats of shape (n, d), d from 1 to 3, without a derivative; `rows` and `row` are their names in errors.

    Raises:
        TraceTypeError: for other dtypes.
        TraceValueError: for other shapes.
    """
    array = jax.lax.stop_gradient(array_of(as_values(value), what))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TraceTypeError.here(f"{what} needs {rows} of floats, got {array.dtype}", help="`.astype(jnp.float32)`")
    if array.ndim != 2 or not 1 <= array.shape[1] <= 3:
        raise TraceValueError.here(
            f"{what} needs {rows} of shape (n, 1), (n, 2) or (n, 3), got {array.shape}", help=f"a row is a {row}"
        )
    return array
