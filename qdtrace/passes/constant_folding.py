"""Constant folding: operations on constants are evaluated by the interpreter's own rules.

Before:  a: i32 = mul 6:i32 7:i32        After:  store x 42:i32 i
         store x a i

Without `fast_math` only operations whose result every target computes bit for bit are folded; `exp` and its kin are
rounded differently by different libraries, so they wait for `fast_math`.

Relies on `interpret.numpy_rules`. Never reads memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qdtrace.interpret.numpy_rules import apply_scalar
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Literal
from qdtrace.ir.types import BOOL, ScalarType
from qdtrace.passes.rewrite import RewriteOptions, RewritePass
from qdtrace.passes.rule_table import RuleSet

if TYPE_CHECKING:
    from collections.abc import Mapping


def fold_all(name: str, operands: tuple[Atom, ...], params: Mapping[str, Any]) -> Literal | None:
    """Returns the value of a primitive if all operands are constants, else None."""
    for atom in operands:
        if atom.__class__ is not Literal:
            return None
    value = apply_scalar(name, [a.value for a in operands], params)  # type: ignore[union-attr]
    if PRIMITIVES[name].is_predicate:
        return Literal(value, BOOL)
    target = params.get("dtype")
    return Literal(value, operands[-1].type if target is None else ScalarType(target))  # type: ignore[arg-type]


def fold_exact(name: str, operands: tuple[Atom, ...], params: Mapping[str, Any]) -> Literal | None:
    """Folds like `fold_all`, but only primitives that have the same bits on all machines."""
    return None if PRIMITIVES[name].is_function else fold_all(name, operands, params)


@dataclass(frozen=True)
class ConstantFolding(RewritePass):
    """Evaluates operations on constants."""

    name: ClassVar[str] = "constant_folding"

    def options(self) -> RewriteOptions:
        """Returns options that fold constants and apply no rules."""
        return RewriteOptions(_NO_RULES, fold=fold_all if self.fast_math else fold_exact)


_NO_RULES = RuleSet.of((), fast_math=False)
