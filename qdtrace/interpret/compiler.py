"""Compiles blocks of a graph to closures over an environment: a list of slots, one per variable and literal."""

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
"""Slots with NumPy scalars and memories; they are `Any`, as np.generic has no arithmetic for type checkers."""
Step = Callable[[Env], None]
"""A closure that runs one equation."""
Rule = Callable[["Compiler", "Eqn"], Step]


class Compiler:
    """Compiles the blocks of one task to closures by a rule for each primitive.

    Variables and literals get slots when they are first met.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        template: Env,
        slots: dict[Var, int],
        burn: Callable[[Loc | None], None],
        ended: Callable[[Loc | None, int], None],
        races: RaceDetector | None,
        check_nans: bool,
    ) -> None:
        self.rules = rules
        self.template = template
        self.slots = slots
        self.burn = burn
        self.ended = ended
        self.races = races
        self.check_nans = check_nans

    def slot(self, atom: Atom) -> int:
        """Returns the slot of a variable, or a new one that holds the literal."""
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
        """Returns the function of numbers that an equation applies: see `scalar_function`."""
        found = scalar_function(name, dtypes, params)
        return watched(found, name, eqn.loc) if self.check_nans else found

    def steps(self, eqns: Sequence[Eqn]) -> list[Step]:
        """Returns the closures of the equations, in order."""
        return [self.rules[e.primitive.name](self, e) for e in eqns]

    def block(self, block: Block) -> tuple[list[int], list[Step], list[int]]:
        """Returns the slots of the parameters, the closures, and the slots of the results."""
        params = [self.slot(p) for p in block.params]
        steps = self.steps(block.eqns)
        return params, steps, [self.slot(r) for r in block.results]
