"""Numbers of expressions: what is computed alike from the same values has one number.

Two equations are alike if their primitives, parameters and operands are. Loads of one place are, too: whoever compares
them knows that nothing stores there in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.dataflow import makers
from qdtrace.ir.primitives import BOUND, LOAD
from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.ir.program import Atom, Eqn


def params_key(eqn: Eqn) -> tuple[tuple[str, str], ...]:
    """Returns the parameters of an equation as what compares and hashes, also where one of them does not."""
    return tuple(sorted((k, repr(v)) for k, v in eqn.params.items()))


class Expressions:
    """Numbers of the values that some equations make; a value that none of them makes is like itself alone."""

    def __init__(self, made: Mapping[Var, Eqn]) -> None:
        self.made = dict(made)
        self._numbers: dict[Atom, int] = {}
        self._known: dict[tuple[object, ...], int] = {}

    def call(self, var: Var, name: str) -> None:
        """Gives a variable the number of all that have the name: indices of two loops are then one."""
        self._numbers[var] = self._number(name)

    def number(self, atom: Atom) -> int:
        """Returns the number of an expression."""
        for eqn in makers(atom, self.made, self._numbers):
            key: tuple[object, ...] = (eqn,)
            if not eqn.blocks and (not eqn.primitive.effects or eqn.primitive in (LOAD, BOUND)):
                params = () if eqn.primitive is BOUND else params_key(eqn)
                key = (eqn.primitive.name, params, *map(self._of_known, eqn.invars))
            for result in eqn.outvars:
                self._numbers[result] = self._number(*key, result if eqn.blocks else None)
        return self._of_known(atom)

    def _of_known(self, atom: Atom) -> int:
        found = self._numbers.get(atom)
        return self._number(atom.key if isinstance(atom, Literal) else atom) if found is None else found

    def _number(self, *key: object) -> int:
        return self._known.setdefault(key, len(self._known))
