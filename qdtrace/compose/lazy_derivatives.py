"""Registers the derivatives of the primitive `call`, whose modules are loaded when JAX asks for the first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jax.interpreters import ad

from qdtrace.compose.call import call_p, derivative_p
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.compose.loop_derivative import loop_p

if TYPE_CHECKING:
    from typing import Any



@paused_garbage_collection()
def _run(number: int, *operands: Any, **params: Any) -> object:
    """Runs one of JAX's rules for calls and loops around them."""
    # Loaded here: they load `autodiff`, which only derivatives need.
    from qdtrace.compose.derivative import jvp_of_call
    from qdtrace.compose.transposed import transpose_of_call, transpose_of_derivative
    from qdtrace.compose.transposed_loop import transpose_of_loop

    rules = jvp_of_call, transpose_of_call, transpose_of_derivative, transpose_of_loop
    return rules[number](*operands, **params)


def register() -> None:
    """Has JAX differentiate calls, and transpose them and loops around them."""
    ad.primitive_jvps[call_p] = partial(_run, 0)
    ad.primitive_transposes[call_p] = partial(_run, 1)
    ad.primitive_transposes[derivative_p] = partial(_run, 2)
    ad.primitive_transposes[loop_p] = partial(_run, 3)
