"""Rules by name, and their arrangement for look-up by primitive and kind of operand."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from qdtrace.frozen import frozen
from qdtrace.ir.types import DType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from qdtrace.ir.program import Atom

    Operands = tuple[Atom, ...]
    Params = Mapping[str, Any]

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_KIND_INDEX = {Kind.BOOL: 0, Kind.SIGNED: 1, Kind.UNSIGNED: 2, Kind.FLOAT: 3}
GROUP = {id(d): _KIND_INDEX[d.kind] for d in DType}
"""Position in a `RuleSet` by the `id` of a dtype: hashing the dtype itself would cost more than the rest."""
CONSTANTS = len(_KIND_INDEX)
"""Distance to the rules for operations with a constant operand."""
_ON = {"bool": (0,), "signed": (1,), "unsigned": (2,), "integer": (1, 2), "bits": (0, 1, 2), "float": (3,),
       "number": (1, 2, 3), "any": (0, 1, 2, 3)}  # fmt: skip


@frozen(eq=False, slots=True)
class Rule:
    """One local rewrite."""

    name: str
    primitives: tuple[str, ...]
    on: str
    """Kinds of the last operand that the rule applies to: a key of the table above."""
    apply: Callable[..., Any]
    exact: bool = True
    """False if the rule may change a rounding, so that it needs `fast_math`."""
    constant: bool = False
    """True if the rule needs a constant among the first and the last operand."""
    stage: str = "scalar"
    """`scalar`; or for equations with blocks: `before` (operands are rewritten, blocks are not yet) or `after`."""


@frozen(eq=False)
class RuleTable:
    """The rules of one pass, in the order in which they are tried."""

    rules: list[Rule] = field(default_factory=list)

    def rule(
        self, primitives: str, on: str = "any", *, exact: bool = True, constant: bool = False, stage: str = "scalar"
    ) -> Callable[[_Function], _Function]:
        """Returns a decorator that adds a function as the rule of its name."""

        def add(function: _Function) -> _Function:
            name = function.__name__.strip("_")
            self.rules.append(Rule(name, tuple(primitives.split()), on, function, exact, constant, stage))
            return function

        return add


@frozen(eq=False)
class RuleSet:
    """Rules of several tables, arranged for look-up by primitive and kind."""

    scalar: Mapping[str, tuple[tuple[Rule, ...], ...]]
    """Rules by primitive, for each kind of last operand: those without constants, and behind these all by kind."""
    before: Mapping[str, tuple[Rule, ...]]
    after: Mapping[str, tuple[Rule, ...]]

    @staticmethod
    def of(rules: Iterable[Rule], *, fast_math: bool) -> RuleSet:
        """Returns the rules arranged for look-up; without `fast_math` only the exact ones."""
        scalar: dict[str, tuple[list[Rule], ...]] = {}
        before: dict[str, list[Rule]] = {}
        after: dict[str, list[Rule]] = {}
        for rule in rules:
            if not rule.exact and not fast_math:
                continue
            for name in rule.primitives:
                if rule.stage != "scalar":
                    (before if rule.stage == "before" else after).setdefault(name, []).append(rule)
                    continue
                groups = scalar.setdefault(name, tuple([] for _ in range(2 * CONSTANTS)))
                for k in _ON[rule.on]:
                    groups[k + CONSTANTS].append(rule)
                    if not rule.constant:
                        groups[k].append(rule)
        return RuleSet(
            {n: tuple(tuple(r) for r in groups) for n, groups in scalar.items()},
            {n: tuple(r) for n, r in before.items()},
            {n: tuple(r) for n, r in after.items()},
        )
