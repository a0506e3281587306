"""The derivatives of a call, whose modules are loaded when one is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jax.interpreters import ad

from qdtrace.compose.call import call_p, derivative_p
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.compose.loop_derivative import loop_p

if TYPE_CHECKING:
    from collections.abc import Callable


def _later(module: str, name: str) -> Callable[..., Any]:
    """Returns a rule of JAX in a module of this package, which loads `autodiff`: that is for derivatives alone."""

    def rule(*operands: Any, **params: Any) -> Any:
        with paused_garbage_collection():
            return getattr(importlib.import_module(f"qdtrace.compose.{module}"), name)(*operands, **params)

    return rule


def register() -> None:
    """Has JAX differentiate calls, and transpose them and loops around them."""
    ad.primitive_jvps[call_p] = _later("derivative", "jvp_of_call")
    ad.primitive_transposes[call_p] = _later("transposed", "transpose_of_call")
    ad.primitive_transposes[derivative_p] = _later("transposed", "transpose_of_derivative")
    ad.primitive_transposes[loop_p] = _later("transposed_loop", "transpose_of_loop")
