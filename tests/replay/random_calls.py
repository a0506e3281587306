"""Random functions through the tracing API, by seed."""

from collections.abc import Callable, Iterator
from typing import Any

import qdtrace as qd
from tests.api.unsafe_programs import unsafe_program


def functions(count: int) -> Iterator[tuple[int, Callable[..., Any], tuple[Any, ...]]]:
    """Functions with indices of every integer type, guarded or not, with their arguments."""
    for seed in range(count):
        made = unsafe_program(seed)
        yield seed, qd.jit(made.traced, options={"bounds": ("raise", "clip")[seed % 2]}), made.arguments
