"""The order of passes: the only place that knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.passes.algebraic import Algebraic
from qdtrace.passes.clear_buffers import ClearBuffers
from qdtrace.passes.common_subexpressions import CommonSubexpressions
from qdtrace.passes.constant_extraction import ConstantExtraction
from qdtrace.passes.constant_folding import ConstantFolding
from qdtrace.passes.contract import Contract
from qdtrace.passes.dead_code import DeadCode
from qdtrace.passes.dead_stores import DeadStores
from qdtrace.passes.fuse_tasks import FuseTasks
from qdtrace.passes.hoist_bounds import HoistBounds
from qdtrace.passes.join_branches import JoinBranches
from qdtrace.passes.loop_invariant import LoopInvariant
from qdtrace.passes.loop_places import LoopPlaces
from qdtrace.passes.memory import Memory
from qdtrace.passes.observers import finish, listening, memory_reporter, observers_for
from qdtrace.passes.peephole import Peephole
from qdtrace.passes.predicate import Predicate
from qdtrace.passes.promote_cells import PromoteCells
from qdtrace.passes.prove_bounds import ProveBounds
from qdtrace.passes.reciprocals import Reciprocals
from qdtrace.passes.recurrences import Recurrences
from qdtrace.passes.reuse_donated import ReuseDonated
from qdtrace.passes.simplify import ROUNDS, Simplify
from qdtrace.passes.store_forwarding import StoreForwarding
from qdtrace.passes.strength_reduction import StrengthReduction
from qdtrace.passes.unreachable import Unreachable
from qdtrace.passes.unroll import Unroll
from qdtrace.passes.unroll_whiles import UnrollWhiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass
    from qdtrace.passes.observers import Observer

PASSES: Mapping[str, Callable[[Options], Pass]] = {
    "promote_cells": lambda options: PromoteCells(),
    "constant_folding": lambda options: ConstantFolding(options.fast_math),
    "unreachable": lambda options: Unreachable(options.fast_math),
    "algebraic": lambda options: Algebraic(options.fast_math),
    "peephole": lambda options: Peephole(options.fast_math),
    "common_subexpressions": lambda options: CommonSubexpressions(options.fast_math),
    "loop_invariant": lambda options: LoopInvariant(),
    "constant_extraction": lambda options: ConstantExtraction(),
    "dead_code": lambda options: DeadCode(),
    "prove_bounds": lambda options: ProveBounds(),
    "hoist_bounds": lambda options: HoistBounds(),
    "fuse_tasks": lambda options: fuse_for(options),
    "contract": lambda options: Contract(),
    "loop_places": lambda options: LoopPlaces(options.fast_math),
    "store_forwarding": lambda options: StoreForwarding(),
    "dead_stores": lambda options: DeadStores(options.cfg_optimization_per_task),
    "memory": lambda options: memory_for(options),
    "simplify": lambda options: simplify_for(options),
    "join_branches": lambda options: JoinBranches(),
    "unroll_whiles": lambda options: UnrollWhiles(),
    "unroll": lambda options: Unroll(),
    "predicate": lambda options: Predicate(),
    "strength_reduction": lambda options: StrengthReduction(),
    "recurrences": lambda options: Recurrences(),
    "reciprocals": lambda options: Reciprocals(options.fast_math),
    "clear_buffers": lambda options: ClearBuffers(),
    "reuse_donated": lambda options: ReuseDonated(),
}
"""Every pass by its name, made for some options."""


def simplify_for(options: Options, on_round: Callable[[str, Program], None] | None = None) -> Simplify:
    """The fixed point, as far as the options want it."""
    return Simplify(
        fast_math=options.fast_math,
        constant_folding=options.constant_folding,
        share=options.opt_level > 0,
        rounds=ROUNDS if options.advanced_optimization else 1,
        on_round=on_round,
    )


def fuse_for(options: Options) -> FuseTasks:
    """Task fusion as the options want it."""
    return FuseTasks(options.fuse_tasks, options.fuse_tasks_raw)


def memory_for(options: Options, on_report: Callable[[Program, str], None] | None = None) -> Memory:
    """The memory pass; whoever dumps its analysis sees that of the whole program."""
    per_task = options.cfg_optimization_per_task and not options.dump_cfg
    return Memory(options.fast_math, per_task, on_report)


def stages(options: Options, observers: Sequence[Observer] = (), *, each_pass: bool = False) -> tuple[Pass, ...]:
    """The passes that `optimise` runs, in order."""

    def on_round(name: str, program: Program) -> None:
        for observe in observers:
            observe(name, program)

    each_round = observers and (each_pass or options.dump_simplify or options.verify)
    simplify = simplify_for(options, on_round if each_round else None)
    memory: tuple[Pass, ...] = ()
    if options.opt_level > 0 and options.cfg_optimization:
        memory = (memory_for(options, memory_reporter(observers)),)
    loops = options.opt_level > 0 and options.advanced_optimization
    return (
        # Before cells are promoted, because a cell stored on both sides of one branch is stored surely.
        *((JoinBranches(),) if loops else ()),
        # Early, because cells are memory: no rule sees through a load, and loops carry nothing before it.
        PromoteCells(),
        simplify,
        # On values that loops carry; then branches and clamps of indices that it has decided fold.
        ProveBounds(),
        # What is not proven of the index of a loop is checked before it.
        HoistBounds(),
        # Again, because indices that simplify found to be constant let more private arrays go; and what they held
        # may be constant in turn. Without a new cell to promote neither of the two runs again.
        PromoteCells(),
        simplify,
        # On simple bodies, whose indices compare. What goes through private memory afterwards becomes values.
        fuse_for(options),
        Contract(),
        PromoteCells(),
        # After contraction, as what is private has one column; before the memory pass, which forwards the first values.
        *((Recurrences(),) if loops else ()),
        # On what fusion and contraction left in memory; it leaves values that fold and branches that are empty.
        *memory,
        simplify,
        # When loads are forwarded and branches empty, the cost of a body and of a side is what it will be. Unrolled
        # loops have constant indices, so private arrays are taken apart once more, and rows are forwarded.
        # Then cheaper operations: last, as `div` and `rem` are what the rest knows. The reciprocals leave their loops.
        *((UnrollWhiles(), Unroll(), simplify, PromoteCells(), ProveBounds(), *memory, Predicate()) if loops else ()),
        *((StrengthReduction(), Reciprocals(options.fast_math), simplify) if loops else ()),
        ClearBuffers(),
        # All passes before take a donated argument and the result in its memory as different memory.
        ReuseDonated(),
    )


REWRITES = ("constant_folding", "unreachable", "algebraic", "peephole", "common_subexpressions")
"""Passes that simplify runs together, in the walk that observers know as `rewrite`."""


def optimise(
    program: Program, options: Options, observers: Sequence[Observer] = (), *, each_pass: bool = False
) -> Program:
    """The optimised program. Observers are called with (name, program) before the first and after each stage.

    A stage that runs again and changes nothing is not reported again. With `each_pass` they are also called inside of
    simplify, with names like `simplify_1_dead_code`. Those that the options ask for (verifier,
    printer, dumps) are added. What else they may be told is in `passes/observers.py`.
    """
    watching = (*observers, *observers_for(options))
    for observe in watching:
        observe("trace", program)
    settled: dict[str, Program] = {}
    for stage in listening(stages(options, watching, each_pass=each_pass), watching):
        # A pass has nothing to do on what it gave itself.
        if settled.get(stage.name) is program:
            continue
        before, again = program, stage.name in settled
        program = settled[stage.name] = stage(program)
        for observe in watching if program is not before or not again else ():
            observe(stage.name, program)
    finish(watching)
    return program
