"""Local rewriting: one forward walk that applies tables of named rules to each equation.

A *rule* looks at one equation with its operands and gives the atom that replaces its result, or None. It may emit
new equations, which pass through the rules themselves. The walk also numbers values: with `share` set, an equation
that was already computed in this or an enclosing block is not computed again. All local passes (constant folding,
algebraic rules, peephole rules, unreachable code, common subexpressions) are this walk with other tables, and
`simplify` runs it once with all of them. It takes time linear in the size of the task, as an equation is looked at
once and a rule looks only at the definitions of its operands.

Values are keyed by `id`: variables are compared by identity, and everything keyed here is kept alive by the walk.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from qdtrace.analysis.effects import PURE, Access, access_of
from qdtrace.analysis.ranges import Ranges
from qdtrace.ir.builder import result_types
from qdtrace.ir.primitives import PRIMITIVES, WRITES, Primitive
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Loc, Task, Var, literal
from qdtrace.ir.types import BOOL, DType
from qdtrace.passes.base import TaskPass
from qdtrace.passes.rule_table import GROUP, RuleSet

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from qdtrace.ir.program import Program

    Fold = Callable[[str, tuple[Atom, ...], Mapping[str, Any]], Literal | None]

_TRUE, _FALSE = literal(True, DType.bool), literal(False, DType.bool)
_ONE = literal(1, DType.i32)


@dataclass(frozen=True)
class RewriteOptions:
    """What a walk does besides applying its rules."""

    rules: RuleSet
    fold: Fold | None = None
    """Evaluates an operation on constants; None where it must not."""
    share: bool = False
    """Reuse values computed before (common subexpressions)."""
    assume: bool = False
    """Inside the branches of an `if`, take its condition as known."""


@dataclass(frozen=True)
class RewritePass(TaskPass):
    """A pass that is one walk over each task."""

    fast_math: bool = False

    def options(self) -> RewriteOptions:
        """Rules and abilities of the walk."""
        raise AssertionError(f"{type(self).__name__} has no options")

    def on_task(self, task: Task, program: Program) -> Task:
        """The rewritten task."""
        return Rewriter(self.options()).rewrite(task)


class Rewriter:
    """Rewrites one task."""

    def __init__(self, options: RewriteOptions) -> None:
        self.options = options
        self.fired: Counter[str] = Counter()
        """How often each rule replaced something."""
        self.visits = 0
        """Equations looked at."""
        self.loc: Loc | None = None
        self._rules = options.rules.scalar
        self._fold = options.fold
        self._share = options.share
        self._out: list[Eqn] = []
        self._defs: dict[int, Eqn] = {}
        self._replaced: dict[int, Atom] = {}
        self._facts: dict[int, Atom] = {}
        self._available: dict[tuple[Any, ...], Var] = {}
        self._undo: list[tuple[Any, ...]] = []
        self._versions: dict[int, int] = {}
        self._fresh_version = count(1).__next__
        self._literals: dict[int, tuple[Literal, int]] = {}
        self._numbers: dict[tuple[DType, bytes], int] = {}
        self._access: dict[Eqn, Access] = {}
        self._ranges = Ranges(self.definition)

    def rewrite(self, task: Task) -> Task:
        """The rewritten task; the same object when no rule applied."""
        self._access = {}
        written = access_of(task.body.eqns, self._access).writes
        access_of(task.head, self._access)
        head = self._eqns(task.head)
        start, stop = self._atoms((task.start, task.stop))
        self._bump(written)
        if task.index is not None:
            self._ranges.set_index(task.index, start, stop, _ONE)
        body = self._block(task.body)
        if head is task.head and body is task.body and start is task.start and stop is task.stop:
            return task
        return replace(task, head=head, start=start, stop=stop, body=body)

    # What rules call.

    def definition(self, atom: Atom) -> Eqn | None:
        """The equation that computes the atom; None for constants, indices, carries."""
        return self._defs.get(id(atom))

    def defined_by(self, atom: Atom, name: str) -> tuple[Atom, ...] | None:
        """The operands of the equation that computes the atom, if it is of that primitive."""
        eqn = self._defs.get(id(atom))
        return eqn.invars if eqn is not None and eqn.primitive.name == name else None

    def emit(self, name: str, *operands: Atom, **params: object) -> Atom:
        """The value of a pure equation: simplified, found, or computed here."""
        return self._scalar(PRIMITIVES[name], operands, params, None)

    def inline(self, block: Block, bindings: Iterable[tuple[Var, Atom]] = ()) -> tuple[Atom, ...]:
        """Rewrites the equations of a block into the current one; gives its results. At most once a block."""
        for var, atom in bindings:
            self._replaced[id(var)] = atom
        for eqn in block.eqns:
            self._visit(eqn)
        return self._atoms(block.results)

    def value_of(self, atom: Atom) -> Atom:
        """What an atom of the original task has become so far."""
        return self._atoms((atom,))[0]

    def splice(self, eqns: Iterable[Eqn]) -> None:
        """Puts equations that are rewritten already into the current block."""
        self._out += eqns

    def range_of(self, atom: Atom) -> tuple[int, int]:
        """The smallest and largest value of an integer or bool."""
        return self._ranges.of(atom)

    def replace_var(self, var: Var, atom: Atom) -> None:
        """Uses `atom` for every later use of a variable of the original task."""
        self._replaced[id(var)] = atom

    # The walk.

    def _atoms(self, atoms: Iterable[Atom]) -> tuple[Atom, ...]:
        get = self._replaced.get
        out = [get(id(a), a) for a in atoms]
        if self._facts:
            get = self._facts.get
            out = [get(id(a), a) for a in out]
        return tuple(out)

    @contextmanager
    def _inner(self) -> Generator[list[Eqn]]:
        """An inner block: its equations go to a new list, values found in it are forgotten after it."""
        out, undo = self._out, self._undo
        self._out, self._undo = [], []
        try:
            yield self._out
        finally:
            for key in self._undo:
                del self._available[key]
            self._out, self._undo = out, undo

    def _eqns(self, eqns: tuple[Eqn, ...]) -> tuple[Eqn, ...]:
        """Rewrites equations in the current scope; the same tuple when nothing changed."""
        self._out, outer = [], self._out
        for eqn in eqns:
            self._visit(eqn)
        self._out, made = outer, self._out
        return eqns if len(made) == len(eqns) and all(map(_is, made, eqns)) else tuple(made)

    def _block(self, block: Block) -> Block:
        with self._inner() as out:
            for eqn in block.eqns:
                self._visit(eqn)
            results = self._atoms(block.results)
        same = len(out) == len(block.eqns) and all(map(_is, out, block.eqns))
        if same and all(map(_is, results, block.results)):
            return block
        return Block(block.params, tuple(out), results)

    def _visit(self, eqn: Eqn) -> None:
        self.visits += 1
        operands = self._atoms(eqn.invars)
        prim = eqn.primitive
        if eqn.blocks:
            self._structured(eqn, operands)
        elif not prim.effects:
            self.loc = eqn.loc
            var = eqn.outvars[0]
            atom = self._scalar(prim, operands, eqn.params, eqn)
            if atom is not var:
                self._replaced[id(var)] = atom
        elif prim.name == "load":
            self._load(eqn, operands)
        elif prim.name == "bound":
            self._bound(eqn, operands)
        elif prim.name == "check" and operands[0] == _TRUE:
            self.fired["check"] += 1
        else:
            self._out.append(_with_operands(eqn, operands))
            if not WRITES.isdisjoint(prim.effects):
                self._versions[id(operands[0])] = self._fresh_version()

    def _scalar(
        self, prim: Primitive, operands: tuple[Atom, ...], params: Mapping[str, object], origin: Eqn | None
    ) -> Atom:
        if self._fold is not None and operands[-1].__class__ is Literal:
            folded = self._fold(prim.name, operands, params)
            if folded is not None:
                self.fired["fold"] += 1
                return folded
        groups = self._rules.get(prim.name)
        if groups is not None:
            for rule in groups[GROUP[id(operands[0].type.dtype)]]:
                found = rule.apply(self, prim.name, operands, params)
                if found is not None:
                    self.fired[rule.name] += 1
                    return found
        key = None
        if self._share:
            key = self._key(prim, operands, params)
            known = self._available.get(key)
            if known is not None:
                self.fired["share"] += 1
                return known
        if origin is not None:
            eqn = _with_operands(origin, operands)
        else:
            types = result_types(prim, operands, params)  # type: ignore[arg-type]
            eqn = Eqn(prim, operands, (Var(types[0]),), params, (), self.loc)
        self._out.append(eqn)
        var = eqn.outvars[0]
        self._defs[id(var)] = eqn
        if key is not None:
            self._available[key] = var
            self._undo.append(key)
        return var

    def _key(self, prim: Primitive, operands: tuple[Atom, ...], params: Mapping[str, object]) -> tuple[Any, ...]:
        keys = [id(a) if a.__class__ is Var else self._literal_key(a) for a in operands]  # type: ignore[arg-type]
        if prim.commutative and keys[0] > keys[1]:
            keys.reverse()
        return (prim.name, *keys, *params.items()) if params else (prim.name, *keys)

    def _literal_key(self, atom: Literal) -> int:
        found = self._literals.get(id(atom))
        if found is None:
            number = self._numbers.setdefault(atom.key, -1 - len(self._numbers))
            found = self._literals[id(atom)] = (atom, number)
        return found[1]

    def _bound(self, eqn: Eqn, operands: tuple[Atom, ...]) -> None:
        """An index in range needs no check, nor one that an equal check in front has looked at."""
        (index,) = operands
        size = int(eqn.params["size"])
        var = eqn.outvars[0]
        if isinstance(index, Literal) and 0 <= index.value < size:
            self._replaced[id(var)] = index
            return
        key = ("bound", size, id(index) if index.__class__ is Var else self._literal_key(index))  # type: ignore[arg-type]
        known = self._available.get(key) if self._share else None
        if known is not None:
            self.fired["share"] += 1
            self._replaced[id(var)] = known
            return
        made = _with_operands(eqn, operands)
        self._out.append(made)
        self._defs[id(var)] = made
        if self._share:
            self._available[key] = var
            self._undo.append(key)

    def _load(self, eqn: Eqn, operands: tuple[Atom, ...]) -> None:
        if self._share:
            version = self._versions.get(id(operands[0]), 0)
            key = ("load", version, *self._key(eqn.primitive, operands, eqn.params))
            known = self._available.get(key)
            if known is not None:
                self.fired["share"] += 1
                self._replaced[id(eqn.outvars[0])] = known
                return
            self._available[key] = eqn.outvars[0]
            self._undo.append(key)
        eqn = _with_operands(eqn, operands)
        self._out.append(eqn)
        self._defs[id(eqn.outvars[0])] = eqn

    def _bump(self, refs: Iterable[Var]) -> None:
        for ref in refs:
            self._versions[id(ref)] = self._fresh_version()

    def _structured(self, original: Eqn, operands: tuple[Atom, ...]) -> None:
        name = original.primitive.name
        written = self._access.get(original, PURE).writes
        eqn = _with_operands(original, operands)
        self.loc = eqn.loc
        for rule in self.options.rules.before.get(name, ()):
            found = rule.apply(self, eqn)
            if found is not None:
                self.fired[rule.name] += 1
                if not isinstance(found, Eqn):
                    self._replace_results(eqn, found)
                    return
                eqn = found
        blocks = self._branches(eqn, written) if name == "if" else self._loop(eqn, written)
        self._bump(written)
        if not all(map(_is, blocks, eqn.blocks)):
            eqn = replace(eqn, blocks=blocks)
        for rule in self.options.rules.after.get(name, ()):
            found = rule.apply(self, eqn)
            if found is not None:
                self.fired[rule.name] += 1
                if not isinstance(found, Eqn):
                    self._replace_results(eqn, found)
                    return
                eqn = found
        self._out.append(eqn)
        for var in eqn.outvars:
            self._defs[id(var)] = eqn

    def _replace_results(self, eqn: Eqn, atoms: tuple[Atom, ...]) -> None:
        for var, atom in zip(eqn.outvars, atoms, strict=True):
            self._replaced[id(var)] = atom

    def _loop(self, eqn: Eqn, written: Iterable[Var]) -> tuple[Block, ...]:
        # The second iteration sees what the first one wrote.
        self._bump(written)
        if eqn.primitive.name == "for":
            self._ranges.set_index(eqn.blocks[0].params[0], *eqn.invars[:3])
        return tuple([self._block(block) for block in eqn.blocks])

    def _branches(self, eqn: Eqn, written: frozenset[Var]) -> tuple[Block, ...]:
        before = {id(r): self._versions.get(id(r), 0) for r in written}
        facts = self._facts
        blocks: list[Block] = []
        for block, holds in zip(eqn.blocks, (_TRUE, _FALSE), strict=True):
            if self.options.assume:
                self._facts = {**facts, **self._facts_of(eqn.invars[0], holds)}
            blocks.append(self._block(block))
            self._facts = facts
            self._versions.update(before)
        return tuple(blocks)

    def _facts_of(self, condition: Atom, holds: Literal) -> dict[int, Atom]:
        """What a condition that holds (or not) says about values: of itself and, through `and`, `or`, `not`."""
        facts: dict[int, Atom] = {}
        pending: list[tuple[Atom, Literal]] = [(condition, holds)]
        while pending:
            atom, value = pending.pop()
            if atom.__class__ is not Var or atom.type != BOOL:
                continue
            facts[id(atom)] = value
            eqn = self._defs.get(id(atom))
            if eqn is None:
                continue
            name = eqn.primitive.name
            if name == "not":
                pending.append((eqn.invars[0], _FALSE if value is _TRUE else _TRUE))
            elif (name == "and" and value is _TRUE) or (name == "or" and value is _FALSE):
                pending += [(a, value) for a in eqn.invars]
        return facts


def _is(a: object, b: object) -> bool:
    return a is b


def _with_operands(eqn: Eqn, operands: tuple[Atom, ...]) -> Eqn:
    if all(map(_is, operands, eqn.invars)):
        return eqn
    return Eqn(eqn.primitive, operands, eqn.outvars, eqn.params, eqn.blocks, eqn.loc)
