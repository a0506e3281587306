"""A call of a `qd.jit` function under `jax.jit`, as it is to be traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.core import Tracer

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jax import Array

    from qdtrace.config import Options
    from qdtrace.limits import Limits


@frozen(eq=False)
class Request:
    """A function with the arguments, names and options that it is traced with."""

    f: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    name: str
    options: Options
    donations: tuple[int | Sequence[int], str | Iterable[str]]
    given: Sequence[tuple[int, Limits]]
    """Limits of traced arguments, by their numbers."""
    array_tasks: bool = False
    """True if array code between loops becomes tasks (`array_tasks`)."""

    def leaves(self) -> list[Array]:
        """Returns the tracers among the arguments."""
        return [x for x in jax.tree.leaves((self.args, self.kwargs)) if isinstance(x, Tracer)]
