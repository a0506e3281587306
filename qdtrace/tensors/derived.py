"""A JAX function of a list of arrays, and the functions that torch wants of it: pullback, pushforward, batches.

What torch differentiates or maps, JAX differentiates or maps: each of these is again a `Derived`, so that the second
derivative is the pullback of the pullback. None of it knows torch. Tangents and cotangents are those of floats and
complex numbers. Torch's gradient of a complex number is the conjugate of JAX's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


@jax.tree_util.register_static
class Rule:
    """Computes gradients from arguments of a call, arrays that it has kept, and cotangents.

    It is part of what a traced function returns, and is the same object in each call of the program.
    """

    def __init__(self, again: tuple[int, ...], pulled: Callable[..., list[Any]]) -> None:
        self.again = again
        """Positions of the arguments that are residuals."""
        self.gradients = jax.jit(pulled)
        """The gradients by those arguments, arrays that were kept, and cotangents of the results that are floats."""


def _parted(pullback: Callable[..., Any], given: Sequence[Any]) -> tuple[list[Any], Rule]:
    """Returns the residuals that a call keeps, and the rule of its gradients.

    Arguments are not kept: the program would copy them, and who calls has them. Constants are part of the rule.
    """
    residuals, tree = jax.tree.flatten(pullback)
    place = {id(x): k for k, x in enumerate(given)}
    again = tuple(sorted({place[id(x)] for x in residuals if id(x) in place}))
    kept = {id(x): x for x in residuals if id(x) not in place and isinstance(x, Tracer)}
    position = {key: k for k, key in enumerate((*(id(given[k]) for k in again), *kept))}
    sources = [position.get(id(x)) for x in residuals]
    constants = [x if source is None else None for x, source in zip(residuals, sources, strict=True)]

    def pulled(*xs: Any) -> list[Any]:
        found = [x if k is None else xs[k] for k, x in zip(sources, constants, strict=True)]
        return _conjugate_gradients(jax.tree.unflatten(tree, found), xs[len(position) :])

    return [*kept.values()], Rule(again, pulled)


class Derived:
    """A function of arrays that gives a pytree of arrays, compiled once it is called."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self._f = f
        self.values = jax.jit(f)
        """The function, compiled."""
        self._made: dict[Hashable, Any] = {}

    def values_and_rule(self, places: tuple[int, ...]) -> Callable[..., tuple[Any, list[Any], Rule]]:
        """Returns the function that also gives what it keeps and the rule of gradients by the arguments in `places`."""
        if (made := self._made.get(("values", places))) is not None:
            return made

        def kept(*xs: Any) -> tuple[Any, list[Any], Rule]:
            _, pullback, values = jax.vjp(self._floats(xs, places), *_picked(xs, places), has_aux=True)
            return values, *_parted(pullback, xs)

        return self._once(("values", places), lambda: jax.jit(kept))

    def pullback(self, places: tuple[int, ...], count: int) -> Derived:
        """Returns the function of all `count` arguments and the cotangents of float results, which gives gradients."""

        def pulled(*xs: Any) -> list[Any]:
            given, cotangents = xs[:count], xs[count:]
            _, pullback, _ = jax.vjp(self._floats(given, places), *_picked(given, places), has_aux=True)
            return _conjugate_gradients(pullback, cotangents)

        return self._once(("pullback", places, count), lambda: Derived(pulled))

    def pushforward(self, places: tuple[int, ...]) -> Derived:
        """Returns the function of all arguments and the tangents of those in `places`, which gives tangents."""

        def pushed(*xs: Any) -> list[Any]:
            given, tangents = xs[: len(xs) - len(places)], xs[len(xs) - len(places) :]
            return jax.jvp(self._floats(given, places), _picked(given, places), tangents, has_aux=True)[1]

        return self._once(("pushforward", places), lambda: Derived(pushed))

    def batched(self, axes: tuple[int | None, ...], size: int) -> Derived:
        """Returns the function of a batch, with the axis of each argument; results have it in front."""
        return self._once(("batched", axes, size), lambda: Derived(jax.vmap(self._f, axes, axis_size=size)))

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        made = self._made.get(key)
        return made if made is not None else self._made.setdefault(key, make())

    def _floats(self, xs: Sequence[Any], places: tuple[int, ...]) -> Callable[..., tuple[list[Any], Any]]:
        """Returns the function of some arguments whose results are those that are floats, and all of them beside."""

        def of(*chosen: Any) -> tuple[list[Any], Any]:
            arguments = list(xs)
            for place, x in zip(places, chosen, strict=True):
                arguments[place] = x
            values = self._f(*arguments)
            return [y for y in jax.tree.leaves(values) if jnp.issubdtype(y.dtype, jnp.inexact)], values

        return of


def _picked(xs: Sequence[Any], places: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(xs[place] for place in places)


def _conjugate(x: Any) -> Any:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


def _conjugate_gradients(pullback: Callable[..., Any], cotangents: Sequence[Any]) -> list[Any]:
    return [*map(_conjugate, pullback([*map(_conjugate, cotangents)]))]
