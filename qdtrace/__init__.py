"""qdtrace: loops over elements as fused native kernels, in JAX.

>>> import jax.numpy as jnp
>>> import qdtrace as qd
>>> @qd.jit
... def double(x):
...     for i in qd.range(x.shape[0]):
...         x[i] = 2 * x[i]
...     return x
>>> double(jnp.arange(3))
Array([0, 2, 4], dtype=int32)

Examples of the names below begin with the same imports, and `import jax`.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from qdtrace import saved_calls, timeline
from qdtrace.api import Jitted, block_until_ready, jit
from qdtrace.compose.explain import explain
from qdtrace.config import config, options
from qdtrace.derivatives import grad, hessian, jacfwd, jacrev, jvp, linearize, value_and_grad, vjp
from qdtrace.errors import (
    BackendError,
    BoundsError,
    CheckError,
    GradientError,
    InterpreterError,
    OutOfMemoryError,
    QdError,
    QdWarning,
    TraceAttributeError,
    TraceIndexError,
    TraceTypeError,
    TraceValueError,
    UnsupportedError,
    VerifyError,
    boundary,
)
from qdtrace.graphs import Graph, make_graph
from qdtrace.stats import Stats, stats
from qdtrace.trace.allocation import empty, empty_like, full, ones, zeros, zeros_like
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
from qdtrace.trace.buffers import Buffer, copy
from qdtrace.trace.cells import Cell
from qdtrace.trace.checks import check
from qdtrace.trace.conditions import break_if, continue_if, otherwise, when
from qdtrace.trace.diagnosis.foreign_names import missing as _missing
from qdtrace.trace.local import CellTree, local
from qdtrace.trace.loops import ndrange, range, while_
from qdtrace.trace.pushes.append import Append, append
from qdtrace.vmap import vmap

if TYPE_CHECKING:
    from qdtrace.algorithms import Boxes, Grid, argsort, boxes, compact, grid, reduce_by_key, scan, segments, sort
    from qdtrace.gradient_check import check_grads
    from qdtrace.lowered import Lowered
    from qdtrace.profile_table import Profile
    from qdtrace.profiling import profile
    from qdtrace.sparse import Sparsity, sparse_hessian, sparse_jacobian, sparsity
    from qdtrace.tensors.entry import torch
    from qdtrace.trace.importer import def_import_rule
    from qdtrace.trace.structs import dataclass

__version__ = "0.1.0"

saved_calls.register()
timeline.register()

__all__ = [
    "Append", "BackendError", "BoundsError", "Boxes", "Buffer", "Cell", "CellTree", "CheckError", "GradientError",
    "Graph", "Grid", "InterpreterError", "Jitted", "Lowered", "OutOfMemoryError", "Profile", "QdError", "QdWarning",
    "Sparsity", "Stats", "TraceAttributeError", "TraceIndexError", "TraceTypeError", "TraceValueError",
    "UnsupportedError", "VerifyError", "append", "argsort", "atomic_add", "atomic_and", "atomic_cas",
    "atomic_exchange", "atomic_max", "atomic_min", "atomic_or", "atomic_xor", "block_until_ready", "boxes",
    "break_if", "check", "check_grads", "compact", "config", "continue_if", "copy", "dataclass", "def_import_rule",
    "empty", "empty_like", "explain", "full", "grad", "grid", "hessian", "jacfwd", "jacrev", "jit", "jvp",
    "linearize", "local", "make_graph", "ndrange", "ones", "options", "otherwise", "profile", "range",
    "reduce_by_key", "scan", "segments", "sort", "sparse_hessian", "sparse_jacobian", "sparsity", "stats", "torch",
    "value_and_grad", "vjp", "vmap", "when", "while_", "zeros", "zeros_like",
]  # fmt: skip

_LATER = {
    name: f"qdtrace.{module}"
    for module, names in {
        "algorithms": "Boxes Grid argsort boxes compact grid reduce_by_key scan segments sort",
        "lowered": "Lowered",
        "profile_table": "Profile",
        "sparse": "Sparsity sparse_hessian sparse_jacobian sparsity",
        "gradient_check": "check_grads",
        "trace.importer": "def_import_rule",
        "trace.structs": "dataclass",
        "profiling": "profile",
        "tensors.entry": "torch",
    }.items()
    for name in names.split()
}
"""Public names whose modules need passes or import rules, and are imported when they are first used."""


if not TYPE_CHECKING:  # a type checker shall find misspelt names itself

    @boundary
    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name not in _LATER:
            raise _missing(name, __all__)
        return getattr(_import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    """Returns the public names, including those that are imported later, without the modules of this package."""
    return sorted(__all__)
