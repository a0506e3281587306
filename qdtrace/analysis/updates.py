"""Recognises stores of what an element held, changed: `h[k] = h[k] + v`, or `h[k] = v` where `v > h[k]`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.expressions import Expressions
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import ADD, GE, GT, IF, LE, LOAD, LT, MAX, MIN, MUL, PRIMITIVES, SELECT, SUB
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qdtrace.ir.program import Atom, Eqn

_MOST = 64
"""Largest number of values that are followed from a store to the element."""
_EXTREMES = {GT: "max", GE: "max", LT: "min", LE: "min"}


@frozen(slots=True)
class Update:
    """A change of the element that a store stores to."""

    operation: str | None
    """The accumulation that is the same: `add`, `sub`, `mul`, `min` or `max`; None if it is another function."""
    by: tuple[Atom, ...]
    """The values by which it changes the element."""
    asked: Eqn | None = None
    """The condition around the store that asks whether the element is less, or greater."""
    always: bool = True
    """False if it may leave the element as it is, by a `jnp.where`."""


class Updates(Expressions):
    """The updates among the stores of a task."""

    def of(self, store: Eqn, around: Sequence[Eqn] = ()) -> Update | None:
        """Returns the update that a store is, or None if it is none. `around` are the equations that it is in."""
        value = values_of(store)[0]
        for each in around:
            is_true = each.primitive is IF and any(e is store for e in walk_eqns(each.blocks[0]))
            if is_true and (extreme := self._extreme(each.invars[0], value, store)) is not None:
                return Update(extreme, (value,), each)
        return self._accumulation(value, store) or self._function(value, store)

    def loads(self, atoms: Iterable[Atom]) -> list[Eqn]:
        """Returns the loads that expressions are computed from, those of their indices included."""
        out: list[Eqn] = []
        work, seen = [*atoms], set[Var]()
        while work:
            atom = work.pop()
            made = self.made.get(atom) if isinstance(atom, Var) and atom not in seen else None
            if isinstance(atom, Var) and made is not None:
                seen.add(atom)
                out += [made] if made.primitive is LOAD else []
                work += made.invars
        return out

    def is_element(self, atom: Atom, store: Eqn) -> bool:
        """Returns whether a value is loaded from the element that is stored."""
        load = self.made.get(atom) if isinstance(atom, Var) else None
        if load is None or load.primitive is not LOAD or load.invars[0] is not store.invars[0]:
            return False
        pairs = zip(indices_of(load), indices_of(store), strict=True)
        return all(self.number(a) == self.number(b) for a, b in pairs)

    def _accumulation(self, value: Atom, store: Eqn) -> Update | None:
        made = self.made.get(value) if isinstance(value, Var) else None
        if made is None:
            return None
        if made.primitive is SELECT:
            condition, taken, other = made.invars
            changed = taken if self.is_element(other, store) else other if self.is_element(taken, store) else None
            if changed is taken and (extreme := self._extreme(condition, taken, store)) is not None:
                return Update(extreme, (taken,))
            update = None if changed is None else self._accumulation(changed, store)
            return None if update is None else replace(update, always=False)
        held = [self.is_element(a, store) for a in made.invars]
        if made.primitive in (ADD, MUL, MIN, MAX) and any(held):
            return Update(made.primitive.name, (made.invars[held[0]],))
        return Update("sub", made.invars[1:]) if made.primitive is SUB and held[0] else None

    def _function(self, value: Atom, store: Eqn) -> Update | None:
        """Returns the update to a function of the element and of other values."""
        by: list[Atom] = []
        work: list[Atom] = [value]
        seen: set[Atom] = set()
        is_read = False
        while work and len(seen) < _MOST:
            atom = work.pop()
            if isinstance(atom, Literal) or atom in seen:
                continue
            seen.add(atom)
            made = self.made.get(atom)
            if self.is_element(atom, store):
                is_read = True
            elif made is not None and made.primitive is SELECT:
                return None
            elif made is None or made.blocks or made.primitive.effects:
                by.append(atom)
            else:
                work += made.invars
        return Update(None, tuple(by)) if is_read and not work else None

    def _extreme(self, condition: Atom, value: Atom, store: Eqn) -> str | None:
        """Returns `max` if a condition is that the value is greater than the element, `min` if it is less."""
        test = self.made.get(condition) if isinstance(condition, Var) else None
        if test is None or test.primitive not in _EXTREMES:
            return None
        compared, other = test.invars
        primitive = test.primitive
        if self.is_element(compared, store):
            compared, other, primitive = other, compared, PRIMITIVES[str(test.primitive.mirror)]
        is_one = self.number(compared) == self.number(value) and self.is_element(other, store)
        return _EXTREMES[primitive] if is_one else None
