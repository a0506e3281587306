"""A task that copies one reference into another."""

from __future__ import annotations

from qdtrace.ir.builder import Builder, scalar_var, unravel
from qdtrace.ir.program import Task, Var, literal, ref_type
from qdtrace.ir.types import DType


def copy_task(source: Var, target: Var) -> Task:
    """Copies all elements; axes that the target has in front of those of the source get the same content each."""
    shape, size = ref_type(target).shape, ref_type(target).size
    dtype = DType.i32 if size < 2**31 else DType.i64
    builder, index = Builder(), scalar_var(dtype, "i")
    with builder.block() as body:
        at = unravel(builder, index, shape)
        builder.store(target, builder.load(source, *at[len(shape) - ref_type(source).ndim :]), *at)
    return Task("range_for", index, literal(0, dtype), literal(size, dtype), body.close(), name=f"copy_{source.hint}")
