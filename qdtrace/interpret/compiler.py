"""Blocks of a graph as lists of closures over an environment: a list of slots, one for each variable and literal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qdtrace.interpret.nans import watched
from qdtrace.interpret.numpy_rules import scalar_function
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.errors import Loc
    from qdtrace.interpret.numpy_rules import Function
    from qdtrace.interpret.races import RaceDetector
    from qdtrace.ir.program import Atom, Block, Eqn
    from qdtrace.ir.types import DType

Env = list[Any]
"""NumPy scalars and memories: to type checkers np.generic has no arithmetic."""
Step = Callable[[Env], None]
"""A closure of an equation."""
Rule = Callable[["Compiler", "Eqn"], Step]


class Compiler:
    """Turns the blocks of one task into closures by a rule for each primitive.

    Slots are given to variables and literals as they are met.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        template: Env,
        slots: dict[Var, int],
        burn: Callable[[Loc | None], None],
        races: RaceDetector | None,
        check_nans: bool,
    ) -> None:
        self.rules = rules
        self.template = template
        self.slots = slots
        self.burn = burn
        self.races = races
        self.check_nans = check_nans

    def slot(self, atom: Atom) -> int:
        """The slot of a variable, or a new one that holds the literal."""
        if isinstance(atom, Var):
            found = self.slots.get(atom)
            if found is not None:
                return found
            self.slots[atom] = len(self.template)
            self.template.append(None)
        else:
            self.template.append(atom.value)
            return len(self.template) - 1
        return self.slots[atom]

    def function(self, eqn: Eqn, name: str, dtypes: Sequence[DType], params: Mapping[str, Any]) -> Function:
        """The function of numbers that an equation applies: see `scalar_function`."""
        found = scalar_function(name, dtypes, params)
        return watched(found, name, eqn.loc) if self.check_nans else found

    def steps(self, eqns: Sequence[Eqn]) -> list[Step]:
        """The closures of the equations, in order."""
        return [self.rules[e.primitive.name](self, e) for e in eqns]

    def block(self, block: Block) -> tuple[list[int], list[Step], list[int]]:
        """Slots of the parameters, closures and slots of the results."""
        params = [self.slot(p) for p in block.params]
        steps = self.steps(block.eqns)
        return params, steps, [self.slot(r) for r in block.results]
