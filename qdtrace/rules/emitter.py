"""A builder that emits no equation whose value is known: it folds constants, applies rules and shares equal values.

A *rule* gets one operation with its operands and returns the atom that is its result, or None. It may emit new
equations, which pass through the rules themselves. A rule looks only at the definitions of its operands, so an
operation takes constant time. The importer emits through it, and passes rewrite with it (`passes/rewrite`).

Values are keyed by `id`: variables are compared by identity, and everything keyed here is kept alive by the emitter.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qdtrace.analysis.index.ranges import Ranges
from qdtrace.ir.builder import Builder
from qdtrace.ir.primitives import PRIMITIVES, Primitive
from qdtrace.ir.program import Atom, Eqn, Literal, Var
from qdtrace.rules.table import CONSTANTS, GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from qdtrace.ir.types import DType
    from qdtrace.rules.table import RuleSet

    Fold = Callable[[str, tuple[Atom, ...], Mapping[str, Any]], Literal | None]


class Definitions:
    """The equations that compute values. It refers to no emitter, so that one is freed with its last user."""

    def __init__(self) -> None:
        self.made: dict[int, Eqn] = {}
        """Equations by the `id` of their result."""

    def of(self, atom: Atom) -> Eqn | None:
        """Returns the equation that computes the atom; None for constants, indices and carries."""
        return self.made.get(id(atom))


class Emitter(Builder):
    """Emits simplified pure operations into the innermost open block."""

    def __init__(self, rules: RuleSet, fold: Fold | None, *, share: bool) -> None:
        """`fold` evaluates operations on constants; `share` reuses values that were computed in a block around."""
        super().__init__()
        self.fired: Counter[str] = Counter()
        """Number of replacements by each rule."""
        self.definitions = Definitions()
        self.definition = self.definitions.of
        self.ranges = Ranges(self.definition)
        """Ranges of integers."""
        self._rules = rules.scalar
        self._fold = fold
        self._share = share
        self._available: dict[tuple[Any, ...], Any] = {}
        self._undo: list[tuple[Any, ...]] = []
        self._literals: dict[int, tuple[Literal, int]] = {}
        self._numbers: dict[tuple[DType, bytes], int] = {}

    # For rules.

    def defined_by(self, atom: Atom, name: str) -> tuple[Atom, ...] | None:
        """Returns the operands of the equation that computes the atom if it has that primitive, else None."""
        eqn = self.definitions.made.get(id(atom))
        return eqn.invars if eqn is not None and eqn.primitive.name == name else None

    def op(self, name: str, *operands: Atom, **params: Any) -> Atom:
        """Returns the value of a pure operation: simplified, found among available values, or emitted here."""
        return self.scalar(PRIMITIVES[name], operands, params, None)

    def scalar(
        self, prim: Primitive, operands: tuple[Atom, ...], params: Mapping[str, Any], origin: Eqn | None
    ) -> Atom:
        """Returns the value of a pure operation; `origin` is the equation to append where nothing changes it."""
        key = None
        if self._share:
            key = self.key(prim, operands, params)
            known = self._available.get(key)
            if known is not None:
                self.fired["share"] += 1
                return known
        value = self._simplified(prim, operands, params)
        if value is None:
            if origin is None:
                (result,) = prim.type_rule([a.type for a in operands], params, ())
                self.locate()
                eqn = Eqn(prim, operands, (Var(result),), params, (), self.loc)
            else:
                eqn = origin.rebuilt(operands)
            self.stack[-1].eqns.append(eqn)
            value = eqn.outvars[0]
            self.definitions.made[id(value)] = eqn
        if key is not None:
            self._available[key] = value
            self._undo.append(key)
        return value

    def locate(self) -> None:
        """Sets the source line of what is emitted next; an override looks it up only here."""

    def _simplified(self, prim: Primitive, operands: tuple[Atom, ...], params: Mapping[str, Any]) -> Atom | None:
        name, last = prim.name, operands[-1]
        constant = last.__class__ is Literal or operands[0].__class__ is Literal
        if constant and self._fold is not None:
            folded = self._fold(name, operands, params)
            if folded is not None:
                self.fired["fold"] += 1
                return folded
        groups = self._rules.get(name)
        if groups is not None:
            group = GROUP[id(last.type.dtype)]
            for rule in groups[group + CONSTANTS if constant else group]:
                found = rule.apply(self, name, operands, params)
                if found is not None:
                    self.fired[rule.name] += 1
                    return found
        return None

    # Available values.

    def key(self, prim: Primitive, operands: tuple[Atom, ...], params: Mapping[str, object]) -> tuple[Any, ...]:
        """Returns the key that equal operations have."""
        if len(operands) == 2:  # most operations; this function runs once for each
            a, b = operands
            first = id(a) if a.__class__ is Var else self._literal_key(a)  # type: ignore[arg-type]
            last = id(b) if b.__class__ is Var else self._literal_key(b)  # type: ignore[arg-type]
            keys = (prim.name, last, first) if prim.commutative and first > last else (prim.name, first, last)
        else:
            keys = (prim.name, *[id(a) if a.__class__ is Var else self._literal_key(a) for a in operands])  # type: ignore[arg-type]
        return (*keys, *params.items()) if params else keys

    def _literal_key(self, atom: Literal) -> int:
        found = self._literals.get(id(atom))
        if found is None:
            number = self._numbers.setdefault(atom.key, -1 - len(self._numbers))
            found = self._literals[id(atom)] = (atom, number)
        return found[1]

    def shared(self, key: tuple[Any, ...]) -> Any:
        """Returns the value kept under a key in this block or one around it; None if there is none."""
        return self._available.get(key)

    def share(self, key: tuple[Any, ...], value: Any) -> None:
        """Keeps a value for the block that is open and those inside of it."""
        self._available[key] = value
        self._undo.append(key)

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forgets at its end the values that became available inside of it."""
        undo, self._undo = self._undo, []
        try:
            yield
        finally:
            for key in self._undo:
                self._available.pop(key, None)
            self._undo = undo

    @contextmanager
    def apart(self) -> Generator[None]:
        """Emits as if operands were parameters: of equations before, only the ranges of values are known."""
        kept = self._available, self._undo, self.definitions.made
        self._available, self._undo, self.definitions.made = {}, [], {}
        try:
            yield
        finally:
            made = self.definitions.made
            self._available, self._undo, self.definitions.made = kept
            self.definitions.made.update(made)
