"""Cuts a `scan` of a lane in two: steps in which no lane differs, and the others, which read what those made.

The covariance of a filter with one model depends on no measurement, nor does a random key that each step splits. The
first scan stacks what the second reads of it, as partial evaluation of JAX does with what is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from qdtrace.lanes.shared_work import PER_READ, is_same, is_var, is_work, once_of, rest_of, work_of
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    Inline = Callable[[Iterable[Any], dict[Any, Any], set[Any]], Iterator[Any]]

PER_STACKED = 128
"""Operations for each element that is stacked from which on this pays on a GPU: all lanes add to it in derivatives."""
MOST_STACKED = 1 << 16
"""The most elements that the second scan reads of the first, which a second cache holds."""


def split_scan(eqn: Any, same: Collection[Any], inline: Inline) -> Any:
    """Returns the open jaxpr of two scans for one; None where that does not pay, and for any other equation.

    Args:
        eqn: the equation; lanes differ in some of its operands.
        same: variables in which no lane differs.
        inline: yields equations with calls opened, renames them, and adds to variables in which no lane differs.
    """
    length = eqn.params.get("length")
    if eqn.primitive is not lax.scan_p or eqn.effects or type(length) is not int or length < 1:
        return None
    body = compat.open_jaxpr(eqn.params["jaxpr"])
    if body.constvars:
        return None
    consts, count = compat.scan_counts(eqn.params)
    eqns, outs, known = _body(
        body, [not is_var(v) or v in same for v in eqn.invars], slice(consts, consts + count), inline
    )
    if not any(is_same(e, known) and is_work(e) for e in eqns):
        return None
    carry = body.invars[consts : consts + count]
    once, asked = _once_with_carries(eqns, known, carry, outs)
    firsts = [v in asked for v in carry]
    first = [e for e, is_once in zip(eqns, once, strict=True) if is_once]
    made = {v for e in first for v in e.outvars}
    ys = [is_var(v) and v in made for v in outs[count:]]
    given, left = _split(outs[count:], ys)
    ends, more = _split(outs[:count], firsts)
    rest, read = rest_of(eqns, once, [*more, *left])
    kept = [v for v in (*carry, *(v for e in first for v in e.outvars)) if v in read and (v in made or v in asked)]
    size = sum(v.aval.size for v in kept)
    least = PER_READ if jax.default_backend() == "cpu" else PER_STACKED
    if sum(map(work_of, first)) < least * max(1, size) or size * length > MOST_STACKED:
        return None
    own = compat.jaxpr_of(first, [v for v in body.invars if v in asked], [*ends, *given, *kept])
    other = compat.jaxpr_of(rest, [*(v for v in body.invars if v in read and v not in kept), *kept], [*more, *left])

    def run(*xs: Any) -> list[Any]:
        constants = dict(zip(body.invars[:consts], xs[:consts], strict=True))
        init, init_rest = _split(xs[consts : consts + count], firsts)
        carry_first, carry_rest = _split(carry, firsts)
        rows = dict(zip(body.invars[consts + count :], xs[consts + count :], strict=True))

        def scan(part: Any, names: Sequence[Any], init: Sequence[Any], rows: dict[Any, Any]) -> Any:
            taken = {v: x for v, x in rows.items() if v in part.invars}

            def step(state: Any, row: Any) -> Any:
                known = {**constants, **dict(zip(names, state, strict=True)), **dict(zip(taken, row, strict=True))}
                results = compat.function_of(part)(*(known[v] for v in part.invars))
                return list(results[: len(names)]), list(results[len(names) :])

            return lax.scan(step, list(init), [*taken.values()], length=length, reverse=eqn.params["reverse"])

        end, stacked = scan(own, carry_first, init, rows)
        kept_rows = dict(zip(kept, stacked[len(given) :], strict=True))
        end_rest, ys_rest = scan(other, carry_rest, init_rest, {**rows, **kept_rows})
        return [*_joined(firsts, end, end_rest), *_joined(ys, stacked[: len(given)], ys_rest)]

    traced = jax.make_jaxpr(run)(*(v.aval for v in eqn.invars))
    return None if compat.open_jaxpr(traced).constvars else compat.open_jaxpr(traced)


def _body(body: Any, same: list[bool], carries: slice, inline: Inline) -> tuple[list[Any], list[Any], set[Any]]:
    """Returns equations, results, and variables in which no lane differs in any step."""
    while True:
        known = {v for v, one in zip(body.invars, same, strict=True) if one}
        names: dict[Any, Any] = {}
        eqns = list(inline(body.eqns, names, known))
        outs = compat.named(body.outvars, names)
        stay = [a and (not is_var(v) or v in known) for a, v in zip(same[carries], outs, strict=False)]
        if stay == same[carries]:
            return eqns, outs, known
        same = [*same[: carries.start], *stay, *same[carries.stop :]]


def _once_with_carries(
    eqns: list[Any], known: set[Any], carry: Sequence[Any], outs: Sequence[Any]
) -> tuple[list[bool], set[Any]]:
    """Returns which equations the first scan has, and what they read: with a carry, also what it becomes."""
    wanted: set[Any] = set()
    while True:
        once = once_of(eqns, known, wanted)
        asked = {v for e, is_once in zip(eqns, once, strict=True) if is_once for v in e.invars if is_var(v)} | wanted
        more = {out for v, out in zip(carry, outs, strict=False) if v in asked and is_var(out)}
        if more <= wanted:
            return once, asked
        wanted |= more


def _split(xs: Sequence[Any], flags: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    pairs = list(zip(xs, flags, strict=True))
    return [x for x, flag in pairs if flag], [x for x, flag in pairs if not flag]


def _joined(flags: Sequence[bool], those: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    first, second = iter(those), iter(others)
    return [next(first if flag else second) for flag in flags]
