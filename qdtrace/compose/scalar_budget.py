"""Says how large an array of an iteration may be to be written out as scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.trace import compat, jax_settings
from qdtrace.trace.products import is_loop, matrix_work
from qdtrace.trace.rows import is_mostly_of_rows, is_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.trace.compat import JaxprEqn

MATRIX_WORK = 512
"""Multiplications of matrices from which on a task is taken to do little else."""
MOST_WRITTEN = 1 << 15
"""Scalars of one task from which on fewer arrays are written out: their code takes a minute."""


def scalar_budget(items: Sequence[JaxprEqn]) -> int:
    """Returns the most elements of an array of these items that are scalars, on the machine of JAX's default device."""
    machine = jax_settings.default_machine()
    if matrix_work(items, machine.scalars_of_matrices) > MATRIX_WORK:
        return machine.scalars_of_matrices
    if not machine.keeps_rows:
        return machine.scalars
    most = machine.scalars_of_rows
    if is_of_rows(items):
        return most
    if is_mostly_of_rows(items, most + 1):
        loops = any(map(is_loop, compat.all_eqns(items)))
        return _affordable(items, machine.scalars_of_matrices, most) if loops else most
    return _affordable(items, machine.scalars, machine.scalars_of_matrices, most)


def _affordable(items: Sequence[JaxprEqn], *budgets: int) -> int:
    """Returns the first of budgets that fall with which the arrays within it are few scalars, or else the last."""
    sizes = [getattr(v.aval, "size", 0) for e in compat.all_eqns(items) for v in e.outvars]
    few = (b for b in budgets[:-1] if sum(n for n in sizes if 1 < n <= b) <= MOST_WRITTEN)
    return next(few, budgets[-1])
