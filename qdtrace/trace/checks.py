"""`qd.check`: a condition that must hold when the program runs, else the call fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.trace import markers
from qdtrace.trace.context import current, emit
from qdtrace.trace.diagnosis.advice import printed_before
from qdtrace.trace.diagnosis.statement import running_in
from qdtrace.trace.indexing import as_value, shown
from qdtrace.tracebacks import user_frame

if TYPE_CHECKING:
    from jax.typing import ArrayLike

MOST_CHARACTERS = 10_000
"""Most characters of a message: compiled code writes it to a stack."""
_OF_TRACED = re.compile(r"\w*Tracer[(<]|\bTraced<|<qdtrace\.\S+ object at|\b(?:Buffer|Cell)\(")


@boundary
def check(condition: ArrayLike, message: str) -> None:
    """Makes the call of the `qd.jit` function fail with `message` and this line if `condition` is false.

    It may stand anywhere in a traced function: in loops, under `qd.when`, in the function that `qd.vmap` maps and in
    `lax` control flow there, and between loops. What comes after a check that fails is not executed in that iteration;
    the call has no results. The error has a note on the iteration of the outermost loop, or the lane, and on the values
    of a comparison; of several that fail any one is told. As anything in JAX a check runs only where a result of the
    function is used.

    >>> @qd.jit
    ... def roots(x):
    ...     for i in qd.range(x.shape[0]):
    ...         qd.check(x[i] >= 0, "a root of a negative number")
    ...         x[i] = jnp.sqrt(x[i])
    ...     return x
    >>> roots(jnp.array([4.0, -1.0]))
    Traceback (most recent call last):
        ...
    qdtrace.errors.CheckError: check failed: a root of a negative number
      at ...

    Args:
        condition: a bool, or an array of them (all must hold).
        message: what the error says; a constant.

    Raises:
        CheckError: when the function runs, from the call, or where XLA reports errors (`jax.block_until_ready`) when a
            `jax.jit` is around it.
        TraceTypeError: for a condition that is no bool, or a message that is no string or has the text of a traced
            value.
        TraceValueError: for a message that compiled code cannot tell: of more than 10000 characters, or with a NUL or
            half of a surrogate pair.
    """
    current("qd.check")
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user may pass anything
        raise TraceTypeError.here(f"the message of qd.check needs to be a string, got {shown(message)}")
    if (wrong := _untellable(message)) is not None:
        most = f"at most {MOST_CHARACTERS} characters without NUL"
        raise TraceValueError.here(
            f"the message of qd.check needs to be a text of {most}, got {wrong}",
            help="shorten it, or tell what is odd in it by `repr`",
        )
    if _OF_TRACED.search(message):
        raise TraceTypeError.here(
            "the message of qd.check needs to be a constant, got one with the text of a traced value",
            help=printed_before(running_in(user_frame())),
        )
    value = as_value(condition)
    is_array = isinstance(value, (bool, np.bool_, np.ndarray, jax.Array))
    if not is_array or jnp.result_type(value) != jnp.bool_:
        got = f"values of {jnp.result_type(value)}" if is_array else shown(value)
        raise TraceTypeError.here(
            f"the condition of qd.check needs to be a bool, got {got}",
            help="compare it with something: `qd.check(x[i] > 0, ...)`",
        )
    if np.ndim(value):
        value = jnp.all(value)
    emit(markers.check_p, np.bool_(value) if isinstance(value, bool) else value, message=message)


def _untellable(message: str) -> str | None:
    """Returns what keeps a message from XLA, whose messages are C strings in UTF-8; None if nothing does."""
    if len(message) > MOST_CHARACTERS:
        return f"{len(message)} characters"
    odd = next((c for c in message if c == "\0" or "\ud800" <= c <= "\udfff"), None)
    return None if odd is None else f"the character {odd!a}"
