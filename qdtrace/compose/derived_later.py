"""The derivatives of a call, whose modules are loaded when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax.interpreters import ad

from qdtrace.compose.call import call_p, derivative_p
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.compose.loop_derivative import loop_p

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.compose.loop_derivative import Loop


def _jvp_of_call(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    with paused_garbage_collection():
        from qdtrace.compose.derivative import jvp_of_call  # only here: it loads `autodiff`, for derivatives alone

        return jvp_of_call(primals, tangents, **params)


def _transpose_of_call(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Any:
    with paused_garbage_collection():
        from qdtrace.compose.transposed import transpose_of_call  # likewise

        return transpose_of_call(cotangents, *operands, **params)


def _transpose_of_derivative(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Any:
    from qdtrace.compose.transposed import transpose_of_derivative  # likewise

    return transpose_of_derivative(cotangents, *operands, **params)


def _transpose_of_loop(cotangents: Sequence[Any], *operands: Any, loop: Loop) -> Any:
    from qdtrace.compose.transposed_loop import transpose_of_loop  # likewise

    return transpose_of_loop(cotangents, operands, loop)


def register() -> None:
    """Has JAX differentiate calls, and transpose them and loops around them."""
    ad.primitive_transposes[loop_p] = _transpose_of_loop
    ad.primitive_jvps[call_p] = _jvp_of_call
    ad.primitive_transposes[call_p] = _transpose_of_call
    ad.primitive_transposes[derivative_p] = _transpose_of_derivative
