"""Derivative rules in reverse mode: groups the `custom` equations of one application, and finds its adjoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import GradientError
from qdtrace.ir.primitives import CUSTOM

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from qdtrace.ir.custom import Rule
    from qdtrace.ir.program import Block, Eqn, Var

    Key = tuple[int, ...]


def key_of(eqn: Eqn) -> Key:
    """Returns the key that all equations of one application of a rule share: the rule and its operands."""
    return (id(eqn.params["rule"]), *map(id, eqn.invars[1:]))


def groups(eqns: Iterable[Eqn]) -> dict[Key, list[Eqn]]:
    """Returns the equations of each application of a rule, in order."""
    found: dict[Key, list[Eqn]] = {}
    for eqn in eqns:
        if eqn.primitive is CUSTOM:
            found.setdefault(key_of(eqn), []).append(eqn)
    return found


def rule_of(eqn: Eqn) -> Rule:
    """Returns the rule of an equation. Raises GradientError for a rule that is known by its name alone."""
    rule = eqn.params["rule"]
    if isinstance(rule, str):
        raise GradientError(
            f"needs the derivative rule of `{rule}`, got its name from a graph's text",
            loc=eqn.loc,
            help="differentiate the traced function",
        )
    return rule


def adjoints_of(eqn: Eqn, active: Collection[Var]) -> Block:
    """Returns the block that computes the adjoints of a rule's operands; `active` are variables that have adjoints."""
    return rule_of(eqn).adjoints_of(tuple(a in active for a in eqn.invars[1:]))


def residuals_of(eqn: Eqn) -> int | None:
    """Returns how many leading operands are residuals, for a rule that gives the transpose of a linear function.

    Returns None for other rules.
    """
    return getattr(eqn.params["rule"], "residuals", None)
