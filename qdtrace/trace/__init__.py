"""From Python to regions of JAX equations: what a user touches inside a traced function."""

from qdtrace.trace.allocation import copy, empty, empty_like, full, ones, zeros, zeros_like
from qdtrace.trace.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
)
from qdtrace.trace.buffers import Buffer
from qdtrace.trace.cells import Cell, local
from qdtrace.trace.conditions import break_if, continue_if, otherwise, when
from qdtrace.trace.loops import ndrange, range, while_
from qdtrace.trace.structs import dataclass
from qdtrace.trace.trace import Traced, run_body, trace_function

__all__ = [
    "Buffer", "Cell", "Traced", "atomic_add", "atomic_and", "atomic_cas", "atomic_exchange", "atomic_max",
    "atomic_min", "atomic_or", "atomic_xor", "break_if", "continue_if", "copy", "dataclass", "empty", "empty_like",
    "full", "local", "ndrange", "ones", "otherwise", "range", "run_body", "trace_function", "when", "while_", "zeros",
    "zeros_like",
]  # fmt: skip
