"""Cuts off what no lane differs in, so that it is computed once and not by each lane (docs/design/0086).

`jax.vmap` computes once what depends on no mapped argument: weights through a softmax, a gain by a Riccati recursion, a
table by a sum of its steps. A loop over lanes would run it for each lane: `passes/motion` moves equations to the head
of a task, but no loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from qdtrace.frozen import frozen
from qdtrace.lanes.limits import CPU
from qdtrace.lanes.shared_scans import split_scan
from qdtrace.lanes.shared_work import PER_READ, constants_of, is_same, is_var, is_work, once_of, rest_of, work_of
from qdtrace.trace import compat
from qdtrace.trace.products import is_loop, matrix_multiplications

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

LEAST = 256
"""The fewest operations that are a call of their own: fewer are scalars, which the head of a task has."""
LEAST_OF_ALL = 1 << 18
"""The fewest operations that all lanes save together: some 20 microseconds of two cores, where a call costs five."""
OF_THREAD, OF_CORE = 256, 1 << 16
"""The most elements of an array that one thread of a GPU, or one core, works on."""
_CALLS = frozenset({"jit", "closed_call"})


@frozen
class Cut:
    """The jaxpr of one element in two parts; the second reads what the first makes."""

    once: Any
    rest: Any


def cut(jaxpr: Any, varies: Collection[Any], lanes: Any, least: int = LEAST, of_all: int = LEAST_OF_ALL) -> Cut | None:
    """Returns the jaxpr of one element in two parts; None where the first is not worth a call of its own.

    Args:
        jaxpr: the jaxpr, without loops of this package.
        varies: those of its variables that differ from lane to lane.
        lanes: their number, maybe a symbol.
        least: the fewest operations of the first part.
        of_all: the fewest that all lanes save together.
    """
    opened = compat.open_jaxpr(jaxpr)
    same = {v for v in (*opened.invars, *opened.constvars) if v not in varies}
    if not _has_work(opened, same):
        return None
    names: dict[Any, Any] = {}
    eqns = list(_inlined(opened.eqns, names, same))
    results = compat.named(opened.outvars, names)
    constants = constants_of(eqns, opened.constvars)
    once = once_of(eqns, same, constants=constants)
    rest, read = rest_of(eqns, once, results, constants)
    first = [e for e, is_once in zip(eqns, once, strict=True) if is_once]
    kept = [v for e in first for v in e.outvars if v in read]
    work = sum(map(work_of, first))
    saved = work * lanes if isinstance(lanes, int) else of_all
    if work < max(least, PER_READ * sum(v.aval.size for v in kept)) or saved < of_all:
        return None
    given = [*opened.constvars, *opened.invars]
    asked = {v for e in first for v in e.invars if is_var(v)}
    return Cut(
        compat.jaxpr_of(first, [v for v in given if v in asked], kept),
        compat.jaxpr_of(rest, [*(v for v in given if v in read), *kept], results),
    )


def is_for_library(part: Any) -> bool:
    """Returns whether XLA computes once what no lane differs in: one thread would take long for large arrays.

    A `while` is never for XLA, as only this package has its derivative.
    """
    every = list(compat.all_eqns(part.eqns))
    if any(e.primitive is lax.while_p for e in every):
        return False
    steps = [e for e in every if not compat.holds_jaxpr(e)]  # not what a loop stacks
    largest = max((v.aval.size for e in steps for v in (*e.invars, *e.outvars)), default=0)
    if jax.default_backend() != "cpu":
        return largest > OF_THREAD or not any(map(is_loop, every))
    return largest > OF_CORE or max(map(matrix_multiplications, every)) >= CPU.product


def _has_work(jaxpr: Any, same: Iterable[Any]) -> bool:
    """Returns whether no lane differs in the work of an equation, or of one inside of a call."""
    known = set(same)
    for eqn in jaxpr.eqns:
        if is_same(eqn, known):
            if is_work(eqn):
                return True
            known.update(eqn.outvars)
        elif (body := _body(eqn)) is not None and _has_work(body, _same_inside(eqn, body, known)):
            return True
    return False


def _inlined(eqns: Iterable[Any], names: dict[Any, Any], same: set[Any]) -> Iterator[Any]:
    """Yields equations; in the place of calls and scans that have such work beside other, those inside of them.

    `names` says what variables are called here; `same` grows by the results in which no lane differs.
    """
    for eqn in eqns:
        found = eqn.replace(invars=compat.named(eqn.invars, names), outvars=compat.named(eqn.outvars, names))
        if is_same(found, same):
            same.update(found.outvars)
        elif (called := _opened(found, same)) is not None:
            inner = {v: compat.new_var(v) for e in called.eqns for v in e.outvars}
            inner.update(zip(called.invars, found.invars, strict=True))
            yield from _inlined(called.eqns, inner, same)
            names.update(zip(eqn.outvars, compat.named(called.outvars, inner), strict=True))
            continue
        yield found


def _opened(eqn: Any, same: Collection[Any]) -> Any:
    """Returns the jaxpr that an equation is, if some of its work is the same in all lanes."""
    body = _body(eqn)
    if body is None or not _has_work(body, _same_inside(eqn, body, same)):
        return None
    return body if eqn.primitive.name in _CALLS else split_scan(eqn, same, _inlined)


def _body(eqn: Any) -> Any:
    """Returns the jaxpr of a `scan`, or of a call that is no more than its equations."""
    called = compat.called_jaxpr(eqn) if eqn.primitive.name in _CALLS else None
    body = eqn.params["jaxpr"] if eqn.primitive is lax.scan_p else called
    return None if body is None or compat.open_jaxpr(body).constvars else compat.open_jaxpr(body)


def _same_inside(eqn: Any, called: Any, same: Collection[Any]) -> list[Any]:
    pairs = zip(eqn.invars, called.invars, strict=True)
    return [own for v, own in pairs if not is_var(v) or v in same]
