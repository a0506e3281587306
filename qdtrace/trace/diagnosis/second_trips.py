"""Second trips: the equations between `again` and `again_end` must be those of the first trip, and are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.trace import compat, markers
from qdtrace.trace.diagnosis import reports
from qdtrace.trace.diagnosis.same import Comparison, Difference
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qdtrace.errors import TraceValueError
    from qdtrace.trace.compat import JaxprEqn, Var
    from qdtrace.trace.jaxprs import Atom


def first_trips(
    eqns: Sequence[JaxprEqn], constants: Mapping[Var, object], names: dict[Var, Atom]
) -> Iterator[JaxprEqn]:
    """Yields the equations without second trips; `names` gets what the values of those are called.

    Raises TraceValueError where a second trip differs from the first: the body carries Python state.
    """
    if not any(e.primitive is markers.again_p for e in eqns):
        yield from eqns
        return
    kept: list[JaxprEqn] = []
    begins: dict[int, int] = {}
    rest = iter(eqns)
    for eqn in rest:
        if eqn.primitive is markers.again_p:
            second: list[JaxprEqn] = []
            while (last := next(rest)).primitive is not markers.again_end_p:
                second.append(last)
            begin = begins[eqn.params["uid"]]
            comparison = Comparison(constants, constants)
            if kept[begin].outvars:
                comparison.pair(kept[begin].outvars, eqn.outvars)
            difference = comparison.equations(kept[begin + 1 : -1], second)
            if difference is not None:
                raise _carried(eqn, difference)
            if last.params["grown"]:
                raise _carried(eqn, Difference(None, None, is_reference=True))
            names.update((b, names.get(a, a)) for a, b in comparison.pairs.items())
            continue
        if eqn.primitive in markers.BEGINS:
            begins[eqn.params["uid"]] = len(kept)
        kept.append(eqn)
        yield eqn


def _carried(again: JaxprEqn, difference: Difference) -> TraceValueError:
    params, one, two = again.params, difference.one, difference.two
    kinds = [c for c in params["changes"] if c.kind == ("traced" if difference.is_reference else "static")]
    (best, *_) = [*kinds, *(c for c in params["changes"] if c.kind != "blind"), *params["changes"]]
    place = next((loc for e in (two, one) if e is not None and (loc := eqn_loc(e)) is not None), params["loc"])
    notes = _values(one, two) if one is not None and two is not None and not difference.is_reference else ()
    return reports.carried(
        best, params["where"], parallel=params["parallel"], loc=place, loop=params["loc"], notes=notes
    )


def _values(one: JaxprEqn, two: JaxprEqn) -> Sequence[str]:
    """Returns the constants that differ, if they are short."""
    for a, b in zip(one.invars, two.invars, strict=False):
        if isinstance(a, compat.Literal) and isinstance(b, compat.Literal):
            first, second = str(a.val), str(b.val)
            if first != second and len(first) + len(second) < 60:
                return [f"it gives {first} for the first iteration, {second} for the second"]
    return []
