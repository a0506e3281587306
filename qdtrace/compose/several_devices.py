"""Programs that several devices run together: a failure on one of them is raised when all have ended.

An error would end the program on its device, while the others wait for it in a reduction over all. So the call goes on
with zeros, the failure is kept, and after each call of a compiled function JAX looks for a kept failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.core import Tracer

from qdtrace import failures
from qdtrace.saved_calls import told_by_xla
from qdtrace.trace import compat, hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array
    from jax.interpreters import mlir

    from qdtrace.compose.staged_program import StagedProgram


def lowered(
    context: mlir.LoweringRuleContext,
    values: Sequence[object],
    staged: StagedProgram,
    platform: str,
    run: Callable[..., list[Array]],
    whole: Callable[..., object],
) -> object:
    """Lowers a call in a program of several devices.

    `run` calls a program on arrays. `whole` lowers the call as it is, for all lanes.
    """
    # only here: programs of one device do without
    from qdtrace.compose.sharded import partitioned

    hooks.after_each_run(raise_late_failures)
    with told_by_xla():
        return partitioned(context, values, staged, platform, run) or whole(context, *values)


def raise_late_failures(results: object) -> None:
    """Waits for results that several processors share, and raises a failure that happened in their computation."""
    shared = [
        x
        for x in jax.tree.leaves(results)
        if isinstance(x, jax.Array) and not isinstance(x, Tracer) and len(x.devices()) > 1 and compat.is_on_host(x)
    ]
    if shared:
        jax.block_until_ready(shared)
        if failures.glance() != failures.fine:
            failures.raise_failures()
