"""JAX's transformations under this package's name; their functions also take arrays that speak DLPack."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from qdtrace.api import to_jax

if TYPE_CHECKING:
    from collections.abc import Callable


def _transformation(transform: Callable[..., Any]) -> Callable[..., Any]:
    """A transformation of a function into a function of the same arguments."""

    @functools.wraps(transform)
    def wrapped(fun: Callable[..., Any], *settings: Any, **options: Any) -> Callable[..., Any]:
        derived = transform(fun, *settings, **options)

        @functools.wraps(derived)
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = to_jax((args, kwargs))
            return derived(*args, **kwargs)

        return call

    return wrapped


def _evaluation(transform: Callable[..., Any]) -> Callable[..., Any]:
    """A transformation that is given the arguments at once."""

    @functools.wraps(transform)
    def wrapped(fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return transform(fun, *to_jax(args), **options)

    return wrapped


grad = _transformation(jax.grad)
value_and_grad = _transformation(jax.value_and_grad)
jacfwd = _transformation(jax.jacfwd)
jacrev = _transformation(jax.jacrev)
hessian = _transformation(jax.hessian)
jvp = _evaluation(jax.jvp)
vjp = _evaluation(jax.vjp)
linearize = _evaluation(jax.linearize)
