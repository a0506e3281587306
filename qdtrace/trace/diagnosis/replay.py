"""Traces a function again with some of its regions left out: what comes after them must be the same.

A region whose body sets something outside of it is a suspect: the equations show whether code after it reads that.
Suspects are left out all at once, and then in such groups that for each two of them there is a run with the earlier one
and without the later one, so that none hides what another set.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from qdtrace.errors import QdError
from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.diagnosis import reports
from qdtrace.trace.diagnosis.same import Comparison, Difference, constants, regions_in, without_second_trips
from qdtrace.trace.source import eqn_loc, traceback_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence

    from qdtrace.errors import Loc, TraceValueError
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.context import TraceContext
    from qdtrace.trace.diagnosis.lint import Suspect
    from qdtrace.trace.jaxprs import AnyJaxpr


@frozen(eq=False)
class Replay:
    """One trace of the function."""

    closed: AnyJaxpr
    uids: Mapping[Hashable, int]
    """Uids of the trace's regions, by key."""

    @functools.cached_property
    def eqns(self) -> Sequence[JaxprEqn]:
        """The equations, without second trips."""
        return without_second_trips(compat.open_jaxpr(self.closed).eqns)


def check_suspects(
    context: TraceContext, first: Replay, trace_again: Callable[[Mapping[Hashable, int]], Replay]
) -> None:
    """Raises TraceValueError when what a suspect set is read after it.

    `trace_again` traces the function without the regions of these keys.
    """
    suspects = sorted(context.suspects, key=lambda s: s.region.uid)

    def replay(left_out: Mapping[Hashable, int]) -> Replay:
        context.state.restore()  # each starts with what the first trace left
        context.state.forget_helpers()
        return trace_again(left_out)

    try:
        for group in _groups(suspects):
            error = _check(first, group, replay)
            if error is not None:
                raise error
    finally:
        context.state.restore()


def _groups(suspects: Sequence[Suspect]) -> Iterator[list[Suspect]]:
    if suspects:
        yield list(suspects)
    for bit in range((len(suspects) - 1).bit_length()):
        yield [s for k, s in enumerate(suspects) if k >> bit & 1]


def _check(
    first: Replay, group: Sequence[Suspect], replay: Callable[[Mapping[Hashable, int]], Replay]
) -> TraceValueError | None:
    """Returns the error if code depends on what these regions set.

    Where the trace without them differs from the first, it may still be the function itself that never gives the same
    twice: two more traces with nothing left out tell.
    """
    try:
        without = replay({s.region.key: s.depth for s in group})
    except Exception as error:
        notes = [f"without the {group[0].region.name} the function raises {reports.shown(error)}"]
        try:
            replay({})
        except Exception as again:
            notes = [f"whether that matters cannot be seen: traced again, the function raises {reports.shown(again)}"]
        loc = error.loc if isinstance(error, QdError) else traceback_loc(error.__traceback__)
        return _error(group[0], ("static", "traced"), loc, notes)
    found = _difference(first, without, group)
    if found is None:
        return None
    whole, twin = replay({}), replay({})
    noise: set[int] = set()
    while (other := _difference(whole, twin, (), noise)) is not None and other.one and id(other.one) not in noise:
        noise.add(id(other.one))
    if _difference(whole, without, group, noise) is None:
        return None
    return _error_at(found, first, group)


def _difference(one: Replay, two: Replay, group: Sequence[Suspect], noise: Container[int] = ()) -> Difference | None:
    """Returns the first difference of two traces, the second one without the group's regions; None if there is none."""
    mine, theirs = compat.open_jaxpr(one.closed), compat.open_jaxpr(two.closed)
    left_out = frozenset(one.uids[s.region.key] for s in group if s.region.key in one.uids)
    comparison = Comparison(constants(one.closed), constants(two.closed), left_out)
    comparison.pair(mine.invars, theirs.invars)
    found = comparison.equations(one.eqns, two.eqns, noise)
    if found is not None:
        return found
    same = len(mine.outvars) == len(theirs.outvars) and all(map(comparison.same_atom, mine.outvars, theirs.outvars))
    return None if same else Difference(None, None)


def _error_at(found: Difference, first: Replay, group: Sequence[Suspect]) -> TraceValueError:
    at = next((k for k, e in enumerate(first.eqns) if e is found.one), len(first.eqns))
    begins = {uid: k for k, e in enumerate(first.eqns) for uid in regions_in(e)}
    before = [s for s in group if begins.get(s.region.uid, at) < at]
    places = (eqn_loc(e) for e in (found.one, found.two) if e is not None)
    kinds = ("traced", "buffer") if found.is_reference else ("static", "traced")
    return _error(before[-1] if before else group[0], kinds, next((p for p in places if p is not None), None), [])


def _error(suspect: Suspect, kinds: tuple[str, ...], loc: Loc | None, notes: list[str]) -> TraceValueError:
    region, changes = suspect.region, suspect.changes
    best = next((c for kind in kinds for c in changes if c.kind == kind), changes[0])
    return reports.read_after(best, region.name, loc=loc or region.loc, region=region.loc, notes=notes)
