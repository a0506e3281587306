"""Divergent `if`, `for` and `while`, by masks.

A divergent loop keeps a mask of live lanes; a lane that has left keeps its carries (they are blended), and the loop
ends when no lane is live. Values that an inactive lane computes are never used and never harmful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import control
from lowering.llvm.borders import before
from lowering.llvm.carries import Phis
from lowering.llvm.parts import emit_rare
from lowering.llvm.polls import poll_in
from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import Value
from lowering.simd.accumulation.tiles import emit_outer_product
from lowering.simd.carries import LaneCarries
from lowering.simd.descriptions import Mask
from lowering.simd.divergence.counted import counts_alike, emit_counted
from lowering.simd.divergence.quiet import emit_quiet
from lowering.simd.lane_facts import is_quiet
from lowering.simd.live_lanes import LiveLanes
from qdtrace.analysis.branches import runs_both
from qdtrace.analysis.index.induction import conjuncts
from qdtrace.ir.carries import carried_params
from qdtrace.ir.primitives import BOUND, CHECK, IF, LANE_COUNT, LOAD
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Var
from qdtrace.ir.walk import is_rare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simd.frame import LaneFrame


def emit_if(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `if`: a branch if it is uniform, else both sides under masks; a rare one as a function."""
    if is_rare(eqn) and not eqn.outvars and not eqn.blocks[1].eqns and not f.is_scalar:
        _rare_if(f, eqn)
    else:
        _emit_if(f, eqn)


def _rare_if(f: LaneFrame, eqn: Eqn) -> None:
    """A function, which is called where some lane goes there."""
    text, condition = f.text, eqn.invars[0]
    if isinstance(condition, Literal):
        emit_rare(f, eqn, _emit_ifs)
        return
    label, join = text.fresh_label("rare"), text.fresh_label("join")
    goes = f.scalar_of(condition) if f.is_uniform(condition) else f.any(f.narrowed(f.mask, f.vectors_of(condition)))
    text.branch(goes, label, join)
    text.begin(label)
    emit_rare(f, eqn, _emit_ifs)
    text.jump(join)
    text.begin(join)


def _emit_ifs(f: LaneFrame, eqns: Sequence[Eqn]) -> None:
    for eqn in eqns:
        before(f, eqn)  # a value that both sides read is loaded in front of them
        _emit_if(f, eqn)


def _emit_if(f: LaneFrame, eqn: Eqn) -> None:
    condition = eqn.invars[0]
    if isinstance(condition, Literal) or f.is_uniform(condition):
        control.emit_if(f, eqn)
    elif runs_both(eqn, f.uniformity, f.target.machine):
        _flat_if(f, eqn)
    else:
        _masked_if(f, eqn)


def _flat_if(f: LaneFrame, eqn: Eqn) -> None:
    """Emits both sides, then lane-wise choices; loads use the mask of their side."""
    conditions = f.vectors_of(eqn.invars[0])
    for block, negate in zip(eqn.blocks, (False, True), strict=True):
        loads = any(e.primitive in (LOAD, IF, BOUND, CHECK) for e in block.eqns)
        mask = f.narrowed(f.mask, conditions, negate=negate) if loads else f.mask.vectors
        with f.region(Mask(mask, nonempty=False)):
            f.emit(block.eqns)
    then, other = eqn.blocks
    for out, a, b in zip(eqn.outvars, then.results, other.results, strict=True):
        _choose(f, out, conditions, f.vectors_of(a), f.vectors_of(b))


def _masked_if(f: LaneFrame, eqn: Eqn) -> None:
    """Emits each side under its mask, with a branch around it for when no lane goes there."""
    conditions = f.vectors_of(eqn.invars[0])
    sides: list[list[list[str]]] = []
    for block, negate in zip(eqn.blocks, (False, True), strict=True):
        sides.append(_side(f, eqn, block, f.narrowed(f.mask, conditions, negate=negate) if block.eqns else None))
    for out, then, other in zip(eqn.outvars, *sides, strict=True):
        _choose(f, out, conditions, then, other)


def _choose(f: LaneFrame, out: Var, conditions: list[str], then: list[str], other: list[str]) -> None:
    kind, lanes = f.vector.type(out.dtype), zip(conditions, then, other, strict=True)
    f.env[out] = Value(out.dtype, vectors=[f.vector.select(c, kind, a, b) for c, a, b in lanes])


def _side(f: LaneFrame, eqn: Eqn, block: Block, mask: tuple[str, ...] | None) -> list[list[str]]:
    """Emits one side; returns its results as vectors, zeros if no lane went there."""
    if mask is None:
        return [f.vectors_of(a) for a in block.results]
    text = f.text
    label, join = text.fresh_label("side"), text.fresh_label("join")
    text.branch(f.any(mask), label, join)
    before = text.label
    text.begin(label)
    with f.region(Mask(mask)):
        f.emit(block.eqns)
        results = [f.vectors_of(a) for a in block.results]
    end = text.label
    text.jump(join)
    text.begin(join)
    return [
        [text.op(f"phi {f.vector.type(out.dtype)} [ zeroinitializer, %{before} ], [ {r}, %{end} ]") for r in registers]
        for out, registers in zip(eqn.outvars, results, strict=True)
    ]


def emit_for(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `for`, under masks if it is divergent; one that accumulates an outer product by tiles."""
    if eqn not in f.uniformity.divergent:
        if not emit_outer_product(f, eqn):
            control.emit_for(f, eqn)
    elif counts_alike(f, eqn):
        emit_counted(f, eqn)
    elif not control.never_moves(f, eqn):
        _divergent_for(f, eqn)


def _divergent_for(f: LaneFrame, eqn: Eqn) -> None:
    """Emits a `for` whose lanes have different trip counts."""
    text, body, d = f.text, eqn.blocks[0], eqn.invars[0].dtype
    start, stop, step = eqn.bounds
    o, each = f.vector, range(f.vectors)
    enters, goes_on = control.loop_tests(eqn, o)
    counter = f.is_uniform(body.params[0])
    lasts, steps, firsts = f.vectors_of(stop), f.vectors_of(step), f.vectors_of(start)
    carries = LaneCarries(f, eqn, eqn.initials, carried_params(eqn, body))
    entered = LiveLanes.of(f, f.narrowed(f.mask, [enters(firsts[v], lasts[v], steps[v]) for v in each]))
    loop, done = text.fresh_label("for"), text.fresh_label("done")
    text.branch(entered.any(), loop, done)
    before = text.label
    text.begin(loop)
    phis = Phis(f, before)
    live = entered.carried(phis)
    kind = REGISTER[d]
    indices = [phis.add(kind, f.scalar_of(start))] if counter else [phis.add(o.type(d), r) for r in firsts]
    carries.open(phis)
    mask = live.mask()
    with f.region(mask):
        f.bind(body.params[0], indices)
        carries.bind(carried_params(eqn, body))
        f.emit(body.eqns)
        carries.step_in(body, mask)
        if counter:
            following = [text.op(f"add {kind} {indices[0]}, {f.scalar_of(step)}")]
            now, then = f.spread(kind, indices[0]), f.spread(kind, following[0])
            again = [goes_on(now, then, lasts[v], steps[v]) for v in each]
        else:
            following = [o.binary("add", o.type(d), indices[v], steps[v]) for v in each]
            again = [goes_on(indices[v], following[v], lasts[v], steps[v]) for v in each]
        left = live.narrowed(again)
        condition = left.any()
        poll_in(f, eqn)
    latch = text.label
    text.branch(condition, loop, done)
    phis.close([*left.registers, *following, *carries.flat()], latch)
    text.begin(done)
    carries.merge(before, latch)


def emit_while(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `while`, under masks if it is divergent."""
    if eqn in f.uniformity.divergent:
        _divergent_while(f, eqn)
    else:
        control.emit_while(f, eqn)


def _divergent_while(f: LaneFrame, eqn: Eqn) -> None:
    """Emits a `while` whose mask of live lanes narrows until none is left.

    Uniform parts of the condition are scalar branches. Lanes that are refilled carry whether they are live, and count
    that.
    """
    text, (test, body) = f.text, eqn.blocks
    common, own = _conjuncts(f, test)
    if is_quiet(eqn):
        emit_quiet(f, eqn, common, own)
        return
    counted = [e.invars[0] for e in test.eqns if e.primitive is LANE_COUNT]
    flag = next((n for n, p in enumerate(test.params) if own == counted == [p]), None)
    carries = LaneCarries(f, eqn, eqn.invars, body.params, flag)
    loop, inside, done = text.fresh_label("while"), text.fresh_label("body"), text.fresh_label("done")
    entered = LiveLanes.of(f, [f.mask_of(f.mask, v) for v in range(f.vectors)])
    before = text.label
    text.jump(loop)
    text.begin(loop)
    phis = Phis(f, before)
    live = entered.carried(phis) if flag is None else entered
    carries.open(phis)
    with f.region(live.mask() if flag is None else f.mask):
        carries.bind(test.params)
        f.emit(test.eqns)
        held = carries.flat()
        if flag is None:
            for condition in own:
                live = live.narrowed(f.vectors_of(condition))
        else:
            live = carries.live
        anybody = live.any() if flag is None else f.any(f.vectors_of(own[0]))
        text.branch(f.all_hold([*map(f.scalar_of, common), anybody]), inside, done)
        text.begin(inside)
        mask = live.mask()
        with f.region(mask):
            carries.bind(body.params)
            f.emit(body.eqns)
            carries.step_in(body, mask)
        poll_in(f, eqn)
    phis.close([*(live.registers if flag is None else ()), *carries.flat()], text.label)
    text.jump(loop)
    text.begin(done)
    carries.finish(held)


def _conjuncts(f: LaneFrame, test: Block) -> tuple[list[Atom], list[Atom]]:
    """Returns the conjuncts of a condition: the uniform ones, and the others.

    In parts it is one, as a part gives what is read in the graph alone.
    """
    common: list[Atom] = []
    own: list[Atom] = []
    for atom in test.results if f.split else conjuncts(test):
        (common if isinstance(atom, Literal) or f.is_uniform(atom) else own).append(atom)
    return common, own
