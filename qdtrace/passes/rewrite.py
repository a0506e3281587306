"""Local rewriting: one forward walk that gives each equation to the rules of an `Emitter`.

Rules of scalar operations are those of `qdtrace/rules`, as in the importer; rules of equations with blocks get the
equation before or after its blocks are rewritten. With `share` set, loads and checks are shared too: two loads of one
place are one value when nothing between them may write the reference. All local passes (constant folding, algebraic
rules, peephole rules, unreachable code, common subexpressions) are this walk with other tables, and `simplify` runs it
once with all of them. It takes time linear in the size of the task, as an equation is looked at once.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from qdtrace.frozen import frozen
from qdtrace.ir.memory import written
from qdtrace.ir.primitives import AND, BOUND, CHECK, IF, LOAD, NOT, OR
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Task, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import BOOL, DType
from qdtrace.ir.walk import walk_eqns, walk_inside
from qdtrace.passes.base import TaskPass
from qdtrace.rules.emitter import Emitter
from qdtrace.rules.match import FALSE, TRUE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.ir.program import Program
    from qdtrace.rules.emitter import Fold
    from qdtrace.rules.table import Rule, RuleSet

_ONE = literal(1, DType.i32)
REWRITES = ("constant_folding", "unreachable", "algebraic", "peephole", "common_subexpressions")
"""Passes that simplify runs in one walk, whose name for observers is `rewrite`."""


@frozen
class RewriteOptions:
    """Rules and optional abilities of a rewriting walk."""

    rules: RuleSet
    fold: Fold | None = None
    """Function that evaluates an operation on constants; None if the walk folds nothing."""
    share: bool = False
    """True if values computed before are reused (common subexpressions)."""
    assume: bool = False
    """True if the condition of an `if` is taken as known inside its branches."""
    differentiable: bool = False
    """True if the program is to be differentiated."""


@frozen
class RewritePass(TaskPass):
    """A pass that is one walk over each task."""

    fast_math: bool = False

    def options(self) -> RewriteOptions:
        """Returns the rules and abilities of the walk."""
        raise AssertionError(f"{type(self).__name__} has no options")

    def on_task(self, task: Task, program: Program) -> Task:
        """Returns the rewritten task."""
        return Rewriter(self.options()).rebuild_task(task)


class Rewriter(Emitter, Rebuilder):
    """Rewrites one task."""

    def __init__(self, options: RewriteOptions) -> None:
        super().__init__(options.rules, options.fold, share=options.share)
        self.options = options
        self.visits = 0
        """Number of equations visited."""
        self._facts: dict[Var, Literal] = {}
        self._versions: dict[int, int] = {}
        self._fresh_version = count(1).__next__

    def rebuild_task(self, task: Task) -> Task:
        """Returns the rewritten task, or the same object if no rule applied."""
        head = self.rebuild_eqns(task.head)
        start, stop = self.atoms((task.start, task.stop))
        self._bump(set(written(walk_eqns(task.body))))
        if task.index is not None:
            self.ranges.set_index(task.index, start, stop, _ONE)
        return task.rebuilt(self.rebuild_block(task.body), head, start, stop)

    # Methods for rules.

    def inline(self, block: Block, bindings: Iterable[tuple[Var, Atom]] = ()) -> tuple[Atom, ...]:
        """Rewrites the equations of a block into the current one and returns its results; at most once per block."""
        self.env.update(bindings)
        for eqn in block.eqns:
            self.visit(eqn)
        return self.atoms(block.results)

    # The walk.

    def atoms(self, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Returns the atoms with variables replaced, also by the facts that hold here."""
        found = super().atoms(atoms)
        if not (facts := self._facts):
            return found
        return tuple([a if a.__class__ is Literal else facts.get(a, a) for a in found])  # type: ignore[arg-type]

    def rebuild_block(self, block: Block) -> Block:
        """Rebuilds a block; values computed in it are not available after it."""
        with self.scope():
            return super().rebuild_block(block)

    def visit(self, eqn: Eqn) -> None:
        """Appends the result of the rules for an equation."""
        self.visits += 1
        operands = self.atoms(eqn.invars)
        prim = eqn.primitive
        if eqn.blocks:
            self._structured(eqn, operands)
        elif not prim.effects:
            self.loc = eqn.loc
            var = eqn.outvars[0]
            atom = self.scalar(prim, operands, eqn.params, eqn)
            if atom is not var:
                self.env[var] = atom
        elif prim is LOAD:
            self._load(eqn, operands)
        elif prim is BOUND:
            self._bound(eqn, operands)
        elif prim is CHECK and operands[0] == TRUE:
            self.fired["check"] += 1
        else:
            self.append(eqn.rebuilt(operands))
            if prim.writes:
                self._versions[id(operands[0])] = self._fresh_version()

    def _bound(self, eqn: Eqn, operands: tuple[Atom, ...]) -> None:
        """Appends a check unless its index is a constant in range, or an equal check dominates it."""
        (index,) = operands
        size = int(eqn.params["size"])
        if isinstance(index, Literal) and 0 <= index.value < size:
            self.env[eqn.outvars[0]] = index
        else:
            self._once(eqn, operands, ("bound", size, *self.key(eqn.primitive, operands, {})))

    def _load(self, eqn: Eqn, operands: tuple[Atom, ...]) -> None:
        version = self._versions.get(id(operands[0]), 0)
        self._once(eqn, operands, ("load", version, *self.key(eqn.primitive, operands, eqn.params)))

    def _once(self, eqn: Eqn, operands: tuple[Atom, ...], key: tuple[Any, ...]) -> None:
        """Appends an equation, unless the result of one with the same key is available."""
        var = eqn.outvars[0]
        if self._share:
            known = self.shared(key)
            if known is not None:
                self.fired["share"] += 1
                self.env[var] = known
                return
            self.share(key, var)
        made = self.definitions.made[id(var)] = eqn.rebuilt(operands)
        self.append(made)

    def _bump(self, refs: Iterable[Var]) -> None:
        for ref in refs:
            self._versions[id(ref)] = self._fresh_version()

    def _structured(self, original: Eqn, operands: tuple[Atom, ...]) -> None:
        name = original.primitive.name
        changed = set(written(walk_inside(original)))
        rules = self.options.rules
        self.loc = original.loc
        eqn = self._applied(rules.before.get(name, ()), original.rebuilt(operands))
        if eqn is None:
            return
        self.ranges.enter(eqn)
        if eqn.primitive.loops:
            self._bump(changed)  # the second iteration sees what the first one wrote
        before = {id(r): self._versions.get(id(r), 0) for r in changed}
        blocks: list[Block] = []
        for number in range(len(eqn.blocks)):
            blocks.append(self.region(eqn, number))
            if original.primitive is IF:
                self._versions.update(before)
        self._bump(changed)
        eqn = self._applied(rules.after.get(name, ()), eqn.rebuilt(blocks=tuple(blocks)))
        if eqn is not None:
            self.append(eqn)
            for var in eqn.outvars:
                self.definitions.made[id(var)] = eqn

    def _applied(self, rules: Iterable[Rule], eqn: Eqn) -> Eqn | None:
        """Returns an equation with blocks as rules rewrite it, or None if its results are replaced by other values."""
        for rule in rules:
            found = rule.apply(self, eqn)
            if found is None:
                continue
            self.fired[rule.name] += 1
            if not isinstance(found, Eqn):
                self.env.update(zip(eqn.outvars, found, strict=True))
                return None
            eqn = found
        return eqn

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds a block; in a branch its condition is known if `assume` is set."""
        if eqn.primitive is not IF or not self.options.assume:
            return super().region(eqn, number)
        facts, self._facts = self._facts, {**self._facts, **self._facts_of(eqn.invars[0], (TRUE, FALSE)[number])}
        rebuilt = super().region(eqn, number)
        self._facts = facts
        return rebuilt

    def _facts_of(self, condition: Atom, holds: Literal) -> dict[Var, Literal]:
        """Returns the values of bools that follow from a condition that holds or not, through `and`, `or` and `not`."""
        facts: dict[Var, Literal] = {}
        pending: list[tuple[Atom, Literal]] = [(condition, holds)]
        while pending:
            atom, value = pending.pop()
            if not isinstance(atom, Var) or atom.type != BOOL:
                continue
            facts[atom] = value
            eqn = self.definitions.made.get(id(atom))
            if eqn is None:
                continue
            prim = eqn.primitive
            if prim is NOT:
                pending.append((eqn.invars[0], FALSE if value is TRUE else TRUE))
            elif (prim is AND and value is TRUE) or (prim is OR and value is FALSE):
                pending += [(a, value) for a in eqn.invars]
        return facts
