"""One module a peer; each has PROGRAMS, from a program's name to a function that makes a Run of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = {
    "qdtrace": ("qdtrace_peer", "PROGRAMS"),
    "loop by hand": ("qdtrace_peer", "BY_HAND"),
    "jax": ("jax_peer", "PROGRAMS"),
    "jax-stacked": ("jax_peer", "STACKED"),
    "jax-one-kernel": ("jax_peer", "PROGRAMS"),
    "drjit": ("drjit_peer", "PROGRAMS"),
    "quadrants": ("quadrants_peer", "PROGRAMS"),
    "numba": ("numba_peer", "PROGRAMS"),
    "gradient": ("qdtrace_gradients", "GRADIENTS"),
    "primal": ("qdtrace_gradients", "PRIMALS"),
    "by hand": ("qdtrace_gradients", "BY_HAND"),
    "simd": ("simd_gradients", "PROGRAMS"),
    "jax.vjp": ("jax_gradients", "GRADIENTS"),
    "quadrants.mpm": ("quadrants_mpm", "PROGRAMS"),
    "quadrants.grad": ("quadrants_gradients", "PROGRAMS"),
}

FLAGS = {"jax-one-kernel": f"--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold={1 << 40}"}
"""XLA's flags in a peer's process: loops that touch fewer bytes are one kernel each, of one thread, on a CPU."""


@dataclass
class Run:
    """A program ready to run on its inputs."""

    call: Callable[[Any], Any]
    """Runs once, on what `prepare` gave, and waits for the end."""
    result: Callable[[Any], tuple[Any, ...]]
    """NumPy arrays of what `call` gave."""
    prepare: Callable[[], Any] = lambda: None
    """Made before each timed call, outside the time."""
    calls: int = 1
    """Calls that `call` makes; the time is divided by it."""
    about: Callable[[], str] = str
    """A line about the program, printed after the first call."""
