"""Finds the variables that are zero if the tangents are: a transposed program neither computes nor keeps them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from qdtrace.ir.carries import carries_of
from qdtrace.ir.custom import vanishing
from qdtrace.ir.dataflow import flows, reached
from qdtrace.ir.memory import values_of, written
from qdtrace.ir.primitives import CELL, CUSTOM
from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.ir.program import Atom, Eqn, Program


def zeros_of(program: Program, inputs: Iterable[Var], active: frozenset[Var]) -> frozenset[Var]:
    """Returns the active variables that are zero, in all elements and at all times, if the inputs are."""
    eqns = list(program.all_eqns)
    zero = set(active) - (set(program.params) - set(inputs))
    zero -= {v for v, value in program.initial.items() if not _is_zero(value, zero)}
    left = -1
    while len(zero) != left:
        left = len(zero)
        for eqn in eqns:
            zero.difference_update(_found_nonzero(eqn, zero))
    return frozenset(zero)


def changing_with(program: Program, inputs: Iterable[Var]) -> frozenset[Var]:
    """Returns the inputs and all variables computed from them, of any dtype, or under their control."""
    after: defaultdict[Var, list[Var]] = defaultdict(list)
    for eqn in program.all_eqns:
        prim = eqn.primitive
        for source, target in flows(eqn) if eqn.blocks else ():
            after[source].append(target)
        made = [*eqn.outvars, *[p for c in carries_of(eqn) for p in c.params]] if eqn.blocks else eqn.outvars
        # a value that a rule is for is a function of the operands behind it
        for atom in eqn.control if eqn.blocks else eqn.invars[1:] if prim is CUSTOM else eqn.invars:
            if isinstance(atom, Var):
                after[atom] += (*made, *written((eqn,)))
    return frozenset(reached(inputs, after.__getitem__))


def _is_zero(atom: Atom | None, zero: set[Var]) -> bool:
    return atom is None or (atom.value == 0 if isinstance(atom, Literal) else atom in zero)


def _found_nonzero(eqn: Eqn, zero: set[Var]) -> Iterator[Var]:
    """Yields the variables that an equation may make other than zero."""
    prim = eqn.primitive
    if prim.writes:
        ref = eqn.invars[0]
        assert isinstance(ref, Var)
        if eqn.params.get("op", "add") != "add" or not all(_is_zero(a, zero) for a in values_of(eqn)):
            yield ref
        yield from eqn.outvars
    elif eqn.blocks:
        for carry in carries_of(eqn):
            if not all(_is_zero(a, zero) for a in (carry.initial, *carry.results)):
                yield from (carry.outvar, *carry.params)
    elif prim is CUSTOM:
        if not any(all(_is_zero(a, zero) for a in some) for some in vanishing(eqn)):
            yield eqn.outvar
    elif prim is not CELL and not _gives_zero(eqn, zero):
        yield from eqn.outvars


def _gives_zero(eqn: Eqn, zero: set[Var]) -> bool:
    """Returns whether an equation is a linear operation on zeros."""
    first, *others = [_is_zero(a, zero) for a in eqn.invars] or [False]
    match eqn.primitive.name:
        case "add" | "sub":
            return first and all(others)
        case "mul":
            return first or others[0]
        case "fma":
            return (first or others[0]) and others[1]
        case "div" | "neg" | "convert" | "load":
            return first
        case "select":
            return all(others)
        case _:
            return False
