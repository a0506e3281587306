"""Elements of a row that are read behind a store to the same element of the memory that the row was loaded from.

`r = m[i]` loads: `r[0]` stays what it was, while a row of NumPy is a view and follows. A program that changes an
element by what it held, clears it, or reads the new one as well, means the old one; of others the user is told.
"""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING

from jax import lax

from qdtrace.errors import warn
from qdtrace.trace import markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.diagnosis.places import place_of
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from qdtrace.trace.compat import JaxprEqn, Var
    from qdtrace.trace.jaxprs import Atom

    Row = tuple[Hashable, ...]

_LOADS = {markers.load_p, markers.lget_p}
_STORES = {markers.store_p, markers.lset_p}
_MOST = 64
"""Largest number of equations that a stored value is followed through."""


def warn_of_old_rows(eqns: Sequence[JaxprEqn]) -> None:
    """Warns, once a function, of an element of a loaded row that a store has changed since."""
    rows = {eqn.outvars[0]: at for at, eqn in enumerate(eqns) if _row(eqn) is not None}
    if not rows:
        return
    makers = {v: e for e in eqns for v in e.outvars}
    stores: dict[Row, int] = {}
    again: set[Row] = set()
    found: list[tuple[JaxprEqn, JaxprEqn, JaxprEqn, Row]] = []
    for at, eqn in enumerate(eqns):
        element = _element(eqn)
        if element is not None and eqn.primitive in _STORES:
            stores[element] = at
        elif element is not None:
            again.add(element)
        elif eqn.primitive is lax.slice_p and eqn.invars[0] in rows:
            row, start = eqns[rows[eqn.invars[0]]], eqn.params["start_indices"]
            element = (*(_row(row) or ()), *start)
            is_one = eqn.params["limit_indices"] == (start[0] + 1,)
            if is_one and rows[eqn.invars[0]] < stores.get(element, -1):
                found.append((row, eqns[stores[element]], eqn, element))
    for row, store, use, element in found:
        clears = isinstance(store.invars[1], Literal) and not store.invars[1].val
        if element not in again and not clears and not _reads(store.invars[1], element, makers):
            with contextlib.suppress(SyntaxError, ValueError):
                _warn(row, store, use)
                return


def _key(atom: Atom) -> Hashable:
    return int(atom.val) if isinstance(atom, Literal) else atom


def _row(eqn: JaxprEqn) -> Row | None:
    """Returns the memory and the indices of a load of all along the last axis; None for any other equation."""
    slices = eqn.params.get("slices", ())
    if eqn.primitive not in _LOADS or len(slices) < 2 or any(s is not None for s in slices[:-1]):
        return None
    memory = eqn.invars[0]
    return (memory, *map(_key, eqn.invars[1:])) if slices[-1] == (0, memory.aval.shape[-1], 1) else None


def _element(eqn: JaxprEqn) -> Row | None:
    """Returns the memory and the indices of an access of one element of several axes; None for any other equation."""
    slices = eqn.params.get("slices", ())
    if eqn.primitive not in (*_LOADS, *_STORES) or len(slices) < 2 or any(s is not None for s in slices):
        return None
    return (eqn.invars[0], *map(_key, eqn.invars[1 + (eqn.primitive in _STORES) :]))


def _reads(value: Atom, element: Row, makers: Mapping[Var, JaxprEqn]) -> bool:
    """Returns whether a stored value is computed from what the element or its row held."""
    work, seen = [value], set[int]()
    while work and len(seen) < _MOST:
        atom = work.pop()
        eqn = None if isinstance(atom, Literal) else makers.get(atom)
        if eqn is None or id(eqn) in seen:
            continue
        seen.add(id(eqn))
        if element == _element(eqn) or element[:-1] == _row(eqn):
            return True
        work += eqn.invars
    return bool(work)


def _warn(row: JaxprEqn, store: JaxprEqn, use: JaxprEqn) -> None:
    texts = [place and place.expression() for place in map(place_of, (row, store, use))]
    if all(isinstance(text, ast.expr | ast.stmt) for text in texts):
        loaded, changed, old = (ast.unparse(text).partition(" = ")[0] for text in texts if text)
        warn(
            f"`{old}` is what it was when `{loaded}` was loaded, in front of the store to `{changed}`\n"
            f"help: read `{changed}`, or write `{loaded}.copy()` where it is loaded, if the old one is meant",
            eqn_loc(use),
        )
