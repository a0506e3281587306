"""`debug=True`: programs run in the reference interpreter, which checks every access.

Indices out of bounds, reads of memory that was never stored, and races between iterations become errors that name
the user's lines; with `debug="nans"` operations that make NaN of numbers too. It is slow (thousands of operations a
second, not billions): for small inputs while looking for a defect. This is the only place where a compiled function
calls back into Python.

Programs of derivatives run in the interpreter too. A derivative outside of `jax.jit` runs the function as it was traced
first; under `jax.jit` JAX drops that run when nobody uses its results, and with it the checks of what the derivative
does not need.
"""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import io_callback

from qdtrace.analysis.effects import gives_anything, written_refs
from qdtrace.errors import QdError
from qdtrace.ir.program import ref_type
from qdtrace.trace.compat import CALLBACK_LOGGER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.compose.staged_program import StagedProgram

_FUEL = 10**9
_failures: collections.deque[QdError] = collections.deque(maxlen=64)
"""The last ones; of any thread."""


def _is_news(record: logging.LogRecord) -> bool:
    """False for JAX's report of a failure that is raised as an error of ours."""
    return record.exc_info is None or not isinstance(record.exc_info[1], QdError)


logging.getLogger(CALLBACK_LOGGER).addFilter(_is_news)


def run_checked(staged: StagedProgram, operands: Sequence[Any]) -> list[Any]:
    """The traced program, before any pass, in the interpreter with all its checks."""
    from qdtrace.interpret.reference import evaluate  # only here: loading it would delay every import of the package

    program, nans = staged.program, staged.options.debug == "nans"
    shapes = [jax.ShapeDtypeStruct(ref_type(v).shape, v.dtype.numpy) for v in program.results]

    def on_host(*arrays: Any) -> list[np.ndarray]:
        try:
            given = [np.asarray(a) for a in arrays]
            return evaluate(program, given, check_races=True, check_nans=nans, fuel=_FUEL)
        except QdError as error:
            _failures.append(error)
            raise

    if not gives_anything(program, written_refs(program)):
        return io_callback(on_host, shapes, *operands)  # XLA must not drop it
    return jax.pure_callback(on_host, shapes, *operands, vmap_method="sequential")


def take_failure(error: Exception) -> QdError | None:
    """The error of a checked program that XLA's error hides in its text, if that is what it is."""
    text = str(error)
    for failure in reversed(_failures):
        if str(failure) in text:
            _failures.remove(failure)
            return failure
    return None
