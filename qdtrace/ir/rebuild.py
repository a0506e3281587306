"""The one walk that makes a graph from a graph: equation by equation, through all blocks.

A `Rebuilder` is a builder that reads a graph. It replaces variables by the values of `env`; a pass does the rest in the
methods that it overrides:

    class DropChecks(Rebuilder):
        def visit(self, eqn):
            if eqn.primitive.name == "bound":
                self.env[eqn.outvar] = self.atom(eqn.invars[0])    # replaced, wherever it is used later
            else:
                super().visit(eqn)                                 # kept; inside of its blocks the same happens

Replacements of an equation are emitted as with any builder (`self("add", a, b)`). Parts in which nothing changed are
the same objects, up to the task and the program. A `Copier` makes copies with fresh variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import BlockBuilder, Builder
from qdtrace.ir.program import Block, Eqn, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.errors import Loc
    from qdtrace.ir.program import Atom, Task


class Rebuilder(Builder):
    """Rebuilds tasks, blocks and equations, with variables replaced by `env`."""

    def __init__(self, env: dict[Var, Atom] | None = None) -> None:
        super().__init__()
        self.env: dict[Var, Atom] = {} if env is None else env
        """Replacements of variables at their uses; a replacement is not replaced again."""

    @property
    def level(self) -> int:
        """The number of blocks around the current place: 1 in a task's body, as in `walk.levels_of`."""
        return len(self.stack) - 1

    # Methods to override.

    def visit(self, eqn: Eqn) -> None:
        """Appends what an equation becomes: any number of equations, none if its results are in `env`."""
        self.append(self.rebuild_eqn(eqn))

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds one block of an equation, in order; an override may set state for this block alone."""
        return self.rebuild_block(eqn.blocks[number])

    def bind(self, variables: tuple[Var, ...]) -> tuple[Var, ...]:
        """Returns the variables bound in place of parameters of a block or results of an equation."""
        return variables

    # Methods to call.

    def rebuild_task(self, task: Task) -> Task:
        """Returns the task rebuilt, head first."""
        head = self.rebuild_eqns(task.head)
        start, stop = self.atoms((task.start, task.stop))
        index = None if task.index is None else self.bind((task.index,))[0]
        return task.rebuilt(self.rebuild_block(task.body), head, start, stop, index)

    def rebuild_block(self, block: Block) -> Block:
        """Returns the block rebuilt."""
        params = self.bind(block.params)
        eqns = self.rebuild_eqns(block.eqns)
        return block.rebuilt(eqns, self.atoms(block.results), params)

    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Returns the equations rebuilt, as those of a block of their own."""
        opened = BlockBuilder()
        self.stack.append(opened)
        for eqn in eqns:
            self.visit(eqn)
        self.stack.pop()
        return tuple(opened.eqns)

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns the equation with its operands replaced and its blocks rebuilt."""
        invars = self.atoms(eqn.invars)
        if not eqn.blocks:  # most are these, and stay
            outvars = self.bind(eqn.outvars)
            same = invars is eqn.invars and outvars is eqn.outvars
            return eqn if same else eqn.rebuilt(invars, (), outvars)
        blocks = tuple([self.region(eqn, k) for k in range(len(eqn.blocks))])
        return eqn.rebuilt(invars, blocks, self.bind(eqn.outvars))

    def copy_block(self, block: Block, values: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Appends copies of a block's equations, with values for its parameters, and returns its results."""
        copier = Copier({**self.env, **dict(zip(block.params, values, strict=True))})
        for eqn in copier.rebuild_eqns(block.eqns):
            self.append(eqn)
        return copier.atoms(block.results)

    def atoms(self, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Returns the atoms with variables replaced, or the same tuple if `env` is empty."""
        if not (env := self.env):
            return atoms
        return tuple([a if a.__class__ is Literal else env.get(a, a) for a in atoms])  # type: ignore[arg-type]

    def atom(self, atom: Atom) -> Atom:
        """Returns the atom or its replacement."""
        return self.atoms((atom,))[0]


class Copier(Rebuilder):
    """Makes copies with fresh variables for all that are bound inside, so that both may be in one task.

    `env` maps variables to their copies afterwards. If `loc` is set, it is the source line of all copies.
    """

    def __init__(self, env: dict[Var, Atom] | None = None, loc: Loc | None = None) -> None:
        super().__init__(env)
        self.loc = loc

    def visit(self, eqn: Eqn) -> None:
        """Appends a copy of an equation."""
        invars = self.atoms(eqn.invars)
        blocks = tuple([self.rebuild_block(block) for block in eqn.blocks]) if eqn.blocks else ()
        outvars = self.bind(eqn.outvars)
        self.append(Eqn(eqn.primitive, invars, outvars, eqn.params, blocks, self.loc or eqn.loc))

    def bind(self, variables: tuple[Var, ...]) -> tuple[Var, ...]:
        """Returns fresh variables, which replace the old ones in `env`."""
        fresh = tuple([Var(var.type, var.hint) for var in variables])
        self.env.update(zip(variables, fresh, strict=True))
        return fresh
