"""The families of rules, in the order in which they are tried."""

from __future__ import annotations

from qdtrace.rules import comparisons, conversions, floats, integers, logic, powers, selects
from qdtrace.rules.table import RuleSet

ALGEBRAIC = (*integers.TABLE.rules, *logic.TABLE.rules, *floats.TABLE.rules)
"""Laws of arithmetic and logic."""
PEEPHOLE = (*selects.TABLE.rules, *comparisons.TABLE.rules, *conversions.TABLE.rules, *powers.TABLE.rules)
"""Short patterns of a few equations."""
_AT_ONCE = (r for r in (*ALGEBRAIC, *PEEPHOLE) if r not in powers.TABLE.rules)
AT_ONCE = RuleSet.of(_AT_ONCE, fast_math=False)
"""Exact rules that the importer applies. Powers wait for the passes, which know whether a rounding may change."""
