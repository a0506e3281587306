"""`qd.explain`: the error of this package that an error of JAX or XLA holds."""

from __future__ import annotations

from qdtrace.errors import QdError
from qdtrace.trace.diagnosis import explain as traced


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
    from qdtrace.compose.debug import take_failure
    from qdtrace.ir.faults import fault_in

    return take_failure(error) or fault_in(str(error))
