"""Devices and shardings of programs that XLA shares out, by numbers of devices: lowering a call knows no mesh."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.interpreters import mlir

from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def devices_of_shares(context: mlir.LoweringRuleContext, platform: str) -> Sequence[object]:
    """Returns as many devices as XLA shares a program's arrays among by itself, or none if it does not.

    `context` is what a lowering rule gets from JAX. It need not know the devices yet, and any of the platform will do.
    """
    axes = context.module_context.axis_context
    count = int(getattr(axes, "num_devices", 0) or 0)
    # without the address in its key, JAX would take a program for another one with such a call
    without_address = getattr(jax.config, "jax_remove_custom_partitioning_ptr_from_cache_key", False)
    if count < 2 or compat.is_export(context) or without_address:
        return ()
    try:
        found = jax.devices(platform)[:count]
    except RuntimeError:
        return ()
    return found if len(found) == count else ()


class Alive:
    """Keeps objects as long as a compiled program needs them; one that is saved was compiled, and does without them."""

    def __init__(self) -> None:
        self.objects: list[object] = []

    def __reduce__(self) -> tuple[type[Alive], tuple[()]]:
        return Alive, ()


def with_devices(context: mlir.LoweringRuleContext, devices: Sequence[object]) -> object:
    """Returns what a lowering rule gets from JAX, with devices, which JAX knows only for primitives of its own."""
    module, alive = context.module_context, Alive()
    module.add_keepalive(alive)
    axes = replace(module.axis_context, device_assignment=tuple(devices), abstract_mesh=None)
    return context.replace(module_context=module.replace(axis_context=axes, keepalives=alive.objects))


def make_unique(results: Sequence[Any]) -> None:
    """Makes the operation with these results, of a lowered program, differ from those of all other programs.

    JAX keeps compiled programs on disk by their texts. That of a partitioned call names it by an address in memory
    alone, where another one may be later on.
    """
    mark = mlir.ir.DictAttr.get({"qdtrace": mlir.ir.StringAttr.get(uuid.uuid4().hex)})
    results[0].owner.attributes["mhlo.frontend_attributes"] = mark


def devices_along(sharding: Any, rank: int, axis: int) -> np.ndarray | None:
    """Returns numbers of devices, a row for each part of an array along an axis, or None if it is not cut there."""
    found = None if sharding is None else sharding._to_xla_hlo_sharding(rank)
    if found is None or not found.is_tiled():
        return None
    sides = list(found.tile_assignment_dimensions())
    if sides[axis] < 2:
        return None
    table = np.array(found.tile_assignment_devices()).reshape(sides)
    return np.moveaxis(table, axis, 0).reshape(sides[axis], -1)


def sharding_along(devices: Sequence[object], rank: int, axis: int | None, table: np.ndarray) -> object:
    """Returns the sharding of an array that is cut along an axis, if it has one, by the rows of a table of devices."""
    whole = compat.GSPMDSharding.get_replicated(tuple(devices))
    if axis is None or len(table) == 1:
        return whole
    found = whole._to_xla_hlo_sharding(rank).to_proto()
    found.type = type(found).Type.OTHER
    found.tile_assignment_dimensions = [*(len(table) if k == axis else 1 for k in range(rank)), table.shape[1]]
    found.tile_assignment_devices = table.ravel().tolist()
    found.replicate_on_last_tile_dim = True
    return compat.GSPMDSharding(tuple(devices), found)
