"""Peephole rules: short patterns of a few equations with a shorter equal.

Before:  c: bool = lt a b                After:  d: bool = ge a b
         d: bool = not c                         e: f32 = convert[dtype=f32] x
         y: f64 = convert[dtype=f64] x           f: f32 = select d e 0.0:f32
         e: f32 = convert[dtype=f32] y
         f: f32 = select d e 0.0:f32

The rules are in `rules/`: selects, comparisons (with the ranges of integers), conversions, powers, carries (loops
and branches that only pass values on) and loops that count.

Relies on constants being literals. Only the rules marked so change a rounding, with `fast_math` alone.
"""

from __future__ import annotations

from typing import ClassVar

from qdtrace.frozen import frozen
from qdtrace.passes import carries, loops
from qdtrace.passes.rewrite import RewriteOptions, RewritePass
from qdtrace.rules.families import PEEPHOLE
from qdtrace.rules.table import RuleSet

RULES = (*PEEPHOLE, *carries.TABLE.rules, *loops.TABLE.rules)


@frozen
class Peephole(RewritePass):
    """Replaces short patterns of equations by shorter equal ones."""

    name: ClassVar[str] = "peephole"

    def options(self) -> RewriteOptions:
        """Returns the peephole rules."""
        return RewriteOptions(RuleSet.of(RULES, fast_math=self.fast_math))
