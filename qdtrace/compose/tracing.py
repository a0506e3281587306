"""A call of a `qd.jit` function under `jax.jit`: its function is traced, and what was traced is staged.

`api` loads this module when a function is compiled: passes and import rules take longer than importing the package.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
from jax.core import Tracer

from qdtrace.compose.depth import depth_told
from qdtrace.compose.donation import donated_leaves
from qdtrace.compose.shown_records import with_left
from qdtrace.compose.staging import stage
from qdtrace.counters import count, timed
from qdtrace.progress import doing
from qdtrace.trace.nesting import deepest_region
from qdtrace.trace.trace import trace_function

if TYPE_CHECKING:
    from qdtrace.compose.request import Request
    from qdtrace.compose.stager import Call


def results_of(request: Request) -> object:
    """Returns the results of a function under `jax.jit`."""
    return staged_call(request)[0]


def staged_call(request: Request) -> tuple[object, Call | None]:
    """Traces a function on JAX values of an enclosing `jax.jit` and stages what was traced. Returns the results, and
    the call of a program if there is one alone."""
    args, kwargs, name, options = request.args, request.kwargs, request.name, request.options
    donated = donated_leaves(request.f, args, kwargs, *request.donations)
    count(traces=1)
    with depth_told(name), timed("tracing"):
        traced = trace_function(
            request.f,
            args,
            kwargs,
            static_argnums=[k for k, a in enumerate(args) if _is_static(a)],
            static_argnames=[k for k, a in kwargs.items() if _is_static(a)],
            name=name,
        )
    if traced.root.is_exact:
        options = replace(options, fast_math=False)
    leaves = request.leaves()
    given = [(leaves[number], limits) for number, limits in request.given]
    with depth_told(name, lambda: deepest_region(traced.root.items)), doing("importing", name, options=options):
        form = traced.root, leaves, traced.names, name, options, donated, given
        outs, left, alone = stage(*form, array_tasks=request.array_tasks)
    results = jax.tree.unflatten(traced.out_tree, outs)
    return with_left(results, left), alone


def _is_static(argument: object) -> bool:
    """Under `jax.jit` what is to be traced arrives as tracers; anything else was declared static."""
    return any(not isinstance(x, Tracer) for x in jax.tree.leaves(argument))
