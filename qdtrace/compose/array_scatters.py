"""Updates of rows of an array (`x.at[k].add(v)`) as tasks: a copy of the array, then a task over the updates.

A row of the updates is a whole row of the array at a place that is read (`x.at[k]`), or at an offset from the one place
that is read (`x.at[1:-1]`). Rows at places that the array does not have are dropped, or put at its ends where the
equation says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.program import literal
from qdtrace.ir.types import DType
from qdtrace.trace.dtypes import accumulated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.compose.array_tasks import ArrayTasks, Row
    from qdtrace.ir.program import Atom
    from qdtrace.trace.importer.values import Value

JOINED = {"scatter-add": "add", "scatter-mul": "mul", "scatter-min": "min", "scatter-max": "max"}


def scatter_plan(tasks: ArrayTasks) -> Callable[[], None] | None:
    """Returns what appends the tasks of an update, or None where XLA has to run it."""
    eqn, (out,) = tasks.eqn, tasks.eqn.outvars
    x, indices, updates = eqn.invars
    dims, join = eqn.params["dimension_numbers"], JOINED.get(eqn.primitive.name)
    shape, given = tuple(x.aval.shape), tuple(updates.aval.shape)
    count = len(indices.aval.shape)
    is_window = dims.inserted_window_dims == () and count == 1
    is_row = dims.inserted_window_dims == (0,) and count == 1
    is_each = dims.inserted_window_dims == (0,) and count == 2
    rest = given if is_row else given[1:]
    windows = tuple(range(len(given)))[is_each:]
    if not (is_window or is_row or is_each) or rest != shape[1:] or dims.update_window_dims != windows:
        return None
    if dims.scatter_dims_to_operand_dims != (0,) or dims.operand_batching_dims or indices.aval.dtype != np.int32:
        return None
    if join and accumulated(out.aval, join).dtype != out.aval.dtype:
        return None
    length = given[0] if is_window else 1
    last = shape[0] - length
    if last < 0:
        return None
    clips = getattr(eqn.params["mode"], "name", "") == "CLIP"

    def at_place(at: Row, found: Atom, offset: Atom | None, row: Value) -> None:
        """Joins a row where the array has its place."""
        imp = at.importer
        zero, most = literal(0, DType.i32), literal(last, DType.i32)
        place = start = imp.op("min", imp.op("max", found, zero), most)
        if offset is not None:
            place = imp.op("add", start, offset)

        def put() -> None:
            op = join
            if op is None:
                at.store(tasks.out, row, place)
            else:
                at.each(row, lambda element, inner: at.join(tasks.out, element, [place, *inner], op))

        if clips:
            put()
        else:
            imp.if_(imp.op("eq", found, start), put)

    def update(at: Row, k: Atom) -> None:
        imp, values = at.importer, at.whole(updates)
        where: Sequence[Atom] = [k, imp.index(0)] if is_each else [imp.index(0)]
        row = values if is_row else at.of(values, k)
        at_place(at, imp.element(at.whole(indices), where), k if is_window else None, row)

    def in_order(at: Row) -> None:
        def one(k: Atom, _: Sequence[Atom]) -> list[Atom]:
            update(at, k)
            return []

        at.importer.carry_loop(given[0], [], one)

    def plan() -> None:
        tasks.rows(shape[0], lambda at: at.store(tasks.out, at.of(at.whole(x))))
        if is_row:
            tasks.serial(lambda at: update(at, at.index))
        elif is_window or join or eqn.params["unique_indices"]:
            tasks.rows(given[0], lambda at: update(at, at.index))
        else:  # of several rows at one place the last one stays
            tasks.serial(in_order)

    return plan
