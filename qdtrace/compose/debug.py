"""`debug=True`: programs run in the reference interpreter, which checks every access.

Indices out of bounds, reads of memory that was never stored, and races between iterations become errors that name
the user's lines; with `debug="nans"` operations that make NaN of numbers too. It is slow (thousands of operations a
second, not billions), for small inputs while looking for a defect. This is the only place where a compiled function
calls back into Python.

Programs of derivatives run in the interpreter too. A derivative outside of `jax.jit` runs the function as it was traced
first; under `jax.jit` JAX drops that run if nobody uses its results, and with it the checks that the derivative does
not need.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental import io_callback
from jax.lax import bitcast_convert_type

from qdtrace.compose.explain import checked_failures
from qdtrace.errors import BackendError, QdError
from qdtrace.failures import tell_later
from qdtrace.ir.faults import must_run
from qdtrace.ir.memory import written
from qdtrace.ir.program import ref_type
from qdtrace.ir.tells import tells_in
from qdtrace.trace import hooks
from qdtrace.trace.dtypes import mode_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array

    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.errors import Loc
    from qdtrace.ir.program import Program
    from qdtrace.ir.types import RefType

_FUEL = 10**9
most_trips: dict[Loc | None, int] = {}
"""The most iterations of loops so far, by their line."""


def _is_news(record: logging.LogRecord) -> bool:
    """Returns False for JAX's report of a failure that is raised as an error of ours."""
    return record.exc_info is None or not isinstance(record.exc_info[1], QdError)


logging.getLogger(hooks.CALLBACK_LOGGER).addFilter(_is_news)


def run_checked(staged: StagedProgram, operands: Sequence[Array], *, shared: bool = False) -> list[object]:
    """Runs the traced program, before any pass, in the interpreter with all its checks; `shared`: failures are reported
    later. Raises BackendError if JAX has no CPU to run it on."""
    from qdtrace.interpret.reference import evaluate  # only here: loading it would delay every import of the package

    program, nans = staged.program, staged.options.debug == "nans"
    _need_host(program)

    def on_host(*arrays: object) -> list[np.ndarray]:
        try:
            contents = [_from_words(np.asarray(a), t) for a, t in zip(arrays, given, strict=True)]
            trips: dict[Loc | None, int] = {}
            outs = evaluate(program, contents, check_races=True, check_nans=nans, fuel=_FUEL, trips=trips)
            most_trips.update({loc: max(n, most_trips.get(loc, 0)) for loc, n in trips.items()})
            return list(map(_words_of, outs))
        except QdError as error:
            if shared:
                tell_later(error)
                return [np.zeros(s.shape, s.dtype) for s in shapes]
            checked_failures.append(error)
            raise

    given, types = [ref_type(v) for v in program.params], [ref_type(v) for v in program.results]
    words = [bitcast_convert_type(x, np.uint32) if _is_wide(t) else x for x, t in zip(operands, given, strict=True)]
    shapes = [_word_type(t) for t in types]
    if tells_in(program) or must_run(program, set(written(program.all_eqns))):
        outs = io_callback(on_host, shapes, *words)  # XLA must not drop it
    else:
        outs = jax.pure_callback(on_host, shapes, *words, vmap_method="sequential")
    with mode_for(t.dtype.numpy for t in types):
        return [bitcast_convert_type(x, t.dtype.numpy) if _is_wide(t) else x for x, t in zip(outs, types, strict=True)]


def _need_host(program: Program) -> None:
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError:
        raise BackendError(
            f"{program.name}: debug=True runs on the processor: needs JAX's platform cpu, got none",
            help="add it behind the platform of the arrays: JAX_PLATFORMS=cuda,cpu",
        ) from None


# JAX calls back in a thread of XLA's, which does not see a block of `jax.enable_x64` and would truncate 64-bit values.
# So these go there and back as pairs of words.


def _is_wide(ref: RefType) -> bool:
    return ref.dtype.numpy.itemsize == 8


def _word_type(ref: RefType) -> jax.ShapeDtypeStruct:
    if _is_wide(ref):
        return jax.ShapeDtypeStruct((*ref.shape, 2), np.uint32)
    return jax.ShapeDtypeStruct(ref.shape, ref.dtype.numpy)


def _from_words(array: np.ndarray, ref: RefType) -> np.ndarray:
    return np.ascontiguousarray(array).view(ref.dtype.numpy).reshape(ref.shape) if _is_wide(ref) else array


def _words_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(*array.shape, 1).view(np.uint32) if array.itemsize == 8 else array
