"""The state of one kernel: what variables hold, which lanes are active, what meets in memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.triton.types import constant, number, type_of
from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from lowering.llvm.facts import TaskFacts
    from lowering.triton.plan import Way
    from lowering.triton.text import Source, Text
    from qdtrace.ir.program import Atom, Eqn

    Rule = Callable[["Frame", Eqn], None]


class Frame:
    """One kernel. A variable is a block of lanes or, where it is the same in all of them, a scalar."""

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
        """Names of variables; of references: of the pointers."""
        self.mask = ""
        """The lanes that are active; empty: all of them."""
        self.mask_is_block = False
        self.size = ""
        """Lanes of a block; empty in a kernel of scalars."""
        self.ordered: frozenset[Var] = frozenset()
        """References whose accesses a barrier must separate."""
        self.touched: set[Var] = set()
        """Those of them that there was an access to."""
        self.loops = 0
        """Loops of the iteration around what is emitted."""
        self.ways: Mapping[Eqn, Way] = {}
        """How accumulations are made."""
        self.sums: dict[Eqn, str] = {}
        """Accumulations that are summed in a variable."""

    @property
    def module(self) -> Source:
        """What the kernel is part of."""
        return self.text.module

    def is_block(self, atom: Atom) -> bool:
        """Whether an operand is a block of lanes."""
        return isinstance(atom, Var) and atom in self.blocks

    def bind(self, var: Var, expression: str) -> None:
        """Computes a variable."""
        self.env[var] = self.text.let(var.hint or "v", expression)

    def operand(self, atom: Atom) -> str:
        """An operand that has its dtype wherever it stands."""
        return constant(atom) if isinstance(atom, Literal) else self.env[atom]

    def operands(self, atoms: Sequence[Atom]) -> list[str]:
        """Operands of one operator: Python numbers beside a variable, which decides the dtype."""
        decided = any(isinstance(a, Var) for a in atoms)
        return [
            number(a) if decided and isinstance(a, Literal) and not _is_minus_zero(a) else self.typed(a) for a in atoms
        ]

    def typed(self, atom: Atom) -> str:
        """An operand as a Triton value, never a Python number."""
        if not isinstance(atom, Literal):
            return self.env[atom]
        text = constant(atom)
        return text if "tl.full" in text else f"tl.full((), {text}, {type_of(atom.dtype)})"

    def spread(self, atom: Atom, *, block: bool) -> str:
        """An operand as a variable of a loop or branch holds it: with the lanes of a block."""
        if not block or self.is_block(atom):
            return self.typed(atom)
        return f"tl.broadcast_to({self.typed(atom)}, ({self.size},))"

    def emit(self, eqns: Sequence[Eqn]) -> None:
        """Equations, in order."""
        for eqn in eqns:
            if not eqn.blocks:
                self.text.at(eqn.loc)
            self.rules[eqn.primitive.name](self, eqn)

    def narrow(self, condition: str, *, is_block: bool) -> None:
        """Lanes where the condition does not hold are active no more, to the end of the kernel or branch."""
        if self.mask:
            self.text.line(f"{self.mask} = {self.mask} & {condition}")
        else:
            self.mask = self.text.let("live", condition)
        self.mask_is_block |= is_block

    @contextmanager
    def only(self, condition: str) -> Generator[None]:
        """Equations of a branch that some lanes take; afterwards `mask` is as before."""
        before = self.mask, self.mask_is_block
        self.mask = self.text.let("taken", f"{self.mask} & {condition}" if self.mask else condition)
        self.mask_is_block = True
        yield
        self.mask, self.mask_is_block = before


def _is_minus_zero(value: Literal) -> bool:
    return constant(value).endswith("* -1.0)")
