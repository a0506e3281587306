"""Transposes in place of derivatives: the equations of `custom` that one application of a rule has made."""

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
    """What the equations of one application of a rule have in common."""
    return (id(eqn.params["rule"]), *map(id, eqn.invars[1:]))


def groups(eqns: Iterable[Eqn]) -> dict[Key, list[Eqn]]:
    """Equations of each application of a rule, in order."""
    found: dict[Key, list[Eqn]] = {}
    for eqn in eqns:
        if eqn.primitive is CUSTOM:
            found.setdefault(key_of(eqn), []).append(eqn)
    return found


def rule_of(eqn: Eqn) -> Rule:
    """The rule of an equation; refuses one that is known by its name alone."""
    rule = eqn.params["rule"]
    if isinstance(rule, str):
        raise GradientError(
            f"needs the derivative rule of `{rule}`, got its name from a graph's text",
            loc=eqn.loc,
            help="differentiate the traced function",
        )
    return rule


def adjoints_of(eqn: Eqn, active: Collection[Var]) -> Block:
    """The block of a rule's adjoints; `active` are variables that have any."""
    return rule_of(eqn).adjoints_of(tuple(a in active for a in eqn.invars[1:]))


def residuals_of(eqn: Eqn) -> int | None:
    """How many operands the rule of a linear function reads, of which it gives the transpose; None for other rules."""
    return getattr(eqn.params["rule"], "residuals", None)
