"""The derivative of a call, whose modules are loaded when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax.interpreters import ad

from qdtrace.compose.call import call_p
from qdtrace.compose.garbage import paused_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Sequence


def _jvp_of_call(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    with paused_garbage_collection():
        from qdtrace.compose.derivative import jvp_of_call  # only here: it loads `autodiff`, for derivatives alone

        return jvp_of_call(primals, tangents, **params)


def register() -> None:
    """Has JAX differentiate calls."""
    ad.primitive_jvps[call_p] = _jvp_of_call
