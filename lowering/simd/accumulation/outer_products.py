"""Sums of outer products: loops that accumulate the product of two factors, as the gradient of a matrix does.

    for i                          y: once for each i
      for j                        x: the same for each i; or one update for each j, if these are few
        accum m (mul y x) i j

The gradient by weights that all lanes share is such a sum, of all lanes and all iterations of the loops around it. What
one lane adds is a row of a matrix product, so `tiles` adds all active lanes to a tile of the array at a time.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import loop_values
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, loaded, reference, values_of, written
from qdtrace.ir.primitives import ACCUM, FOR, LOAD, PRIMITIVES, Effect
from qdtrace.ir.program import Block, Literal, Var, literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block, used_vars, walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qdtrace.analysis.index.progression import Progression
    from qdtrace.ir.program import Atom, Eqn

LEAST_SIDE = 4
"""The fewest numbers of either factor."""
LEAST_SIZE = 128
"""The fewest elements that are accumulated into."""
_MOST_PLACES = 1024
"""The most numbers of a lane in memory: of the rows, and of the columns twice."""
_MOST_EQUATIONS = 400
"""The most equations inside of the outer loop."""


@frozen(slots=True, eq=False)
class Factor:
    """A factor of the products: a number for each index from `low` on."""

    place: int
    """The position of the index among those of the array."""
    low: int
    count: int
    atoms: tuple[Atom, ...]
    """The numbers, or the one of an iteration of `loop`."""
    loop: Eqn | None = None
    eqns: tuple[Eqn, ...] = ()
    """Equations of the loop's body to emit in each iteration, which make the number."""


@frozen(slots=True, eq=False)
class OuterProduct:
    """Loops that accumulate an outer product."""

    updates: tuple[Eqn, ...]
    factors: tuple[Factor, Factor]
    """The factors, as they are made: the second belongs to the outer loop, and has the rest of its body."""

    @property
    def ref(self) -> Var:
        """The array."""
        return reference(self.updates[0])

    @property
    def lowest(self) -> tuple[Atom, ...]:
        """The indices of the first element."""
        found = list(indices_of(self.updates[0]))
        for factor in self.factors:
            found[factor.place] = literal(factor.low, found[factor.place].dtype)
        return tuple(found)

    @property
    def rows(self) -> Factor:
        """The factor whose elements are apart."""
        return min(self.factors, key=lambda factor: factor.place)

    @property
    def columns(self) -> Factor:
        """The factor whose elements are neighbours."""
        return max(self.factors, key=lambda factor: factor.place)

    @property
    def places(self) -> int:
        """The numbers of a lane that are in memory: of the columns twice, as they are transposed."""
        return self.rows.count + 2 * self.columns.count

    @property
    def row_stride(self) -> int:
        """Elements of the array from one row to the next."""
        return prod(ref_type(self.ref).shape[self.rows.place + 1 :])


def outer_products(eqns: Iterable[Eqn]) -> Iterator[OuterProduct]:
    """Yields the outer products among equations and in their blocks."""
    for eqn in eqns:
        found = outer_product(eqn)
        if found is not None:
            yield found
        else:
            for block in eqn.blocks:
                yield from outer_products(block.eqns)


def outer_product(outer: Eqn) -> OuterProduct | None:
    """Returns the outer product that a loop accumulates, or None for other equations."""
    if _values(outer) is None or sum(1 for _ in walk_inside(outer)) > _MOST_EQUATIONS:
        return None
    found = (_of_loops(outer, place) for place in range(len(outer.blocks[0].eqns)))
    return next((made for made in found if made is not None), None) or _of_list(outer)


def _values(eqn: Eqn) -> Progression | None:
    """Returns the values of the index of a loop that carries nothing and steps by one, or None for other equations."""
    if eqn.primitive is not FOR or eqn.initials:
        return None
    found = loop_values(*eqn.bounds)
    return found if found is not None and abs(found.step) == 1 and found.count >= LEAST_SIDE else None


def _of_loops(outer: Eqn, at: int) -> OuterProduct | None:
    """Returns the outer product of a loop and of the equation at a place of its body, if that is a loop, too."""
    eqns = outer.blocks[0].eqns
    inner = eqns[at]
    if _values(inner) is None:
        return None
    body, inside = inner.blocks[0], set(bound_in_block(outer.blocks[0]))
    makers, stored = {v: e for e in body.eqns for v in e.outvars}, set(written(walk_inside(outer)))
    for update in body.eqns:
        for first, second in _factors(update, makers):
            made = _made(second, makers, inside - {inner.index}, stored)
            if made is None or first in makers or first is inner.index:
                continue
            left = _without(body.eqns, [update])
            shorter = [inner.rebuilt(blocks=(Block(body.params, left),))] if any(map(_acts, left)) else []
            factors = (
                _of_loop(inner, update, second, made),
                _of_loop(outer, update, first, (*eqns[:at], *shorter, *eqns[at + 1 :])),
            )
            if _is_matrix((update,), factors, inside):
                return OuterProduct((update,), factors)
    return None


def _of_list(outer: Eqn) -> OuterProduct | None:
    """Returns the outer product of a loop and of numbers that are known in front of it, with an update for each."""
    body, inside = outer.blocks[0], set(bound_in_block(outer.blocks[0]))
    makers = {v: e for e in body.eqns for v in e.outvars}
    groups: dict[object, dict[int, tuple[Eqn, Atom, Atom, int]]] = {}
    for update in body.eqns:
        for first, second in _factors(update, makers):
            if first not in inside or second in inside:
                continue
            indices = indices_of(update)
            for k, index in enumerate(indices):
                if isinstance(index, Literal):
                    group = groups.setdefault((reference(update), indices[:k], k, indices[k + 1 :], first), {})
                    group.setdefault(int(index.value), (update, first, second, k))
    for group in groups.values():
        numbers = sorted(group)
        if numbers[-1] - numbers[0] != len(numbers) - 1:
            continue
        updates = tuple(group[n][0] for n in numbers)
        _, first, _, place = group[numbers[0]]
        listed = Factor(place, numbers[0], len(numbers), tuple(group[n][2] for n in numbers))
        factors = listed, _of_loop(outer, updates[0], first, _without(body.eqns, updates, first))
        if _is_matrix(updates, factors, inside):
            return OuterProduct(updates, factors)
    return None


def _of_loop(loop: Eqn, update: Eqn, number: Atom, eqns: tuple[Eqn, ...]) -> Factor:
    """Returns the factor that a loop makes; at place -1 if its index is not one of the array, or one twice."""
    values, places = _values(loop), [k for k, i in enumerate(indices_of(update)) if i is loop.index]
    assert values is not None
    return Factor(places[0] if len(places) == 1 else -1, min(values), values.count, (number,), loop, eqns)


def _factors(update: Eqn, makers: Mapping[Var, Eqn]) -> Iterator[tuple[Atom, Atom]]:
    """Yields the factors, in both orders, of a product of floats that is accumulated."""
    if update.primitive is not ACCUM or update.params["op"] != "add":
        return
    (value,), dtype = values_of(update), ref_type(reference(update)).dtype
    product = makers.get(value) if isinstance(value, Var) else None
    if product is None or product.primitive is not PRIMITIVES["mul"] or value.dtype is not dtype:
        return
    if dtype in (DType.f32, DType.f64):
        first, second = product.invars
        yield first, second
        yield second, first


def _is_matrix(updates: Sequence[Eqn], factors: tuple[Factor, Factor], inside: set[Var]) -> bool:
    """Returns whether updates meet each element of a matrix once, with numbers of neighbours along its rows."""
    shape, places = ref_type(reference(updates[0])).shape, [factor.place for factor in factors]
    others = [i for k, i in enumerate(indices_of(updates[0])) if k not in places]
    if len({*places, -1}) != 3 or max(places) != len(shape) - 1 or any(i in inside for i in others):
        return False
    fits = all(factor.low >= 0 and factor.low + factor.count <= shape[factor.place] for factor in factors)
    counts = [factor.count for factor in factors]
    is_large = min(counts) >= LEAST_SIDE and prod(counts) >= LEAST_SIZE
    return fits and is_large and OuterProduct(tuple(updates), factors).places <= _MOST_PLACES


def _made(value: Atom, makers: Mapping[Var, Eqn], foreign: set[Var], stored: set[Var]) -> tuple[Eqn, ...] | None:
    """Returns the equations of the inner body that make a value, or None if they depend on the outer iteration."""
    found: dict[Eqn, None] = {}

    def visit(atom: Atom) -> bool:
        if isinstance(atom, Literal) or atom not in makers:
            return isinstance(atom, Literal) or atom not in foreign
        eqn = makers[atom]
        known = eqn.primitive is LOAD or not (eqn.primitive.effects or eqn.blocks)
        if not known or not stored.isdisjoint(loaded([eqn])) or not all(map(visit, eqn.invars)):
            return False
        found[eqn] = None
        return True

    return tuple(found) if visit(value) else None


def _without(eqns: Sequence[Eqn], updates: Sequence[Eqn], *needed: Atom) -> tuple[Eqn, ...]:
    """Returns equations without updates and what only those read, except for what is needed."""
    kept: list[Eqn] = []
    used: set[Atom] = {*needed}
    left_out = set(updates)
    for eqn in reversed(eqns):
        if eqn not in left_out and (_acts(eqn) or not used.isdisjoint(eqn.outvars)):
            kept.append(eqn)
            used.update(used_vars(eqn))
    return tuple(reversed(kept))


def _acts(eqn: Eqn) -> bool:
    """Returns whether an equation does more than make values."""
    return bool(eqn.blocks) or bool(eqn.primitive.effects - {Effect.READ})
