"""Builds tasks over all elements of a reference, such as one that copies it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import Builder, scalar_var, unravel
from qdtrace.ir.program import Task, Var, literal, ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.ir.program import Atom


def each_element(ref: Var, visit: Callable[[Builder, list[Atom]], None], name: str = "") -> Task:
    """Returns a task with one iteration for each element of `ref`, emitted by `visit` from the element's indices."""
    size = ref_type(ref).size
    dtype = DType.i32 if size < 2**31 else DType.i64
    builder, index = Builder(), scalar_var(dtype, "i")
    with builder.block() as body:
        visit(builder, unravel(builder, index, ref_type(ref).shape))
    return Task("range_for", index, literal(0, dtype), literal(size, dtype), body.close(), name=name)


def copy_task(source: Var, target: Var) -> Task:
    """Returns a task that copies all elements; along leading axes that only the target has the content repeats."""
    front = ref_type(target).ndim - ref_type(source).ndim

    def copy(builder: Builder, at: list[Atom]) -> None:
        builder.store(target, builder.load(source, *at[front:]), *at)

    return each_element(target, copy, f"copy_{source.hint}")
