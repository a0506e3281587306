"""Functions and arguments of `qd.sparsity` and its kin, and what is known of a function before its loops run."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.api import Jitted, jit
from qdtrace.config import options_from
from qdtrace.errors import TraceTypeError
from qdtrace.trace import markers
from qdtrace.trace.arguments import is_memory, parameters_of
from qdtrace.trace.compat import Literal, bind_eqn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.sparse.reading import Reading


def function_of(f: Any, what: str) -> tuple[Callable[..., Any], str]:
    """Returns the Python function behind `f`, and its name.

    Raises:
        TraceTypeError: `f` is no function, or has static arguments.
    """
    if not callable(f):
        help = "give it the function itself: `qd.sparsity(energy)(x)`"
        raise TraceTypeError.here(f"{what} needs a function, got {type(f).__name__}", help=help)
    name = getattr(f, "__name__", type(f).__name__)
    if not isinstance(f, Jitted):
        return f, name
    if any(x not in ((), None) for x in f.static_arguments):
        raise TraceTypeError.here(
            f"{what} needs a function without static arguments, got {name}",
            help="give it a function that binds them: `lambda x: f(x, n=3)`",
        )
    return f.__wrapped__, name


def compiled(made: Callable[..., Any], f: Any, *own: str, pure: bool | None = None) -> Jitted[..., Any]:
    """Compiles a function of the arguments of `f`, behind those named `own`: with the options of `f`, and its names of
    arguments in errors. Indices outside of arrays are errors where others are clipped: no place of a pattern stands for
    them."""
    function, options = (f.__wrapped__, dict(f.overrides)) if isinstance(f, Jitted) else (f, {})
    if options_from(options).bounds == "clip":
        options["bounds"] = "raise"
    alone = inspect.Parameter.POSITIONAL_ONLY
    given = (p.replace(kind=alone) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in parameters_of(function))
    made.__signature__ = inspect.Signature([*(inspect.Parameter(n, alone) for n in own), *given])
    return jit(made, pure=pure, options=options)


def checked_argument(args: Sequence[Any], argnum: int, what: str) -> Any:
    """Returns the argument that derivatives are taken by.

    Raises:
        TraceTypeError: it is no array of floats with at least one axis.
    """
    if argnum >= len(args):
        help = "count arguments from 0, and pass them by position"
        raise TraceTypeError.here(f"{what} needs argument {argnum}, got {len(args)} arguments", help=help)
    x: Any = args[argnum]
    is_array = hasattr(x, "dtype") and x.ndim > 0
    if not is_array or not jnp.issubdtype(x.dtype, jnp.floating):
        got = f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else type(x).__name__
        raise TraceTypeError.here(
            f"{what} needs an array of floats as argument {argnum}, got {got}",
            help="say by `argnum` which argument derivatives are taken by: `qd.sparsity(f, 1)`",
        )
    return x


def avals_of(args: Any) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Returns shapes and dtypes of arguments."""
    return tuple((jnp.shape(x), jnp.result_type(x).name) for x in jax.tree.leaves(args))


def shapes_like(args: Any) -> Any:
    """Returns arguments as shapes, to be traced with."""

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        value = x.handle if is_memory(x) else x
        aval = jax.typeof(value)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)

    return jax.tree.map(shape, args, is_leaf=is_memory)


def evaluated(reading: Reading, args: Any) -> dict[Any, Any]:
    """Returns values of all that is known around loops, for arguments as a traced function has them."""
    root = reading.root
    leaves = jax.tree.leaves(args, is_leaf=is_memory)
    given = {p: x.handle if is_memory(x) else x for p, x in zip(root.params, leaves, strict=True)}
    env: dict[Any, Any] = {**root.constants, **given}
    for eqn in (*reading.known, reading.maker):
        source = eqn.invars[0] if eqn.invars else None
        if eqn.primitive is markers.buffer_p and not isinstance(source, Literal) and source in given:
            env[eqn.outvars[0]] = given[source]
        elif eqn.outvars:
            out = bind_eqn(eqn, [a.val if isinstance(a, Literal) else env[a] for a in eqn.invars])
            env.update(zip(eqn.outvars, out, strict=True))
    return env
