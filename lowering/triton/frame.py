"""The state of emitting one kernel: names of variables, active lanes, accesses that need barriers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.triton.types import constant, number, type_of
from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from lowering.llvm.facts import TaskFacts
    from lowering.plan.sums import Where
    from lowering.triton.text import Source, Text
    from qdtrace.ir.program import Atom, Eqn

    Rule = Callable[["Frame", Eqn], None]


class Frame:
    """The state of one kernel. A variable is a block of lanes or, if it is uniform, a scalar."""

    def __init__(
        self, text: Text, facts: TaskFacts, blocks: frozenset[Var], rules: Mapping[str, Rule], *, fast_math: bool
    ) -> None:
        self.text = text
        self.facts = facts
        self.blocks = blocks
        """Variables that are blocks of lanes."""
        self.rules = rules
        self.fast_math = fast_math
        self.env: dict[Var, str] = {}
        """Names of variables, and of the pointers of references."""
        self.mask = ""
        """Name of the mask of active lanes; empty: all are active."""
        self.mask_is_block = False
        self.size = ""
        """Code of the number of lanes of a block; empty in a kernel of scalars."""
        self.ordered: frozenset[Var] = frozenset()
        """References whose accesses a barrier must separate."""
        self.touched: set[Var] = set()
        """References of `ordered` accessed so far."""
        self.loops = 0
        """Depth of loops around the equation that is emitted."""
        self.where: Callable[[Eqn], Where]
        """Returns the memory of an accumulation's sum."""
        self.sums: dict[Eqn, str] = {}
        """Variables that hold the sums of accumulations."""

    @property
    def module(self) -> Source:
        """The module of the kernel."""
        return self.text.module

    def is_block(self, atom: Atom) -> bool:
        """Returns whether an operand is a block of lanes."""
        return isinstance(atom, Var) and atom in self.blocks

    def bind(self, var: Var, expression: str) -> None:
        """Emits an expression and makes it the value of a variable."""
        self.env[var] = self.text.let(var.hint or "v", expression)

    def operand(self, atom: Atom) -> str:
        """Returns code of an operand that has its dtype in any context."""
        return constant(atom) if isinstance(atom, Literal) else self.env[atom]

    def operands(self, atoms: Sequence[Atom]) -> list[str]:
        """Returns code of an operator's operands: literals are Python numbers if a variable decides the dtype."""
        decided = any(isinstance(a, Var) for a in atoms)
        return [
            number(a) if decided and isinstance(a, Literal) and not _is_minus_zero(a) else self.typed(a) for a in atoms
        ]

    def typed(self, atom: Atom) -> str:
        """Returns code of an operand as a Triton value, never a Python number."""
        if not isinstance(atom, Literal):
            return self.env[atom]
        text = constant(atom)
        return text if "tl.full" in text else f"tl.full((), {text}, {type_of(atom.dtype)})"

    def spread(self, atom: Atom, *, block: bool) -> str:
        """Returns code of an operand for a variable of a loop or branch, broadcast to a block if `block`."""
        if not block or self.is_block(atom):
            return self.typed(atom)
        return f"tl.broadcast_to({self.typed(atom)}, ({self.size},))"

    def emit(self, eqns: Sequence[Eqn]) -> None:
        """Emits equations, in order."""
        for eqn in eqns:
            if not eqn.blocks:
                self.text.at(eqn.loc)
            self.rules[eqn.primitive.name](self, eqn)

    def narrow(self, condition: str, *, is_block: bool) -> None:
        """Deactivates lanes without the condition up to the end of the kernel or branch."""
        if self.mask:
            self.text.line(f"{self.mask} = {self.mask} & {condition}")
        else:
            self.mask = self.text.let("live", condition)
        self.mask_is_block |= is_block

    @contextmanager
    def only(self, condition: str) -> Generator[None]:
        """Restricts the mask to lanes with the condition; restores it afterwards."""
        before = self.mask, self.mask_is_block
        self.mask = self.text.let("taken", f"{self.mask} & {condition}" if self.mask else condition)
        self.mask_is_block = True
        yield
        self.mask, self.mask_is_block = before


def _is_minus_zero(value: Literal) -> bool:
    return constant(value).endswith("* -1.0)")
