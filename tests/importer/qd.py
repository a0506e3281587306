"""The tracing API under the names that users see."""

from qdtrace.trace.allocation import empty, full, zeros
from qdtrace.trace.atomics import atomic_add, atomic_cas, atomic_exchange, atomic_max
from qdtrace.trace.conditions import break_if, continue_if, otherwise, when
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange, range, while_

__all__ = [
    "atomic_add", "atomic_cas", "atomic_exchange", "atomic_max", "break_if", "continue_if", "empty", "full", "local",
    "ndrange", "otherwise", "range", "when", "while_", "zeros",
]  # fmt: skip
