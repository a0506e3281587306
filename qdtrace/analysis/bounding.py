"""The references by whose elements loops are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.dataflow import flows, reached
from qdtrace.ir.memory import reference, values_of
from qdtrace.ir.primitives import FOR, LOAD, WHILE
from qdtrace.ir.program import Literal, Var, is_local

if TYPE_CHECKING:
    from qdtrace.ir.program import Program


def bounding(program: Program) -> set[Var]:
    """Returns the references whose elements may get to bounds of loops, or to conditions of a `while`."""
    roots: list[Var] = []
    sources: dict[Var, list[Var]] = {}

    def comes_from(target: Var, *values: object) -> None:
        sources.setdefault(target, []).extend(v for v in values if isinstance(v, Var))

    for eqn in program.all_eqns:
        if eqn.primitive in (FOR, WHILE):
            bounds = eqn.bounds[:2] if eqn.primitive is FOR else eqn.blocks[0].results
            roots += [v for v in bounds if not isinstance(v, Literal)]
        if eqn.primitive is LOAD:
            comes_from(eqn.outvar, reference(eqn))
        elif eqn.primitive.is_access and is_local(reference(eqn)):
            comes_from(reference(eqn), *values_of(eqn))
        for source, target in flows(eqn) if eqn.blocks else ():
            comes_from(target, source)
        for var in eqn.outvars if not eqn.blocks and eqn.primitive is not LOAD else ():
            comes_from(var, *eqn.invars)
    return reached(roots, lambda var: sources.get(var, ()))
