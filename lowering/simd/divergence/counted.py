"""Divergent `for` loops whose lanes count alike, from one start in steps of one: they end by a scalar test.

The largest stop of the lanes is known before the loop, so no iteration asks whether a lane is still on, and a lane is
on while the index is below its own stop, so masks are not carried.

A quiet loop runs with all vectors side by side until one half of them has finished; the other half goes on alone:

    stops of the first half   5 2 7 1      all vectors run 7 iterations,
    stops of the second half  3 9 4 4      those of the second half 2 more

So vectors hide the latency of each other, and few lanes wait for a long one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lowering.llvm.carries import Phis
from lowering.llvm.polls import poll_in
from lowering.llvm.types import REGISTER
from lowering.simd.carries import LaneCarries
from lowering.simd.descriptions import Mask
from lowering.simd.lane_facts import is_quiet
from qdtrace.ir.carries import carried_params
from qdtrace.ir.program import Literal
from qdtrace.ir.walk import free_vars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn
    from qdtrace.ir.types import DType


class _Trips(NamedTuple):
    """Iterations `first` .. `last - 1` of a loop, of each lane those below its stop."""

    first: str
    last: str
    stops: Sequence[str]


def counts_alike(f: LaneFrame, loop: Eqn) -> bool:
    """Returns whether the lanes of a `for` have one index, which rises by one."""
    step = loop.step
    return f.is_uniform(loop.index) and isinstance(step, Literal) and int(step.value) == 1


def emit_counted(f: LaneFrame, loop: Eqn) -> None:
    """Emits a `for` whose lanes count alike."""
    d, kind, (start, stop, _) = loop.index.dtype, REGISTER[loop.index.dtype], loop.bounds
    first = f.scalar_of(start)
    stops = f.blended(f.mask, d, f.vectors_of(stop), [f.spread(kind, first)] * f.vectors)
    half = f.vectors // 2
    if not _has_halves(f, loop):
        _run(f, loop, loop.initials, _Trips(first, f.most(d, stops), stops))
        return
    lasts = f.most(d, stops[:half]), f.most(d, stops[half:])
    both = f.scalar.intrinsic("smin", kind, *lasts)
    _run(f, loop, loop.initials, _Trips(first, both, stops))
    _go_on(f, loop, f.scalar.intrinsic("smax", kind, first, both), lasts, stops)


def _has_halves(f: LaneFrame, loop: Eqn) -> bool:
    """Returns whether half of the vectors may go on alone: values of a quiet loop need no more than registers.

    In a function in parts all vectors go on: parts would load those of the other half from the places of values.
    """
    if f.split or f.crossings.nbytes:
        return False
    alike = any(f.is_uniform(p) for p in carried_params(loop, loop.blocks[0]))
    return f.vectors >= 4 and f.vectors % 2 == 0 and is_quiet(loop) and not alike


def _go_on(f: LaneFrame, loop: Eqn, first: str, lasts: tuple[str, str], stops: Sequence[str]) -> None:
    """Emits the iterations from `first` on of the half that has some, and binds the results of both halves."""
    text, d, kind = f.text, loop.index.dtype, REGISTER[loop.index.dtype]
    env, vectors, half = f.env, f.vectors, f.vectors // 2
    second = text.op(f"icmp slt {kind} {lasts[0]}, {lasts[1]}")

    def choose(dtype: DType, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """Returns `a` if the second half goes on, else `b`."""
        type_ = f.vector.type(dtype)
        return [text.op(f"select i1 {second}, {type_} {x}, {type_} {y}") for x, y in zip(a, b, strict=True)]

    def own(dtype: DType, registers: Sequence[str]) -> list[str]:
        return choose(dtype, registers[half:], registers[:half])

    before = [f.vectors_of(v) for v in loop.outvars]
    read = [v for v in (*free_vars(loop.blocks[0]), *loop.outvars) if not f.is_uniform(v)]
    chosen = {v: own(v.dtype, f.vectors_of(v)) for v in read}
    trips = _Trips(first, f.scalar.intrinsic("smax", kind, *lasts), own(d, stops))
    f.env, f.vectors = dict(env), half
    for var, registers in chosen.items():
        f.bind(var, registers)
    _run(f, loop, loop.outvars, trips)
    after = [f.vectors_of(v) for v in loop.outvars]
    f.env, f.vectors = env, vectors
    for var, old, new in zip(loop.outvars, before, after, strict=True):
        f.bind(var, [*choose(var.dtype, old[:half], new), *choose(var.dtype, new, old[half:])])


def _run(f: LaneFrame, loop: Eqn, initials: Sequence[Atom], trips: _Trips) -> None:
    """Emits iterations of a loop and binds its results."""
    text, body, o, kind = f.text, loop.blocks[0], f.vector, REGISTER[loop.index.dtype]
    carries = LaneCarries(f, loop, initials, carried_params(loop, body))
    inside, done = text.fresh_label("for"), text.fresh_label("done")
    text.branch(text.op(f"icmp slt {kind} {trips.first}, {trips.last}"), inside, done)
    before = text.label
    text.begin(inside)
    phis = Phis(f, before)
    index = phis.add(kind, trips.first)
    carries.open(phis)
    with f.region():
        now = f.spread(kind, index)
        live = tuple(o.compare("icmp slt", o.type(loop.index.dtype), now, stop) for stop in trips.stops)
        with f.region(Mask(live)):
            f.bind(loop.index, [index])
            carries.bind(carried_params(loop, body))
            f.emit(body.eqns)
            carries.step_in(body, Mask(live))
            following = text.op(f"add {kind} {index}, 1")
            goes_on = text.op(f"icmp slt {kind} {following}, {trips.last}")
            poll_in(f, loop)
    latch = text.label
    text.branch(goes_on, inside, done)
    phis.close([following, *carries.flat()], latch)
    text.begin(done)
    carries.merge(before, latch)
