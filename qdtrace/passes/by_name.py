"""Makes passes by name, for options and a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.machine import CPU
from qdtrace.passes.algebraic import Algebraic
from qdtrace.passes.common_subexpressions import CommonSubexpressions
from qdtrace.passes.constant_folding import ConstantFolding
from qdtrace.passes.contract import Contract
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass

PASSES: Mapping[str, Callable[[Options, Machine], Pass]] = {
    "mem2reg": lambda options, machine: Mem2Reg(),
    "constant_folding": lambda options, machine: ConstantFolding(options.changes_rounding),
    "unreachable": lambda options, machine: Unreachable(options.changes_rounding),
    "algebraic": lambda options, machine: Algebraic(options.changes_rounding),
    "peephole": lambda options, machine: Peephole(options.changes_rounding),
    "common_subexpressions": lambda options, machine: CommonSubexpressions(options.changes_rounding),
    "loop_invariant": lambda options, machine: LoopInvariant(),
    "constant_extraction": lambda options, machine: ConstantExtraction(),
    "dead_code": lambda options, machine: DeadCode(),
    "prove_bounds": lambda options, machine: ProveBounds(),
    "hoist_bounds": lambda options, machine: HoistBounds(),
    "fuse_tasks": lambda options, machine: FuseTasks(options.fuse_tasks, options.fuse_tasks_raw, machine=machine),
    "contract": lambda options, machine: Contract(machine),
    "gather": lambda options, machine: GatherScatters(machine),
    "scalar_replacement": lambda options, machine: ScalarReplacement(options.changes_rounding),
    "store_forwarding": lambda options, machine: StoreForwarding(),
    "dead_stores": lambda options, machine: DeadStores(options.cfg_optimization_per_task),
    "memory": lambda options, machine: memory_for(options),
    "simplify": lambda options, machine: simplify_for(options),
    "rare_behind": lambda options, machine: RareBehind(),
    "join_branches": lambda options, machine: JoinBranches(),
    "unroll_guarded": lambda options, machine: UnrollGuarded(machine),
    "unroll": lambda options, machine: Unroll(machine),
    "last_iteration": lambda options, machine: LastIteration(machine),
    "predicate": lambda options, machine: Predicate(machine),
    "strength_reduction": lambda options, machine: StrengthReduction(),
    "recurrences": lambda options, machine: Recurrences(),
    "reciprocals": lambda options, machine: Reciprocals(options.changes_rounding),
    "fuse_loops": lambda options, machine: FuseLoops(),
    "flatten_loops": lambda options, machine: FlattenLoops(machine),
    "own_rows": lambda options, machine: OwnRows(machine),
    "reloads": lambda options, machine: Reloads(machine),
    "jam": lambda options, machine: Jam(machine),
    "fills": lambda options, machine: Fills(),
    "first_stores": lambda options, machine: FirstStores(),
    "first_accumulations": lambda options, machine: FirstAccumulations(),
    "reuse_donated": lambda options, machine: ReuseDonated(),
    "share_private": lambda options, machine: SharePrivate(machine),
}
"""Constructors of all passes, by name, for options and a machine."""


def pass_named(name: str, options: Options, machine: Machine = CPU) -> Pass:
    """Returns the pass of that name."""
    return PASSES[name](options, machine)


def simplify_for(
    options: Options, on_round: Callable[[str, Program], None] | None = None, *, differentiable: bool = False
) -> Simplify:
    """Returns the fixed point of simplification that the options ask for."""
    return Simplify(
        fast_math=options.changes_rounding,
        constant_folding=options.constant_folding,
        share=options.opt_level > 0,
        rounds=ROUNDS if options.advanced_optimization else 1,
        differentiable=differentiable,
        on_round=on_round,
    )


def memory_for(options: Options, on_report: Callable[[Program, str], None] | None = None) -> Memory:
    """Returns the memory pass; if its analysis is dumped, it is that of the whole program."""
    per_task = options.cfg_optimization_per_task and not options.dump_cfg
    return Memory(options.changes_rounding, per_task, on_report)
