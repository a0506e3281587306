"""Constant folding: operations on constants are evaluated by the interpreter's own rules.

Before:  a: i32 = mul 6:i32 7:i32        After:  store x 42:i32 i
         store x a i

Without `fast_math` only operations whose result every target computes bit for bit are folded; `exp` and its kin are
rounded differently by different libraries, so they wait for `fast_math`.

Relies on `interpret.numpy_rules`. Never reads memory.
"""

from __future__ import annotations

from typing import ClassVar

from qdtrace.frozen import frozen
from qdtrace.passes.rewrite import RewriteOptions, RewritePass
from qdtrace.rules.folding import fold_all, fold_exact
from qdtrace.rules.table import RuleSet


@frozen
class ConstantFolding(RewritePass):
    """Evaluates operations on constants."""

    name: ClassVar[str] = "constant_folding"

    def options(self) -> RewriteOptions:
        """Returns options that fold constants and apply no rules."""
        return RewriteOptions(_NO_RULES, fold=fold_all if self.fast_math else fold_exact)


_NO_RULES = RuleSet.of((), fast_math=False)
