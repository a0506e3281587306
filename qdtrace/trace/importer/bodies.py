"""Bodies of called functions, imported by reference.

JAX traces a helper under `jax.jit` once and calls its jaxpr many times; so do most functions of jnp. The body is
imported at its first call. A later call with operands of the same kinds copies the equations that came out of it, with
other variables: none of the rules of its primitives runs again.

    before                          after, for operands p, q in the place of a, b
      v1: f32 = mul a 2.0:f32         v1: f32 = mul a 2.0:f32
      v2: f32 = add v1 b              v2: f32 = add v1 b
      v3: f32 = jit[helper] p q       v4: f32 = mul p 2.0:f32
                                      v5: f32 = add v4 q

Operands are of the same kinds when they have the same constants, and the same variables, in the same places, and their
integers have the same ranges: rules look at nothing else, and leave checks and limits out by ranges. A body that uses
memory or values of its surroundings is not kept, nor one whose operands or results are arrays in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.frozen import frozen
from qdtrace.ir.program import Block, Literal
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.walk import free_vars
from qdtrace.trace.importer.values import array_of, atoms_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from qdtrace.analysis.index.ranges import Ranges
    from qdtrace.errors import Loc
    from qdtrace.ir.program import Eqn, Var
    from qdtrace.trace.importer.values import Element, Value

Key = tuple[int, tuple["Hashable", ...]]


@frozen(eq=False)
class Operands:
    """Operands of a call: their kind, and the variables in order of their first place."""

    kind: tuple[Hashable, ...]
    variables: list[Var]


@frozen(eq=False)
class Body:
    """An imported body."""

    params: list[Var]
    """The variables of its first call."""
    eqns: tuple[Eqn, ...] | None
    """Equations of the body; None if it depends on more than its operands, and is inlined at each call."""
    results: tuple[np.ndarray, ...]
    private_bytes: int
    alive: object
    """Objects that keys identify by `id`: they must live as long as the body."""


class Bodies(dict[Key, Body]):
    """The bodies of one trace."""


def operands_of(values: Sequence[Value], ranges: Ranges) -> Operands | None:
    """Returns the operands of a call; None when one is no small array of scalars."""
    kind: list[Hashable] = []
    places: dict[int, int] = {}
    variables: list[Var] = []
    for value in values:
        if type(value) is not np.ndarray:
            return None
        kind.append(value.shape)
        for element in value.ravel().tolist():
            for atom in parts_of(element):
                if isinstance(atom, Literal):
                    kind.append(id(atom))
                    continue
                place = places.get(id(atom))
                if place is None:
                    place = places[id(atom)] = -1 - len(variables)
                    variables.append(atom)
                    if atom.dtype.is_integer:
                        kind.append(ranges.of(atom))
                kind.append(place)
            if type(element) is tuple:
                kind.append("pair")
    return Operands(tuple(kind), variables)


def body_of(
    operands: Operands, eqns: Sequence[Eqn] | None, results: Sequence[Value], private_bytes: int, alive: object
) -> Body:
    """Returns the body that a call left, given by its equations (None: not to be kept) and results."""
    arrays = tuple([r for r in results if isinstance(r, np.ndarray)])
    if eqns is None or len(arrays) < len(results):
        return Body([], None, (), 0, alive)
    used = {a for r in arrays for a in atoms_of(r) if type(a) is not Literal}
    block = Block((), tuple(eqns), tuple(used))
    if not free_vars(block).keys() <= set(operands.variables):
        return Body([], None, (), 0, alive)
    return Body(operands.variables, block.eqns, arrays, private_bytes, alive)


def copy_of(body: Body, variables: Sequence[Var], loc: Loc | None) -> tuple[Sequence[Eqn], list[np.ndarray]]:
    """Returns equations and results of a body for other variables."""
    assert body.eqns is not None
    copier = Copier(dict(zip(body.params, variables, strict=True)), loc)
    eqns = copier.rebuild_eqns(body.eqns)

    def moved(element: Element) -> Element:
        return copier.atoms(element) if isinstance(element, tuple) else copier.atom(element)

    return eqns, [array_of(map(moved, r.ravel().tolist()), r.shape) for r in body.results]
