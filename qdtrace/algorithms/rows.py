"""Rows of algorithms: lanes become further rows, and loops over a part take several elements a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def with_lanes_first(operands: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Returns arrays with their mapped axis in front; what lanes share is repeated for each."""
    (lanes,) = {x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None}
    return [
        jnp.broadcast_to(x, (lanes, *x.shape)) if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(operands, axes, strict=True)
    ]


def last_step(low: Any, high: Any, step: int) -> Any:
    """Returns where the last whole step of a range ends."""
    return low + (high - low) // step * step


def in_steps(low: Any, high: Any, step: int) -> Iterator[Any]:
    """Yields the indices of a loop, of which `step` are an iteration, and that of a loop over the rest."""
    rest = last_step(low, high, step)
    for j in qd_range(low, rest, step):
        for k in range(step):
            yield j + k
    yield from qd_range(rest, high)
