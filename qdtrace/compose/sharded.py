"""Calls in a program that XLA shares out among devices: each device runs its lanes (docs/design/0066-shares.md).

XLA asks how the arrays of a call may be cut only while it compiles. The call is JAX's `custom_partitioning` then, whose
rule says which axes are lanes (`batching.shares`), and which is answered by the program for a device's lanes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.interpreters import mlir

from qdtrace.batching.shares import Shares, shares_of
from qdtrace.compose.shardings import devices_along, devices_of_shares, make_unique, sharding_along, with_devices
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.ir.program import ref_type
from qdtrace.passes.dead_code import DeadCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from jax import Array

    from qdtrace.ir.program import Var

    Run = Callable[..., list[Array]]

COLLECTIVES = {"add": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}


def partitioned(
    context: mlir.LoweringRuleContext, values: Sequence[object], staged: StagedProgram, platform: str, run: Run
) -> object:
    """Lowers a call so that each device runs its lanes, or returns None if XLA does not choose what devices do, or
    there are no lanes to share out.

    `run` calls a program on arrays.
    """
    devices = devices_of_shares(context, platform)
    if not devices or staged.options.debug or not staged.program.results or not _shares(staged):
        return None
    function = _Partitioned(staged, devices, run).function()
    results = mlir.lower_fun(function, multiple_results=True)(with_devices(context, devices), *values)
    make_unique(results)
    return results


@functools.lru_cache(maxsize=1024)
def _shares(staged: StagedProgram) -> tuple[Shares, ...]:
    found = shares_of(DeadCode()(staged.program))  # what is dead may ask for the number of a lane
    if staged.options.deterministic:  # their sums over devices have an order of their own
        found = tuple(s for s in found if not any(v.dtype.is_float for v in s.sums))
    return found


@functools.lru_cache(maxsize=1024)
def _share(staged: StagedProgram, way: int, parts: int) -> StagedProgram:
    return StagedProgram(_shares(staged)[way].share(parts), staged.options, staged.stacks)


class _Partitioned:
    """Answers what JAX asks of a call: which axes devices may share, and the program of each device."""

    def __init__(self, staged: StagedProgram, devices: Sequence[object], run: Run) -> None:
        self.staged = staged
        self.ways = _shares(staged)  # perhaps of another program that is equal, with variables of its own
        self.program = self.ways[0].program
        self.devices = devices
        self.run = run

    def function(self) -> Callable[..., object]:
        """Returns the function that JAX partitions."""
        others: list[str] = []

        def factor(v: Var, axis: int) -> str:
            for k, shares in enumerate(self.ways):
                if shares.axes.get(v) == axis:
                    return f"lanes{k}"
            others.append(f"whole{len(others)}")
            return others[-1]

        def factors(variables: Sequence[Var]) -> tuple[ArrayMapping, ...]:
            return tuple(ArrayMapping(*(factor(v, k) for k in range(_rank(v)))) for v in variables)

        program = self.program
        mappings = factors(program.params), factors(program.results)
        rule = SdyShardingRule(*mappings, need_replication_factors=tuple(others))
        made = custom_partitioning(lambda *xs: self.run(self.staged, xs))
        made.def_partition(self.partition, self.infer, decode_shardings=False, sharding_rule=rule)
        return made

    def partition(self, mesh: object, params: Sequence[object], results: Sequence[object]) -> tuple[object, ...]:
        """Returns the mesh, the function of one device, and the shardings of its results and arguments."""
        program = self.program
        ends = *zip(program.results, results, strict=True), *zip(program.params, params, strict=True)
        way, table = self._table(ends)
        parts = len(table)
        shares = self.ways[way]
        staged = _share(self.staged, way, parts) if parts > 1 else self.staged
        groups = table.T.tolist()
        ops = [shares.sums.get(v) if parts > 1 else None for v in program.results]

        def lower(*operands: Array) -> list[Array]:
            return [
                x if op is None else COLLECTIVES[op](x, "devices", axis_index_groups=groups)
                for x, op in zip(self.run(staged, operands), ops, strict=True)
            ]

        given, made = ([self._sharding(v, way, table) for v in vs] for vs in (program.params, program.results))
        return jax.sharding.Mesh(np.array(self.devices), ("devices",)), lower, made, tuple(given)

    def infer(self, mesh: object, params: Sequence[object], results: object) -> object:
        """Returns the shardings of results, from those of arguments."""
        program = self.program
        way, table = self._table(tuple(zip(program.params, params, strict=True)))
        return [self._sharding(v, way, table) for v in program.results]

    def _table(self, arrays: Sequence[tuple[Var, Any]]) -> tuple[int, np.ndarray]:
        """Returns the way that makes the most shares, and the numbers of devices: those in a row run the same share."""
        chosen, found = 0, np.arange(len(self.devices)).reshape(1, -1)
        for way, shares in enumerate(self.ways):
            for v, array in arrays:
                axis = shares.axes.get(v)
                table = None if axis is None else devices_along(array.sharding, _rank(v), axis)
                if table is not None and len(table) > len(found) and shares.count % len(table) == 0:
                    chosen, found = way, table
        return chosen, found

    def _sharding(self, v: Var, way: int, table: np.ndarray) -> object:
        return sharding_along(self.devices, _rank(v), self.ways[way].axes.get(v), table)


def _rank(v: Var) -> int:
    return len(ref_type(v).shape)
