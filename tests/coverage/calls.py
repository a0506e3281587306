"""The whole table of calls: those of all modules of JAX."""

# pyright: reportUnusedImport=false

from . import lax_calls, nn_random_calls, numpy_calls, own_calls, scipy_calls  # noqa: F401 - they fill the table
from .table import TABLE, Call, Entry, function_of

__all__ = ["TABLE", "Call", "Entry", "function_of"]
