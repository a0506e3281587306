"""`qd.dataclass`: a dataclass that is a pytree, for JAX and for optree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar, dataclass_transform, overload

import jax
from optree import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

T = TypeVar("T")


@overload
def dataclass(cls: type[T], /) -> type[T]: ...
@overload
def dataclass(*, frozen: bool = ..., kw_only: bool = ..., eq: bool = ...) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(cls: Any = None, /, *, frozen: bool = False, kw_only: bool = False, eq: bool = True) -> object:
    """Makes a pytree dataclass. A field with `metadata={"static": True}` is part of the type, not a leaf.

    Static fields need to be hashable: a function is traced anew for each of their values.

    >>> @qd.dataclass
    ... class Ball:
    ...     x: jax.Array
    ...     radius: float
    >>> @qd.jit
    ... def moved(ball, dx):
    ...     for i in qd.range(ball.x.shape[0]):
    ...         ball.x[i] += dx
    ...     return ball
    >>> moved(Ball(jnp.zeros(2), 1.0), 0.5).x
    Array([0.5, 0.5], dtype=float32)

    Args:
        cls: the class.
        frozen, kw_only, eq: as in `dataclasses.dataclass`.
    """

    def decorate(made: type) -> type:
        made = dataclasses.dataclass(frozen=frozen, kw_only=kw_only, eq=eq)(made)
        _register(made)
        return made

    return decorate if cls is None else decorate(cls)


def _register(cls: type) -> None:
    fields = dataclasses.fields(cls)
    static = tuple(f.name for f in fields if f.metadata.get("static", False))
    data = tuple(f.name for f in fields if f.name not in static)

    def flatten(tree: object) -> tuple[tuple[object, ...], tuple[object, ...], tuple[str, ...]]:
        return tuple(getattr(tree, n) for n in data), tuple(getattr(tree, n) for n in static), data

    def unflatten(held: tuple[object, ...], children: Iterable[object]) -> object:
        # Leaves may be anything while JAX handles trees: no __init__, which could check or convert them.
        tree = object.__new__(cls)
        for name, value in zip((*data, *static), (*children, *held), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    def flatten_with_keys(tree: object) -> tuple[tuple[tuple[object, object], ...], tuple[object, ...]]:
        children, held, _ = flatten(tree)
        return tuple(zip(map(jax.tree_util.GetAttrKey, data), children, strict=True)), held

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, lambda tree: flatten(tree)[:2])
    everywhere = registry.__GLOBAL_NAMESPACE  # pyright: ignore[reportPrivateUsage]
    registry.register_pytree_node(cls, flatten, unflatten, namespace=everywhere)  # type: ignore[arg-type]
