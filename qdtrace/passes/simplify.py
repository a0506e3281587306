"""Simplify: local rules, invariant motion and dead code, to a fixed point.

A round is one walk with every local rule (constant folding, unreachable code, algebraic and peephole rules, common
subexpressions), then loop-invariant motion and constant extraction, then dead code. Rounds repeat for the tasks that
the last one changed, up to a limit: each round is linear, and rules that could undo one another would show as a
limit reached, which a test forbids. A body of straight code that nothing was moved out of needs no second round: rules
look at what computes their operands, and that was rewritten before.
"""

from __future__ import annotations

from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.passes import peephole, unreachable
from qdtrace.passes.base import Pass
from qdtrace.passes.dead_code import DeadCode
from qdtrace.passes.motion import ConstantExtraction, LoopInvariant
from qdtrace.passes.rewrite import RewriteOptions, Rewriter
from qdtrace.rules.families import ALGEBRAIC
from qdtrace.rules.folding import fold_all, fold_exact
from qdtrace.rules.table import RuleSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.ir.program import Program, Task

ROUNDS = 8
"""Largest number of rounds; programs of the tests need at most five."""


@frozen
class Simplify(Pass):
    """Runs all local simplifications to a fixed point."""

    name: ClassVar[str] = "simplify"
    fast_math: bool = False
    constant_folding: bool = True
    share: bool = True
    """True if common subexpressions are shared."""
    rounds: int = ROUNDS
    differentiable: bool = False
    """True if the program is to be differentiated: nothing with an infinite slope is executed speculatively."""
    on_round: Callable[[str, Program], None] | None = None
    """Function that is called after each pass of each round with a name like `simplify_1_dead_code`."""
    settled: set[Task] = field(default_factory=set["Task"], compare=False, repr=False)
    """Tasks that this pass leaves as they are, as it has made them. What another pass changes is another task."""
    unmoved: set[Task] = field(default_factory=set["Task"], compare=False, repr=False)
    """Tasks that motion leaves as they are, those settled too; rules may still change them."""

    def __call__(self, program: Program) -> Program:
        """Returns the simplified program."""
        settled, unmoved, swept = self.settled, self.unmoved, None
        for number in range(1, self.rounds + 1):
            before = program
            program = self._each(program, self._rewritten, settled)
            rewritten = program = hoisted = unreachable.without_empty_tasks(program)
            self._report(number, "rewrite", program)
            # After the rewriting, which finds constants; before dead code, which removes loops that lost their work.
            for motion in (LoopInvariant(self.differentiable), ConstantExtraction(self.differentiable)):
                hoisted = program
                program = self._each(program, lambda t, m=motion, p=program: m.on_task(t, p), unmoved)
                self._report(number, motion.name, program)
            moved, program = program, program if program is swept else DeadCode()(program)
            swept = program
            self._report(number, "dead_code", program)
            settled.update(set(program.tasks) & set(before.tasks))
            if len(program.tasks) == len(moved.tasks):
                pairs = list(zip(program.tasks, moved.tasks, strict=True))
                # Nothing leaves a loop that it stayed in, and what is dead is no memory of what is live.
                extracted = set(moved.tasks).difference(hoisted.tasks)
                unmoved.update(task for task, one in pairs if one not in extracted)
                without_motion = set(rewritten.tasks)
                settled.update(task for task, one in pairs if one in without_motion and _is_straight(task))
            unmoved |= settled
            if settled.issuperset(program.tasks):
                break
        return program

    def _report(self, number: int, name: str, program: Program) -> None:
        if self.on_round is not None:
            self.on_round(f"simplify_{number}_{name}", program)

    @staticmethod
    def _each(program: Program, change: Callable[[Task], Task], settled: set[Task]) -> Program:
        return program.map_tasks(lambda task: task if task in settled else change(task))

    def _rewritten(self, task: Task) -> Task:
        fold = (fold_all if self.fast_math else fold_exact) if self.constant_folding else None
        options = RewriteOptions(
            _rules(self.fast_math), fold=fold, share=self.share, assume=True, differentiable=self.differentiable
        )
        return Rewriter(options).rebuild_task(task)


def _is_straight(task: Task) -> bool:
    return not any(eqn.blocks for eqn in (*task.head, *task.body.eqns))


@cache
def _rules(fast_math: bool) -> RuleSet:
    return RuleSet.of((*unreachable.TABLE.rules, *ALGEBRAIC, *peephole.RULES), fast_math=fast_math)
