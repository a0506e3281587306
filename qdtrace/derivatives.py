"""JAX's transformations under this package's name; their functions also take arrays that speak DLPack."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import jax

from qdtrace.compose.foreign_arrays import to_jax
from qdtrace.errors import boundary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")
Aux = TypeVar("Aux")


@boundary
def grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]:
    """Returns a function of the same arguments that computes the gradient of `fun`: `jax.grad`.

    >>> qd.grad(lambda x: jnp.sum(x**2))(jnp.array([1.0, 2.0]))
    Array([2., 4.], dtype=float32)

    Args:
        fun: the function, which returns one float.
        argnums: which arguments to differentiate by; for a tuple of numbers the result is a tuple.
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as it is.
        holomorphic: `fun` is holomorphic, and arguments and results are complex.
        allow_int: arguments may be integers; their derivatives are of dtype float0.

    Raises:
        TypeError: the result is not a scalar, or the argument not a float; as `jax.grad` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return _converting(jax.grad(fun, argnums, has_aux, holomorphic, allow_int))


@boundary
def value_and_grad(
    fun: Callable[P, R],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[R, Any]]:
    """Returns a function of the same arguments that computes value and gradient of `fun`: `jax.value_and_grad`.

    >>> qd.value_and_grad(lambda x: jnp.sum(x**2))(jnp.array([1.0, 2.0]))
    (Array(5., dtype=float32), Array([2., 4.], dtype=float32))

    Args:
        fun: the function, which returns one float.
        argnums: which arguments to differentiate by; for a tuple of numbers the result is a tuple.
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as it is.
        holomorphic: `fun` is holomorphic, and arguments and results are complex.
        allow_int: arguments may be integers; their derivatives are of dtype float0.

    Raises:
        TypeError: the result is not a scalar, or the argument not a float; as `jax.value_and_grad` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return _converting(jax.value_and_grad(fun, argnums, has_aux, holomorphic, allow_int))


@boundary
def jacfwd(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]:
    """Returns a function of the same arguments that computes the Jacobian of `fun` by forward mode: `jax.jacfwd`.

    The Jacobian's shape is the result's, then the argument's. Suits few arguments and many results.

    >>> qd.jacfwd(lambda x: x**2)(jnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)

    Args:
        fun: the function.
        argnums: which arguments to differentiate by; for a tuple of numbers the result is a tuple.
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as it is.
        holomorphic: `fun` is holomorphic, and arguments and results are complex.

    Raises:
        TypeError: the argument is not a float; as `jax.jacfwd` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return _converting(jax.jacfwd(fun, argnums, has_aux, holomorphic))


@boundary
def jacrev(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]:
    """Returns a function of the same arguments that computes the Jacobian of `fun` by reverse mode: `jax.jacrev`.

    The Jacobian's shape is the result's, then the argument's. Suits many arguments and few results.

    >>> qd.jacrev(lambda x: x**2)(jnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)

    Args:
        fun: the function.
        argnums: which arguments to differentiate by; for a tuple of numbers the result is a tuple.
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as it is.
        holomorphic: `fun` is holomorphic, and arguments and results are complex.
        allow_int: arguments may be integers; their derivatives are of dtype float0.

    Raises:
        TypeError: the argument is not a float; as `jax.jacrev` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return _converting(jax.jacrev(fun, argnums, has_aux, holomorphic, allow_int))


@boundary
def hessian(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]:
    """Returns a function of the same arguments that computes the second derivatives of `fun`: `jax.hessian`.

    Their shape is the result's, then twice the argument's.

    >>> qd.hessian(lambda x: x[0] * x[1] ** 2)(jnp.array([1.0, 3.0]))
    Array([[0., 6.],
           [6., 2.]], dtype=float32)

    Args:
        fun: the function.
        argnums: which arguments to differentiate by; for a tuple of numbers the result is a tuple.
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as it is.
        holomorphic: `fun` is holomorphic, and arguments and results are complex.

    Raises:
        TypeError: the argument is not a float; as `jax.hessian` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return _converting(jax.hessian(fun, argnums, has_aux, holomorphic))


@overload
def jvp(
    fun: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False
) -> tuple[R, Any]: ...
@overload
def jvp(
    fun: Callable[..., tuple[R, Aux]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]
) -> tuple[R, Any, Aux]: ...
@boundary
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Returns the value of `fun` and its derivative along tangents: `jax.jvp`.

    >>> qd.jvp(jnp.sin, (0.0,), (2.0,))
    (Array(0., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))

    Args:
        fun: the function.
        primals: its arguments, a tuple or list.
        tangents: directions with their structure, shapes and dtypes (float0 for integers).
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as the third.

    Raises:
        TypeError: tangents do not fit the arguments; as `jax.jvp` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return jax.jvp(fun, *to_jax((primals, tangents)), has_aux=has_aux)


@overload
def vjp(fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Callable[..., Any]]: ...
@overload
def vjp(
    fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[..., Any], Aux]: ...
@boundary
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Returns the value of `fun` and the function from cotangents of its results to those of its arguments: `jax.vjp`.

    >>> value, pull = qd.vjp(lambda x: x**2, 3.0)
    >>> pull(jnp.ones_like(value))
    (Array(6., dtype=float32, weak_type=True),)

    Args:
        fun: the function.
        primals: its arguments.
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as the third.

    Raises:
        TypeError: `fun` is not a function; as `jax.vjp` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return jax.vjp(fun, *to_jax(primals), has_aux=has_aux)


@overload
def linearize(
    fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False
) -> tuple[R, Callable[..., Any]]: ...
@overload
def linearize(
    fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[..., Any], Aux]: ...
@boundary
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Returns the value of `fun` and its derivative as a function of tangents: `jax.linearize`.

    >>> value, push = qd.linearize(lambda x: x**2, 3.0)
    >>> push(jnp.ones_like(value))
    Array(6., dtype=float32, weak_type=True)

    Args:
        fun: the function.
        primals: its arguments.
        has_aux: `fun` returns a pair; its second item is not differentiated and returned as the third.

    Raises:
        TypeError: `fun` is not a function; as `jax.linearize` does.
        GradientError: a `qd.jit` function in `fun` has no derivative, with the reason.
    """
    return jax.linearize(fun, *to_jax(primals), has_aux=has_aux)


def _converting(derived: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with arrays of other libraries converted among its arguments."""

    @boundary
    @functools.wraps(derived)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = to_jax((args, kwargs))
        return derived(*args, **kwargs)

    return call
