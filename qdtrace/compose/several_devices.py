"""Programs that several devices run together: a failure on one of them is raised when all have ended.

An error would end the program on its device, while the others wait for it in a reduction over all. So the call goes on
with zeros, the failure is kept, and after each call of a compiled function JAX looks for a kept failure.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer

from qdtrace import failures
from qdtrace.trace import compat


def raise_late_failures(results: Any) -> None:
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
