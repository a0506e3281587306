"""Common subexpressions: a value that was computed before is not computed again.

Before:  a: f32 = mul x y        After:  a: f32 = mul x y
         b: f32 = mul y x                c: f32 = add a a
         c: f32 = add a b

A value is known in its block and the blocks inside it (structured control flow: that is dominance), so numbering is
one dictionary with an undo list. Two loads of one place are one value when nothing between them may write the
reference: a store, accumulation or atomic in this task, in the loop around, or in a branch passed on the way. Other
threads do not count: reading what another thread writes is a race.

Never shares `cell`, `atomic` or structured equations. Briggs, Cooper and Simpson, Value Numbering, 1997.
"""

from __future__ import annotations

from typing import ClassVar

from qdtrace.frozen import frozen
from qdtrace.passes.rewrite import RewriteOptions, RewritePass
from qdtrace.rules.table import RuleSet

_NO_RULES = RuleSet.of((), fast_math=False)


@frozen
class CommonSubexpressions(RewritePass):
    """Shares equal values."""

    name: ClassVar[str] = "common_subexpressions"

    def options(self) -> RewriteOptions:
        """Returns options that share values and apply no rules."""
        return RewriteOptions(_NO_RULES, share=True)
