"""JAX's errors about traced values, told with the user's line and the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from qdtrace.errors import QdError, TraceTypeError, TraceValueError, UnsupportedError
from qdtrace.trace.source import traceback_loc

if TYPE_CHECKING:
    from qdtrace.ir.program import Loc


def explain(error: Exception) -> QdError | None:
    """The error to raise in place of one of JAX's; None when it should be left as it is."""
    loc = traceback_loc(error.__traceback__)
    match error:
        case QdError():
            return None
        case jax.errors.TracerBoolConversionError():
            return TraceTypeError(
                "`if`, `and`, `or`, `not` and `while` of Python need a static value, got one that is being traced",
                loc=loc,
                help="use `with qd.when(condition):`, jnp.where(condition, a, b), lax.cond, or & | ~ for and, or, not",
            )
        case jax.errors.TracerArrayConversionError():
            return _numpy_function(loc)
        case jax.errors.TracerIntegerConversionError():
            return TraceTypeError(
                "an index of a Python list or a length needs a static integer, got one that is being traced",
                loc=loc,
                help="put a list into an array, `jnp.array(values)[i]`; write a loop as `for i in qd.range(n):`",
            )
        case jax.errors.NonConcreteBooleanIndexError():
            return TraceTypeError(
                "an index of bools needs a static mask, got one that is being traced",
                loc=loc,
                help="use `with qd.when(mask[i]):` in a loop, or jnp.where(mask, a, b)",
            )
        case jax.errors.ConcretizationTypeError():
            return TraceTypeError(
                "int(), float() and static arguments need a static value, got one that is being traced",
                loc=loc,
                help="use `.astype(jnp.int32)`; for a value known at trace time use static_argnames",
            )
        case jax.errors.UnexpectedTracerError():
            return TraceValueError(
                "a value of another trace is used, it was kept in a variable outside of the function",
                loc=loc,
                help="return it from the function, and pass it to the next one as an argument",
            )
        case _:
            return _explain_text(error, loc)


def _numpy_function(loc: Loc | None) -> QdError:
    return TraceTypeError(
        "a NumPy function needs a concrete array, got one that is being traced",
        loc=loc,
        help="use the function of the same name in jax.numpy",
    )


def _explain_text(error: Exception, loc: Loc | None) -> QdError | None:
    text = str(error)
    if "__jax_array__() during abstractification" in text:
        return TraceTypeError(
            "jax.lax functions and transformations need values, got a buffer or a cell",
            loc=loc,
            help="load from it: `x[i]`, `x[...]` or `c.value`",
        )
    if "does not support ufuncs" in text:
        return _numpy_function(loc)
    if isinstance(error, NotImplementedError) and "Effects not supported" in text:
        return UnsupportedError(
            "this JAX transformation cannot hold loops or stores of this package",
            loc=loc,
            notes=(text.splitlines()[0],),
            help="use lax.cond, lax.while_loop, lax.fori_loop or lax.scan, or qd.range and qd.when",
        )
    return None
