"""Quiet loops: light `while`s whose lanes run on after they left; now and then they ask whether a lane is left.

The useless iterations cost less than the tests. An iteration is one block, test and body, so that its instructions
mix; conditions that hold for all lanes are tested at its end, for the next one:

    before: are the conditions true at all?
    while:  test of lanes, body; the conditions again; every eighth time, or if they are false, go on to `asks`
    asks:   is there a lane, and are they true? -> while, or done

Where registers are few, the order of the instructions decides how many values are spilled: the block is written vector
after vector (`vector_order`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.carries import Phis
from lowering.llvm.polls import poll_in
from lowering.simd.carries import LaneCarries
from lowering.simd.live_lanes import LiveLanes
from lowering.simd.vector_order import in_order
from qdtrace.ir.dataflow import slice_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn

QUIET_STEPS = 8
"""Iterations of a quiet loop between tests whether a lane is live."""


def emit_quiet(f: LaneFrame, eqn: Eqn, common: Sequence[Atom], own: Sequence[Atom]) -> None:
    """Emits a quiet `while`; `common` are the uniform conjuncts of its condition, `own` the others."""
    text, (test, body) = f.text, eqn.blocks
    carries = LaneCarries(f, eqn, eqn.invars, body.params)
    entered = LiveLanes.of(f, [f.mask_of(f.mask, v) for v in range(f.vectors)])
    needed = slice_of(test.eqns, common)

    def goes_on(values: Sequence[list[str]]) -> str:
        for param, registers in zip(test.params, values, strict=True):
            f.bind(param, registers)
        f.emit(needed)
        return f.all_hold([*map(f.scalar_of, common)])

    loop, asks, done = text.fresh_label("while"), text.fresh_label("asks"), text.fresh_label("done")
    with f.region():
        enters = goes_on(carries.initial)
    before = text.label
    text.branch(enters, loop, done)
    text.begin(loop)
    phis = Phis(f, before)
    counter = phis.add("i32", "0")
    live = entered.carried(phis)
    carries.open(phis)
    begin = _carried(f, live, carries)
    start = len(text.lines)
    with f.region(live.mask(nonempty=False)):
        carries.bind(test.params)
        f.emit(test.eqns)
        for condition in own:
            live = live.narrowed(f.vectors_of(condition))
        mask = live.mask(nonempty=False)
        with f.region(mask):
            carries.bind(body.params)
            f.emit(body.eqns)
            carries.step_in(body, mask)
        end = _carried(f, live, carries)
        again = goes_on(carries.values)
    steps = text.op(f"add i32 {counter}, 1")
    waits = text.op(f"icmp ne i32 {text.op(f'and i32 {steps}, {QUIET_STEPS - 1}')}, 0")
    latch = text.label
    if latch == loop:
        text.lines[start:] = in_order(f, text.lines[start:], begin, end)
    text.branch(text.op(f"and i1 {again}, {waits}"), loop, asks)
    text.begin(asks)
    poll_in(f, eqn)
    asked = text.label
    text.branch(text.op(f"and i1 {again}, {live.any()}"), loop, done)
    phis.close([steps, *live.registers, *carries.flat()], latch, asked)
    text.begin(done)
    carries.merge(before, asked)


def _carried(f: LaneFrame, live: LiveLanes, carries: LaneCarries) -> list[tuple[str, Sequence[str]]]:
    """Returns type and registers of the live lanes, of the carries, and of the values with which lanes left."""
    values = zip(map(carries.type_of, carries.params), carries.values, strict=True)
    remembered = zip(carries.params, carries.remembered, strict=True)
    return [(live.type, live.registers), *values, *((f.vector.type(p.dtype), group) for p, group in remembered)]
