"""Arguments that are compile-time values, taken out of those that tensors are looked for in."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from qdtrace.errors import TraceTypeError
from qdtrace.trace.arguments import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence


class Static:
    """Positions and names of static arguments of a function. As in JAX, positions imply names and names positions."""

    def __init__(self, f: Callable[..., Any], nums: int | Sequence[int], names: str | Iterable[str]) -> None:
        self.nums = {nums} if isinstance(nums, int) else {operator.index(n) for n in nums}
        self.names = {names} if isinstance(names, str) else set(names)
        known = [p.name for p in parameters_of(f) if p.kind is p.POSITIONAL_OR_KEYWORD]
        if not self.names:
            self.names = {known[n] for n in self.nums if -len(known) <= n < len(known)}
        elif not self.nums:
            self.nums = {known.index(n) for n in self.names if n in known}

    def __bool__(self) -> bool:
        return bool(self.nums or self.names)

    def taken_out(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, tuple[Any, ...], dict[str, Any]]:
        """Returns the static arguments as one hashable value, and the arguments with None in place of them."""
        places = {n % len(args) for n in self.nums if -len(args) <= n < len(args)}
        by_place = tuple((k, args[k]) for k in sorted(places))
        by_name = tuple((name, kwargs[name]) for name in sorted(self.names & kwargs.keys()))
        for name, value in (*by_place, *by_name):
            try:
                hash(value)
            except TypeError:
                raise TraceTypeError.here(
                    f"qd.torch: the static argument {name} needs to be hashable, got {type(value).__name__}",
                    help="give a tuple in place of a list; tensors are not static",
                ) from None
        rest = tuple(None if k in places else a for k, a in enumerate(args))
        types = tuple(type(value) for _, value in (*by_place, *by_name))  # 1 equals 1.0 and True
        return (by_place, by_name, types), rest, {k: None if k in self.names else v for k, v in kwargs.items()}


def put_back(static: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with the static ones that `taken_out` gave."""
    by_place, by_name, _ = static
    placed = dict(by_place)
    return tuple(placed.get(k, a) for k, a in enumerate(args)), kwargs | dict(by_name)
