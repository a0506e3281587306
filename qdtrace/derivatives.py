"""JAX's transformations under this package's name; their functions also take arrays that speak DLPack."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import jax

from qdtrace.api import to_jax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")
Aux = TypeVar("Aux")


def grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]:
    """The function of the same arguments that gives the gradient of `fun`: `jax.grad`."""
    return _converting(jax.grad(fun, argnums, has_aux, holomorphic, allow_int))


def value_and_grad(
    fun: Callable[P, R],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[R, Any]]:
    """The function of the same arguments that gives value and gradient of `fun`: `jax.value_and_grad`."""
    return _converting(jax.value_and_grad(fun, argnums, has_aux, holomorphic, allow_int))


def jacfwd(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]:
    """The function of the same arguments that gives the Jacobian of `fun`, by forward mode: `jax.jacfwd`."""
    return _converting(jax.jacfwd(fun, argnums, has_aux, holomorphic))


def jacrev(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]:
    """The function of the same arguments that gives the Jacobian of `fun`, by reverse mode: `jax.jacrev`."""
    return _converting(jax.jacrev(fun, argnums, has_aux, holomorphic, allow_int))


def hessian(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]:
    """The function of the same arguments that gives the second derivatives of `fun`: `jax.hessian`."""
    return _converting(jax.hessian(fun, argnums, has_aux, holomorphic))


@overload
def jvp(
    fun: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False
) -> tuple[R, Any]: ...
@overload
def jvp(
    fun: Callable[..., tuple[R, Aux]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]
) -> tuple[R, Any, Aux]: ...
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The value of `fun` and its derivative along tangents: `jax.jvp`."""
    return jax.jvp(fun, *to_jax((primals, tangents)), has_aux=has_aux)


@overload
def vjp(fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Callable[..., Any]]: ...
@overload
def vjp(
    fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[..., Any], Aux]: ...
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `fun` and the function from cotangents of results to those of arguments: `jax.vjp`."""
    return jax.vjp(fun, *to_jax(primals), has_aux=has_aux)


@overload
def linearize(
    fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False
) -> tuple[R, Callable[..., Any]]: ...
@overload
def linearize(
    fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[..., Any], Aux]: ...
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `fun` and its derivative as a function of tangents: `jax.linearize`."""
    return jax.linearize(fun, *to_jax(primals), has_aux=has_aux)


def _converting(derived: Callable[..., Any]) -> Callable[..., Any]:
    """The function that also takes arrays of other libraries."""

    @functools.wraps(derived)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = to_jax((args, kwargs))
        return derived(*args, **kwargs)

    return call
