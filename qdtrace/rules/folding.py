"""Constant folding of one operation, by the interpreter's own meaning of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.interpret.numpy_rules import apply_scalar
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping


def fold_all(name: str, operands: tuple[Atom, ...], params: Mapping[str, Any]) -> Literal | None:
    """Returns the value of a primitive if all operands are constants, else None."""
    for atom in operands:
        if atom.__class__ is not Literal:
            return None
    value = apply_scalar(name, [a.value for a in operands], params)  # type: ignore[union-attr]
    return literal(value, DType.of(value.dtype))


def fold_exact(name: str, operands: tuple[Atom, ...], params: Mapping[str, Any]) -> Literal | None:
    """Folds like `fold_all`, but only primitives that have the same bits on all machines."""
    return None if PRIMITIVES[name].is_function else fold_all(name, operands, params)
