"""Makes passes by name, for options and a machine."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from qdtrace.analysis.machine import CPU
from qdtrace.passes.algebraic import Algebraic
from qdtrace.passes.choose_platform import ChoosePlatform
from qdtrace.passes.common_subexpressions import CommonSubexpressions
from qdtrace.passes.constant_folding import ConstantFolding
from qdtrace.passes.contract import Contract
from qdtrace.passes.contract_rows import ContractRows
from qdtrace.passes.dead_code import DeadCode
from qdtrace.passes.dead_stores import DeadStores
from qdtrace.passes.fills import Fills
from qdtrace.passes.first_accumulations import FirstAccumulations
from qdtrace.passes.first_stores import FirstStores
from qdtrace.passes.flatten_loops import FlattenLoops
from qdtrace.passes.fuse_loops import FuseLoops
from qdtrace.passes.fuse_tasks import FuseTasks
from qdtrace.passes.gather import GatherScatters
from qdtrace.passes.hoist_bounds import HoistBounds
from qdtrace.passes.jam import Jam
from qdtrace.passes.join_branches import JoinBranches
from qdtrace.passes.last_iteration import LastIteration
from qdtrace.passes.mem2reg import Mem2Reg
from qdtrace.passes.memory import Memory
from qdtrace.passes.motion import ConstantExtraction, LoopInvariant
from qdtrace.passes.own_rows import OwnRows
from qdtrace.passes.peephole import Peephole
from qdtrace.passes.predicate import Predicate
from qdtrace.passes.prove_bounds import ProveBounds
from qdtrace.passes.rare_behind import RareBehind
from qdtrace.passes.reciprocals import Reciprocals
from qdtrace.passes.recurrences import Recurrences
from qdtrace.passes.reloads import Reloads
from qdtrace.passes.reuse_donated import ReuseDonated
from qdtrace.passes.scalar_replacement import ScalarReplacement
from qdtrace.passes.share_private import SharePrivate
from qdtrace.passes.simplify import ROUNDS, Simplify
from qdtrace.passes.store_forwarding import StoreForwarding
from qdtrace.passes.strength_reduction import StrengthReduction
from qdtrace.passes.unreachable import Unreachable
from qdtrace.passes.unroll import Unroll
from qdtrace.passes.unroll_guarded import UnrollGuarded
from qdtrace.passes.unroll_scattering import UnrollScattering

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass

PASSES: Mapping[str, type[Pass]] = {
    kind.name: kind
    for kind in (
        ChoosePlatform, Mem2Reg, ConstantFolding, Unreachable, Algebraic, Peephole, CommonSubexpressions, LoopInvariant,
        ConstantExtraction, DeadCode, ProveBounds, HoistBounds, FuseTasks, Contract, ContractRows, GatherScatters,
        ScalarReplacement, StoreForwarding, DeadStores, Memory, Simplify, RareBehind, JoinBranches, UnrollGuarded,
        Unroll, UnrollScattering, LastIteration, Predicate, StrengthReduction, Recurrences, Reciprocals, FuseLoops,
        FlattenLoops, OwnRows, Reloads, Jam, Fills, FirstStores, FirstAccumulations, ReuseDonated, SharePrivate,
    )
}  # fmt: skip
"""All passes by name."""


def pass_named(name: str, options: Options, machine: Machine = CPU) -> Pass:
    """Returns the pass of that name."""
    return PASSES[name](**_fields_of(PASSES[name], options, machine))


def _fields_of(kind: type[Pass], options: Options, machine: Machine = CPU) -> dict[str, Any]:
    """Returns the fields of a pass that options and the machine decide."""
    decided = {
        "machine": machine,
        "platform": machine.platform,
        "fast_math": options.changes_rounding,
        "constant_folding": options.constant_folding,
        "share": options.opt_level > 0,
        "rounds": ROUNDS if options.advanced_optimization else 1,
        "mode": options.fuse_tasks,
        "read_after_write": options.fuse_tasks_raw,
        "per_task": options.cfg_optimization_per_task and not options.dump_cfg,
    }
    return {f.name: decided[f.name] for f in fields(kind) if f.name in decided}


def simplify_for(
    options: Options, on_round: Callable[[str, Program], None] | None = None, *, differentiable: bool = False
) -> Simplify:
    """Returns the fixed point of simplification that the options ask for."""
    return Simplify(**_fields_of(Simplify, options), differentiable=differentiable, on_round=on_round)


def memory_for(options: Options, on_report: Callable[[Program, str], None] | None = None) -> Memory:
    """Returns the memory pass that the options ask for."""
    return Memory(**_fields_of(Memory, options), on_report=on_report)
