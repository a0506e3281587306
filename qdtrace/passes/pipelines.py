"""The order of passes: the only place that knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.passes.observers import observers_for
from qdtrace.passes.promote_cells import PromoteCells
from qdtrace.passes.simplify import ROUNDS, Simplify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass
    from qdtrace.passes.observers import Observer


def stages(options: Options, observers: Sequence[Observer] = ()) -> tuple[Pass, ...]:
    """The passes that `optimise` runs, in order."""

    def on_round(name: str, program: Program) -> None:
        for observe in observers:
            observe(name, program)

    simplify = Simplify(
        fast_math=options.fast_math,
        constant_folding=options.constant_folding,
        share=options.opt_level > 0,
        rounds=ROUNDS if options.advanced_optimization else 1,
        on_round=on_round if observers and (options.dump_simplify or options.verify) else None,
    )
    return (
        # First, because cells are memory: no rule sees through a load, and loops carry nothing before it.
        PromoteCells(),
        simplify,
    )


def optimise(program: Program, options: Options, observers: Sequence[Observer] = ()) -> Program:
    """The optimised program. Observers are called with (name, program) before the first and after each stage.

    Those that the options ask for (verifier, printer, dumps) are added.
    """
    watching = (*observers, *observers_for(options))
    for observe in watching:
        observe("trace", program)
    for stage in stages(options, watching):
        program = stage(program)
        for observe in watching:
            observe(stage.name, program)
    return program
