"""The option `bounds_from` of `qd.jit`: arguments whose elements bound loops, and the limits of those that are given.

A call with arrays finds their limits, which are static: there is a function of JAX for each. What is traced by somebody
else (`jax.jit`, `jax.vmap` around the call) has none, and derivatives then know nothing of such loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.core import Tracer

from qdtrace.compose.array_limits import limits_of
from qdtrace.errors import TraceValueError
from qdtrace.frozen import frozen
from qdtrace.trace.arguments import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from qdtrace.limits import Limits

    Found = tuple[Limits | None, ...]


@frozen
class BoundsFrom:
    """Arguments by name and position, with the limits of their leaves."""

    places: tuple[tuple[str, int | None], ...]
    limits: tuple[Found, ...] = ()

    @classmethod
    def named(cls, f: Callable[..., object], names: str | Iterable[str]) -> BoundsFrom | None:
        """Returns the arguments of these names, or None if there are none. Raises TraceValueError for a wrong name."""
        wanted = [names] if isinstance(names, str) else list(names)
        if not wanted:
            return None
        found: dict[str, int | None] = {}
        for position, p in enumerate(parameters_of(f)):
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                found[p.name] = None if p.kind is p.KEYWORD_ONLY else position
        if wrong := [name for name in wanted if name not in found]:
            have = ", ".join(found) or "none"
            raise TraceValueError(
                f"qd.jit: bounds_from needs names of parameters, got {wrong[0]!r}", help=f"its parameters: {have}"
            )
        return cls(tuple((name, found[name]) for name in wanted))

    def found(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Found, ...]:
        """Returns the limits of the leaves of the arguments; nothing if none has any."""
        found = tuple(tuple(map(limits_of, leaves)) for leaves in self._leaves(args, kwargs))
        return found if any(map(any, found)) else ()

    def traced(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[tuple[int, Limits]]:
        """Returns the numbers of the tracers that stand for leaves, among all tracers, with the limits of these."""
        tracers = (x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, Tracer))
        numbers = {id(x): number for number, x in enumerate(tracers)}
        pairs = zip(self._leaves(args, kwargs), self.limits, strict=False)
        known = (pair for leaves, limits in pairs for pair in zip(leaves, limits, strict=True))
        return [(numbers[id(x)], limits) for x, limits in known if id(x) in numbers and limits is not None]

    def _leaves(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[list[object]]:
        for name, position in self.places:
            is_given = position is not None and position < len(args)
            yield jax.tree.leaves(args[position] if is_given else kwargs.get(name))  # type: ignore[index]
