"""The order of passes: the only place that knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.machine import CPU
from qdtrace.ir.program import Stage
from qdtrace.ir.verify import verify_stage
from qdtrace.passes.by_name import memory_for, pass_named, simplify_for
from qdtrace.passes.choose_platform import ChoosePlatform
from qdtrace.passes.observers import finish, listening, observers_for, teller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass
    from qdtrace.passes.observers import Observer

_UNROLLING, _ON_UNROLLED = ("unroll_guarded", "flatten_loops", "unroll"), ("mem2reg", "prove_bounds")
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
    nests = () if machine.keeps_rows else (*map(of, ("fuse_loops", "contract_rows", "mem2reg")), *memory, simplify)
    unrolled = (*nests, *map(of, first), simplify, *map(of, then), *memory)
    cheaper = tuple(map(of, ("own_rows", "reloads", "predicate", "strength_reduction", "reciprocals", "jam")))
    final = (
        *((*unrolled, of("unroll_scattering"), of("gather"), simplify, *cheaper, simplify) if loops else ()),
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
        program = ChoosePlatform(machine.platform)(program)
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
