"""`if`, `for` and `while` with scalar branches: control flow is uniform, or there is only one lane.

The values that they carry or select may still have several registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowering.llvm.carries import Carries, Phis
from lowering.llvm.polls import poll_in
from lowering.llvm.types import REGISTER
from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.carries import carried_params
from qdtrace.ir.program import Eqn, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom

    _Enters = Callable[[str, str, str], str]
    _GoesOn = Callable[[str, str, str, str], str]


def emit_if(f: Frame, eqn: Eqn) -> None:
    """Emits `if` as a branch."""
    text = f.text
    labels = [text.fresh_label("then"), text.fresh_label("else")]
    join = text.fresh_label("join")
    text.branch(f.scalar_of(eqn.invars[0]), *labels)
    values: list[list[list[str]]] = []
    ends: list[str] = []
    for label, block in zip(labels, eqn.blocks, strict=True):
        text.begin(label)
        with f.region():
            f.emit(block.eqns)
            values.append([f.operands(out, a) for out, a in zip(eqn.outvars, block.results, strict=True)])
        ends.append(text.label)
        text.jump(join)
    text.begin(join)
    for out, then, other in zip(eqn.outvars, *values, strict=True):
        type_, pairs = f.ops(out).type(out.dtype), zip(then, other, strict=True)
        f.bind(out, [text.op(f"phi {type_} [ {a}, %{ends[0]} ], [ {b}, %{ends[1]} ]") for a, b in pairs])


def emit_for(f: Frame, eqn: Eqn) -> None:
    """Emits `for` as a loop with its test at the end, so that an index that wraps around is never tested."""
    text, body = f.text, eqn.blocks[0]
    start, stop, step = eqn.bounds
    if never_moves(f, eqn):
        return
    kind = REGISTER[start.dtype]
    first, last, by = map(f.scalar_of, (start, stop, step))
    enters, goes_on = loop_tests(eqn, f.scalar)
    carries = Carries(f, eqn, eqn.initials, carried_params(eqn, body))
    loop, done = text.fresh_label("for"), text.fresh_label("done")
    trips = trip_count(start, stop, step)
    runs = bool(trips)
    if trips == 0:
        carries.finish(carries.flat_initial())
        return
    if runs:
        text.jump(loop)
    else:
        text.branch(enters(first, last, by), loop, done)
    before = text.label
    text.begin(loop)
    phis = Phis(f, before)
    index = phis.add(kind, first)
    carries.open(phis)
    with f.region():
        f.bind(body.params[0], [index])
        carries.bind(carried_params(eqn, body))
        f.emit(body.eqns)
        carries.step(body)
        following = text.op(f"add {kind} {index}, {by}")
        again = goes_on(index, following, last, by)
        poll_in(f, eqn)
    latch = text.label
    text.branch(again, loop, done, _unroll(f, eqn))
    phis.close([following, *carries.flat()], latch)
    text.begin(done)
    if runs:
        carries.finish(carries.flat())
    else:
        carries.merge(before, latch)


def never_moves(f: Frame, eqn: Eqn) -> bool:
    """Binds the results of a `for` with step zero, which has no iteration, and returns whether it is one."""
    step = eqn.step
    if not (isinstance(step, Literal) and int(step.value) == 0):
        return False
    for out, initial in zip(eqn.outvars, eqn.initials, strict=True):
        f.bind(out, f.operands(out, initial))
    return True


def _unroll(f: Frame, eqn: Eqn) -> str:
    """Returns LLVM's metadata for the user's wish to unroll."""
    times = eqn.params.get("unroll")
    if isinstance(times, int) and not isinstance(times, bool) and times > 1:
        return f.text.module.unrolled(times)
    return ""


def loop_tests(eqn: Eqn, o: Ops) -> tuple[_Enters, _GoesOn]:
    """Returns two functions that emit "the loop is entered" and "another iteration follows" for lanes of `o`."""
    step = eqn.step
    d = step.dtype
    t = o.type(d)
    zero = o.constant(0, d)

    def up(a: str, b: str) -> str:
        return o.compare("icmp slt", t, a, b)

    def more(a: str, b: str, by: str) -> str:
        # the distance left as an unsigned number: exact, as a < b
        return o.compare("icmp ugt", t, o.binary("sub", t, b, a), by)

    if isinstance(step, Literal):
        size, rises = o.constant(abs(int(step.value)), d), int(step.value) > 0

        def before(a: str, b: str) -> str:
            return up(a, b) if rises else up(b, a)

        def goes_on(a: str, following: str, b: str, by: str) -> str:
            if _stays_inside(eqn.bounds[1], step):  # see Note [Loops that wrap around to their end]
                return before(following, b)
            return more(a, b, size) if rises else more(b, a, size)

        return (lambda a, b, by: before(a, b)), goes_on

    def enters_any(a: str, b: str, by: str) -> str:
        rising = o.binary("and", o.bits, o.compare("icmp sgt", t, by, zero), up(a, b))
        falling = o.binary("and", o.bits, o.compare("icmp slt", t, by, zero), up(b, a))
        return o.binary("or", o.bits, rising, falling)

    def goes_on_any(a: str, following: str, b: str, by: str) -> str:
        rising = o.compare("icmp sgt", t, by, zero)
        return o.select(rising, o.bits, more(a, b, by), more(b, a, o.binary("sub", t, zero, by)))

    return enters_any, goes_on_any


def _stays_inside(stop: Atom, step: Literal) -> bool:
    """Returns whether the last index of a `for` plus its constant step cannot wrap around."""
    by, ends = int(step.value), np.iinfo(step.dtype.numpy)
    if abs(by) == 1:
        return True  # it is the end itself
    return isinstance(stop, Literal) and ends.min <= int(stop.value) + by - (1 if by > 0 else -1) <= ends.max


def emit_while(f: Frame, eqn: Eqn) -> None:
    """Emits `while`, with its test at the start."""
    text, (test, body) = f.text, eqn.blocks
    carries = Carries(f, eqn, eqn.invars, body.params)
    loop, inside, done = text.fresh_label("while"), text.fresh_label("body"), text.fresh_label("done")
    before = text.label
    text.jump(loop)
    text.begin(loop)
    phis = Phis(f, before)
    carries.open(phis)
    with f.region():
        carries.bind(test.params)
        f.emit(test.eqns)
        held = carries.flat()
        text.branch(f.scalar_of(test.results[0]), inside, done)
        text.begin(inside)
        carries.bind(body.params)
        f.emit(body.eqns)
        carries.step(body)
        poll_in(f, eqn)
    latch = text.label
    text.jump(loop)
    phis.close(carries.flat(), latch)
    text.begin(done)
    carries.finish(held)


# Note [Loops that wrap around to their end]
#
# The distance to the end, as an unsigned number, is exact for any step and end. LLVM folds constants into it: for an
# index that goes down by 1 to 0, it becomes `following <u -2`, which is correct, as -1 is the largest number. When
# NVIDIA's assembler unrolls such a loop, it counts iterations as if it ended at -2, and runs one too many. So the test
# is a signed comparison if the index after the last one cannot wrap around.
