"""Evaluates the equations of one lane's jaxpr on tiles; the rules of primitives register here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.groups.blocks import Blocks, block_in, blocks_of, is_large, places
from qdtrace.groups.tiles import Memory, RefusedError, Tile
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Value = Tile | Blocks | Memory | None
    """None: rows that a loop does not store."""
    Rule = Callable[[Any, "Scope"], Sequence[Value]]

_rules: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function of an equation and its scope, which returns the results, for primitives of these names."""

    def register(f: Rule) -> Rule:
        _rules.update(dict.fromkeys(names, f))
        return f

    return register


class Scope:
    """The values of the variables of one jaxpr."""

    def __init__(
        self, jaxpr: Any, constants: Sequence[Any], given: Sequence[Value], wanted: Sequence[Memory | None]
    ) -> None:
        """`wanted` has the memory of results of the jaxpr that are to be stored; () if none is."""
        self.values: dict[Any, Value] = dict(zip(jaxpr.invars, given, strict=True))
        for v, x in zip(jaxpr.constvars, constants, strict=True):
            if v.aval.shape:
                raise RefusedError("an array that is a constant")
            self.values[v] = Tile(jnp.asarray(x), ())
        results = zip(jaxpr.outvars, wanted, strict=bool(wanted))
        self.places: dict[Any, Memory] = {
            v: place for v, place in results if place and isinstance(v, compat.Var) and v not in self.values
        }

    def tile(self, v: Any) -> Tile:
        """Returns a variable, or a literal, as a tile."""
        if not isinstance(v, compat.Var):
            return Tile(jnp.asarray(v.val, v.aval.dtype), ())
        found = self.values[v]
        if found is None or (isinstance(found, Memory) and v in self.places):
            raise RefusedError("a loop whose rows the kernel reads again")
        if isinstance(found, Blocks):
            raise RefusedError(f"an array of shape {found.shape}")
        if isinstance(found, Memory):
            found = self.values[v] = found.load()
        return found

    def blocks(self, v: Any) -> Blocks:
        """Returns a variable, or a literal, as blocks."""
        if not is_large(v.aval.shape):
            return blocks_of(self.tile(v))
        found = self.values[v]
        if found is None or (isinstance(found, Memory) and v in self.places):
            raise RefusedError("a loop whose rows the kernel reads again")
        made = self.values[v] = blocks_of(found)
        return made

    def tiles(self, eqn: Any) -> list[Tile]:
        """Returns the operands of an equation as tiles."""
        return [self.tile(v) for v in eqn.invars]

    def memory(self, v: Any) -> Memory:
        """Returns a variable that is an argument in memory. Raises RefusedError if it is none."""
        found = self.values.get(v) if isinstance(v, compat.Var) else None
        if not isinstance(found, Memory):
            raise RefusedError("a loop over the rows of an array that the kernel makes")
        return found


def run(jaxpr: Any, constants: Sequence[Any], given: Sequence[Value], wanted: Sequence[Memory | None] = ()) -> Scope:
    """Returns the scope of a jaxpr once all of its equations are evaluated."""
    scope = Scope(jaxpr, constants, given, wanted)
    for eqn in jaxpr.eqns:
        found = _rules.get(eqn.primitive.name)
        if found is None or eqn.effects:
            raise RefusedError(f"the primitive {eqn.primitive.name}")
        scope.values.update(zip(eqn.outvars, found(eqn, scope), strict=True))
    return scope


def results_of(jaxpr: Any, constants: Sequence[Any], given: Sequence[Value]) -> list[Tile]:
    """Returns the results of a jaxpr as tiles."""
    scope = run(jaxpr, constants, given)
    return [scope.tile(v) for v in jaxpr.outvars]


def evaluate(jaxpr: Any, constants: Sequence[Any], given: Sequence[Value], made: Sequence[Memory]) -> None:
    """Evaluates a jaxpr and stores its results."""
    scope = run(jaxpr, constants, given, made)
    for v, place in zip(jaxpr.outvars, made, strict=True):
        if isinstance(v, compat.Var) and scope.values[v] is place:
            continue  # a loop has stored it
        if not is_large(place.shape):
            place.store(scope.tile(v))
            continue
        blocks = scope.blocks(v)
        for one in places(place.shape):
            block_in(place, one).store(blocks.at(one))
