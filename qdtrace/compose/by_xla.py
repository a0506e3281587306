"""Array code between loops that XLA runs, but for sorts of many keys and long running totals."""

from __future__ import annotations

import importlib
from math import prod
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from qdtrace.compose.jaxprs import has_marker, is_literal, largest_size, physical_type
from qdtrace.compose.segment import Constant, Pending
from qdtrace.compose.stager import SMALL
from qdtrace.compose.varying import evaluate
from qdtrace.errors import UnsupportedError
from qdtrace.trace import compat
from qdtrace.trace.dtypes import mode_for
from qdtrace.trace.importer.tells import tells
from qdtrace.trace.physical import logical
from qdtrace.trace.source import lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array
    from jax.core import ShapedArray

    from qdtrace.compose.stager import Stager
    from qdtrace.trace.compat import JaxprEqn


_LONG = {"sort": ("dimension", 1 << 6, 1 << 12), "cumsum": ("axis", 1 << 14, 1 << 14)}
"""Axes, their least lengths, and the least sizes for which tasks of `qdtrace.algorithms` are worth the longer
compilation on a CPU."""


def is_long(eqn: JaxprEqn) -> bool:
    """Returns whether an equation sorts or adds up along a long axis."""
    axis, length, size = _LONG.get(eqn.primitive.name, ("", 0, 0))
    if not axis:
        return False
    shape = eqn.invars[0].aval.shape
    return shape[eqn.params[axis]] >= length and prod(shape) >= size


def by_xla(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages array code: by XLA, or in a serial task if it is small and needs a value of one."""
    pending = tells(eqn) or any(not is_literal(v) and isinstance(stager.env[v], Pending) for v in eqn.invars)
    if pending and largest_size(eqn) <= (1 if stager.array_tasks else SMALL):
        try:
            stager.serial(eqn)
        except UnsupportedError:
            pass
        else:
            return
    values = [stager.value(v) for v in eqn.invars]
    if stager.conditions and (eqn.effects or has_marker(eqn, "qd_call")):
        outs = _if_true(stager, lambda: evaluate(eqn, values), [v.aval for v in eqn.outvars])
    else:
        with lines_of(eqn):
            outs = _evaluated(eqn, values)
    for var, out in zip(eqn.outvars, outs, strict=True):
        stager.env[var] = Constant(out)


def _evaluated(eqn: JaxprEqn, values: Sequence[Array]) -> Sequence[Array]:
    """Returns the results of array code. What is long in it may be tasks, whose module is known by name alone."""
    if any(map(is_long, compat.all_eqns([eqn]))):
        return importlib.import_module("qdtrace.algorithms.of_jax").run(eqn, values)
    return evaluate(eqn, values)


def _if_true(stager: Stager, run: Callable[[], list[Array]], avals: Sequence[ShapedArray]) -> list[Array]:
    """Returns the result of `run` if the enclosing top-level `qd.when`s hold, else zeros: it may fail otherwise."""
    shapes = [physical_type(a) for a in avals]
    with mode_for(dtype.numpy for _, dtype in shapes):
        zeros = [logical(jnp.zeros(shape, dtype.numpy), a) for (shape, dtype), a in zip(shapes, avals, strict=True)]
    return jax.lax.cond(stager.holds(), run, lambda: zeros)
