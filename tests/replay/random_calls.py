"""Random functions through the tracing API, by seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import qdtrace as qd
from tests.api.unsafe_programs import unsafe_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def functions(count: int) -> Iterator[tuple[int, Callable[..., Any], tuple[Any, ...]]]:
    """Functions with indices of every integer type, guarded or not, with their arguments."""
    for seed in range(count):
        made = unsafe_program(seed)
        yield seed, qd.jit(made.traced, options={"bounds": ("raise", "clip")[seed % 2]}), made.arguments
