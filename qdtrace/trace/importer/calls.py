"""Primitives that wrap other jaxprs or ask where they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.errors import UnsupportedError
from qdtrace.trace import compat
from qdtrace.trace.importer.registry import rule
from qdtrace.trace.importer.scalars import constant
from qdtrace.trace.importer.values import Value, rank0

if TYPE_CHECKING:
    from qdtrace.trace.importer.core import Importer


@rule("custom_linear_solve")
def custom_linear_solve(imp: Importer, eqn: Any, *operands: Value) -> list[Value]:
    """Runs the user's `solve`; the other jaxprs are for derivatives."""
    lengths = list(eqn.params["const_lengths"])
    before, count, total = sum(lengths[:2]), lengths[2], sum(lengths)
    solve = eqn.params["jaxprs"].solve
    results = imp.call(solve, [*operands[before : before + count], *operands[total:]])
    return results[: len(eqn.outvars)]


@rule("call_hi_primitive")
def call_hi_primitive(imp: Importer, eqn: Any, *operands: Value) -> list[Value]:
    """An operation that JAX itself lowers to ordinary primitives."""
    return imp.call(compat.lower_hijax(eqn), operands)


@rule("eval_jaxpr")
def eval_jaxpr(imp: Importer, eqn: Any, *operands: Value) -> list[Value]:
    """A jaxpr that is a parameter."""
    return imp.call(next(compat.inner_jaxprs(eqn)), operands)


@rule("platform_index")
def platform_index(imp: Importer, eqn: Any) -> Value:
    """The branch for any platform; a graph does not know where it will run."""
    platforms = eqn.params["platforms"]
    default = [k for k, names in enumerate(platforms) if names is None]
    cpu = [k for k, names in enumerate(platforms) if names is not None and "cpu" in names]
    return rank0(constant(np.int32((default or cpu or [0])[0])))


@rule("debug_callback", "debug_print", "pure_callback", "io_callback")
def callback(imp: Importer, eqn: Any, *operands: Value) -> Any:
    """Python cannot be called from a kernel."""
    imp.locate()
    raise UnsupportedError(
        f"`{eqn.primitive.name}` calls Python, which a loop body cannot do",
        loc=imp.builder.loc,
        help="store what you want to see in a buffer and look at it after the call",
    )
