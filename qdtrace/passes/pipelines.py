"""The order of passes: the only place that knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.machine import CPU
from qdtrace.ir.platforms import on_platform
from qdtrace.ir.program import Stage
from qdtrace.ir.verify import verify_stage
from qdtrace.passes.algebraic import Algebraic
from qdtrace.passes.common_subexpressions import CommonSubexpressions
from qdtrace.passes.constant_folding import ConstantFolding
from qdtrace.passes.contract import Contract
from qdtrace.passes.dead_code import DeadCode
from qdtrace.passes.dead_stores import DeadStores
from qdtrace.passes.fills import Fills
from qdtrace.passes.first_accumulations import FirstAccumulations
from qdtrace.passes.first_stores import FirstStores
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
from qdtrace.passes.observers import finish, listening, observers_for, teller
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
    from collections.abc import Callable, Mapping, Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass
    from qdtrace.passes.observers import Observer

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


_UNROLLING, _ON_UNROLLED = ("unroll_guarded", "unroll"), ("mem2reg", "prove_bounds")
"""The passes that unroll loops, and those that look at the constants which indices then are, behind rules."""


def stages(
    options: Options,
    observers: Sequence[Observer] = (),
    *,
    each_pass: bool = False,
    machine: Machine = CPU,
    differentiable: bool = False,
) -> dict[Stage, tuple[Pass, ...]]:
    """Returns the passes that `optimise` runs, in order, by the stage that they lead to.

    `CANONICAL` asks nothing of the machine: what transforms programs (differentiation) begins there. `JOINED` puts
    tasks together and takes what they hand to each other out of memory. `FINAL` fits bodies to the machine: loops and
    branches become straight code, operations cheaper ones, and buffers get memory and initial values.
    """

    def on_round(name: str, program: Program) -> None:
        for observe in observers:
            observe(name, program)

    def of(name: str) -> Pass:
        return pass_named(name, options, machine)

    each_round = observers and (each_pass or options.dump_simplify or options.verify)
    simplify = simplify_for(options, on_round if each_round else None, differentiable=differentiable)
    whole = options.opt_level > 0 and options.cfg_optimization
    memory = (memory_for(options, teller(observers, "on_memory")),) if whole else ()
    loops = options.opt_level > 0 and options.advanced_optimization
    canonical = (
        # Before cells are promoted, because a cell stored on both sides of one branch is surely stored.
        *([of("join_branches")] if loops else ()),
        # Early, because cells are memory: no rule sees through a load, and loops have no carries before it.
        of("mem2reg"),
        simplify,
        # On carries of loops; simplify then folds the branches and clamps of indices that it decides.
        of("prove_bounds"),
        # Checks of loop indices that are not proven move in front of the loops.
        of("hoist_bounds"),
        # Again, because indices that simplify made constant let it promote more private arrays, whose values may be
        # constant in turn. Without a new cell to promote neither of the two runs again.
        of("mem2reg"),
        simplify,
    )
    joined = (
        # Tasks that only fill buffers are initial contents from here on.
        of("fills"),
        # On simple bodies, whose indices compare. Buffers that contraction makes private then become values.
        of("fuse_tasks"),
        of("contract"),
        # On what is left in memory; the memory pass forwards what is stored here.
        of("first_stores"),
        of("mem2reg"),
        # After contraction, as private arrays have one column; before the memory pass, which forwards first values.
        *([of("recurrences")] if loops else ()),
        # On the memory accesses that fusion and contraction leave; its values fold, and some branches become empty.
        *memory,
        simplify,
    )
    # When loads are forwarded and branches empty, the costs of bodies and sides are final. Unrolled loops have constant
    # indices, so private arrays are promoted once more, and their elements are forwarded. Rare blocks first, as a loop
    # that became straight code would have them in each step. Cheaper operations come last, as other passes know `div`
    # and `rem` only. Sums side by side load the same numbers, of which the last simplify leaves one load.
    first, then = ("rare_behind", *_UNROLLING, "last_iteration"), ("fuse_loops", *_ON_UNROLLED)
    unrolled = (*map(of, first), simplify, *map(of, then), *memory)
    cheaper = tuple(map(of, ("own_rows", "reloads", "predicate", "strength_reduction", "reciprocals", "jam")))
    final = (
        *((*unrolled, of("gather"), simplify, *cheaper, simplify) if loops else ()),
        # Again, because tasks may be fills, and overwrite whole buffers, now.
        of("fills"),
        # On initial values, when loops over few components are unrolled.
        of("first_accumulations"),
        # All passes before it treat a donated argument and the result in its memory as different memory.
        of("reuse_donated"),
        of("share_private"),
    )
    return {Stage.CANONICAL: canonical, Stage.JOINED: joined, Stage.FINAL: final}


def unrolled(program: Program, options: Options, machine: Machine) -> Program:
    """Returns a joined program with those loops unrolled that the machine unrolls in the end: for differentiation,
    which makes two loops of each. Tasks, parameters and buffers stay the same."""
    if options.opt_level == 0 or not options.advanced_optimization:
        return program
    simplify = simplify_for(options, differentiable=True)
    memory = (memory_for(options),) if options.cfg_optimization else ()
    first, then = ([pass_named(name, options, machine) for name in names] for names in (_UNROLLING, _ON_UNROLLED))
    made = program
    for one in (*first, simplify, *then, *memory, simplify):
        made = one(made)
    is_same = len(made.tasks) == len(program.tasks) and made.buffers == program.buffers
    return made if is_same else program


REWRITES = ("constant_folding", "unreachable", "algebraic", "peephole", "common_subexpressions")
"""Passes that simplify runs in one walk, whose name for observers is `rewrite`."""


def optimise(
    program: Program,
    options: Options,
    observers: Sequence[Observer] = (),
    *,
    machine: Machine = CPU,
    until: Stage = Stage.FINAL,
    each_pass: bool = False,
    differentiable: bool = False,
) -> Program:
    """Returns the program at the stage `until`, from the stage where it is, for a machine.

    Observers are called with (name, program) before the first and after each pass. A pass that runs again and changes
    nothing is not reported again. With `each_pass` they are also called inside of simplify, with names like
    `simplify_1_dead_code`. A `differentiable` program executes nothing speculatively that would change its gradient
    (`analysis/slopes`). The options add observers (verifier, printer, dumps); `passes/observers.py` says what else they
    may be called with.
    """
    watching = (*observers, *observers_for(options))
    for observe in watching:
        observe("trace", program)
    if not differentiable:  # what is differentiated may be for any machine
        program = on_platform(program, machine.platform)
    settled: dict[str, Program] = {}
    order = stages(options, watching, each_pass=each_pass, machine=machine, differentiable=differentiable)
    for stage, passes in order.items():
        if not program.stage < stage <= until:
            continue
        for one in listening(passes, watching):
            # A pass changes nothing in its own result.
            if settled.get(one.name) is program:
                continue
            before, again = program, one.name in settled
            program = settled[one.name] = one(program)
            for observe in watching if program is not before or not again else ():
                observe(one.name, program)
        reached = replace(program, stage=stage)
        # Rules that joined memory has fed leave nothing for a second look, unless a body is made straight.
        done = ("memory",) if stage is Stage.JOINED else ()
        settled = {name: reached if made is program or name in done else made for name, made in settled.items()}
        program = reached
        if options.verify:
            verify_stage(program)
    finish(watching)
    return program
