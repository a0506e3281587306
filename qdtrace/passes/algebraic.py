"""Algebraic rules: laws of arithmetic and logic.

Before:  a: i32 = add i 3:i32            After:  b: i32 = add i 1:i32
         b: i32 = sub a 2:i32                    store x v b
         store x v b

The rules are in `qdtrace/rules/integers.py` (they wrap, so the laws of a ring hold), `rules/logic.py` and
`rules/floats.py`. A float rule is exact, for -0.0, infinities and NaN too, or it waits for `fast_math`; none turns
a NaN or an infinity into a number.

Relies on constants being literals. Never looks deeper than the definitions of the operands.
"""

from __future__ import annotations

from typing import ClassVar

from qdtrace.frozen import frozen
from qdtrace.passes.rewrite import RewriteOptions, RewritePass
from qdtrace.rules.families import ALGEBRAIC
from qdtrace.rules.table import RuleSet


@frozen
class Algebraic(RewritePass):
    """Laws of arithmetic and logic."""

    name: ClassVar[str] = "algebraic"

    def options(self) -> RewriteOptions:
        """Returns the algebraic rules."""
        return RewriteOptions(RuleSet.of(ALGEBRAIC, fast_math=self.fast_math))
