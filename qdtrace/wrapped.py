"""Base of what `qd.jit` and `qd.vmap` return: it has the name of its function and binds as a method.

Its types say that results are arrays: where the function gives a Python number, the call gives an array, and a type
checker that went by the number would find mistakes that there are none of.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeAlias

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Rest = ParamSpec("Rest")
Owner = TypeVar("Owner")

if TYPE_CHECKING:
    Numbers: TypeAlias = (
        complex
        | tuple[complex, *tuple[Any, ...]]
        | tuple[Any, complex, *tuple[Any, ...]]
        | tuple[Any, Any, complex, *tuple[Any, ...]]
    )
    """A number, or a tuple with one among its first three: as results, arrays of which no type is known."""


class Wrapped(Generic[P, R_co]):
    """Base of callables that stand for a function; a subclass says how it is called."""

    __wrapped__: Callable[P, R_co]

    def __init__(self, f: Callable[P, R_co]) -> None:
        carrier: Any = self
        functools.update_wrapper(carrier, f, updated=())  # attributes of f may have the names of methods

    def __reduce__(self) -> str:
        """Returns the name that `pickle` finds this object by; as Python's functions, it is no value to copy."""
        return getattr(self, "__qualname__", type(self).__qualname__)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: Wrapped[Concatenate[Owner, Rest], Numbers], instance: Owner, owner: type | None = None
    ) -> Callable[Rest, Any]: ...
    @overload
    def __get__(
        self: Wrapped[Concatenate[Owner, Rest], R | complex], instance: Owner, owner: type | None = None
    ) -> Callable[Rest, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)  # type: ignore[operator]
