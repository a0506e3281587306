"""`qd.explain`: the error of this package that an error of JAX or XLA holds."""

from __future__ import annotations

import collections
import contextlib

from qdtrace.errors import QdError
from qdtrace.fault_texts import fault_in
from qdtrace.trace import hooks
from qdtrace.trace.diagnosis import explain as traced

checked_failures: collections.deque[QdError] = collections.deque(maxlen=64)
"""The latest failures of programs that ran in the interpreter, of any thread."""


def explain(error: BaseException) -> QdError | None:
    """Returns the error of this package that an error contains, with message, place and fix, or None.

    A failing check of a call under `jax.jit` is raised by XLA, as a `jax.errors.JaxRuntimeError` or a `ValueError`
    (depending on the call), with the message in its text. Errors of JAX about traced values are explained too.

    Args:
        error: any exception.

    >>> import jax, jax.numpy as jnp, qdtrace as qd
    >>> @jax.jit
    ... def safe_log(x):
    ...     def lane(v):
    ...         qd.check(v > 0, "needs positive numbers")
    ...         return jnp.log(v)
    ...     return qd.vmap(lane)(x)
    >>> try:
    ...     safe_log(jnp.array([1.0, -1.0])).block_until_ready()
    ... except Exception as error:
    ...     print(type(qd.explain(error)).__name__, qd.explain(error).rule)
    CheckError check failed: needs positive numbers
    """
    if isinstance(error, QdError):
        return error
    if not isinstance(error, Exception):
        return None
    return failure_in(error) or traced.explain(error)


def failure_in(error: Exception) -> QdError | None:
    """Returns the failed check that an error of XLA reports, or None for any other error."""
    return _take_failure(error) or fault_in(str(error))


def _take_failure(error: Exception) -> QdError | None:
    """Returns the error of a checked program whose text XLA's error contains, or None."""
    text = str(error)
    found = next((failure for failure in reversed(list(checked_failures)) if str(failure) in text), None)
    if found is not None:
        with contextlib.suppress(ValueError):  # another thread has taken it
            checked_failures.remove(found)
        hooks.forget_failed_runs(lambda again: str(found) in str(again))
    return found
