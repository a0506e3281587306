"""Code of a loop whose trips are lanes, in a function that runs one iteration of its task at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import control
from lowering.llvm.combining import combine
from lowering.llvm.descriptions import GlobalMemory
from lowering.llvm.polls import poll_in
from lowering.simd.accumulation.lanes import reduce_lanes
from lowering.simd.descriptions import ALL
from lowering.simd.frame import LaneFrame
from lowering.simd.inner.prefixes import emit_scan
from lowering.simd.inner.scans import scanned_value
from lowering.simd.steps import lanes_below
from qdtrace.ir.carries import carried_params
from qdtrace.ir.combining import identity

if TYPE_CHECKING:
    from lowering.simd.descriptions import Mask
    from lowering.simd.inner.facts import InnerLoop
    from qdtrace.ir.program import Eqn, Var


def emit_for(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `for` of one lane: in vectors along it if the plan says so, else as a scalar loop."""
    loop = f.inner.get(eqn)
    if loop is None or f.split:
        control.emit_for(f, eqn)
    else:
        _Along(f, loop).emit()


class _Along:
    def __init__(self, f: LaneFrame, loop: InnerLoop) -> None:
        self.f = f
        self.loop = loop
        self.carries = carried_params(loop.eqn, loop.eqn.blocks[0])
        self.lanes = _lanes(f, loop)
        self.kinds: dict[Var, str] = {}
        self.slots: dict[Var, list[str]] = {}
        for carry, op in zip(self.carries, loop.sums, strict=True):
            self.kinds[carry] = (self.lanes.vector if op else f.scalar).type(carry.dtype)
            self.slots[carry] = [f.text.slot(self.kinds[carry]) for _ in range(loop.vectors if op else 1)]

    def emit(self) -> None:
        """Emits whole steps, the rest of the trips under a mask, and the sums of all lanes."""
        g, loop = self.lanes, self.loop
        step = loop.width * loop.vectors
        full, end = loop.first + loop.trips // step * step, loop.first + loop.trips
        for carry, op, initial in zip(self.carries, loop.sums, loop.eqn.initials, strict=True):
            d = carry.dtype
            first = g.vector.constant(identity(op, d).value, d) if op else self.f.scalar_of(initial)
            self._keep(carry, [first] * len(self.slots[carry]))
        if loop.descends:
            self._rest(full, end)
        if full > loop.first:
            with g.text.counted(str(loop.first), str(full), step, unroll=None) as index:
                at = g.text.op(f"sub i64 {loop.first + full - step}, {index}") if loop.descends else index
                self._step(at, ALL)
                poll_in(g, loop.eqn)
        if not loop.descends:
            self._rest(full, end)
        self._finish()

    def _rest(self, full: int, end: int) -> None:
        if full < end:
            g = self.lanes
            with g.region():
                self._step(str(full), lanes_below(g, str(full), str(end)))

    def _step(self, index: str, mask: Mask) -> None:
        g, loop = self.lanes, self.loop
        (block,) = loop.eqn.blocks
        with g.region(mask):
            g.bind_index(block.params[0], index)
            summed = [(c, r) for c, r, op in zip(self.carries, block.results, loop.sums, strict=True) if op]
            old = {c: self._kept(c) for c, _ in summed}
            for carry, registers in old.items():
                g.bind(carry, registers)
            eqns = list(loop.facts.task.body.eqns)
            for scan, carry in sorted(loop.scans.items(), key=lambda pair: eqns.index(pair[0])):
                at = eqns.index(scan)
                g.emit(eqns[:at])
                (total,), value = self._kept(carry), scanned_value(scan, carry)
                self._keep(carry, [emit_scan(g, scan, carry, value, total, descends=loop.descends)])
                eqns = eqns[at + 1 :]
            g.emit(eqns)
            for carry, result in summed:
                self._keep(carry, g.blended(mask, carry.dtype, g.vectors_of(result), old[carry]))

    def _kept(self, carry: Var) -> list[str]:
        return [self.f.text.op(f"load {self.kinds[carry]}, ptr {slot}") for slot in self.slots[carry]]

    def _keep(self, carry: Var, registers: list[str]) -> None:
        for slot, register in zip(self.slots[carry], registers, strict=True):
            self.f.text.do(f"store {self.kinds[carry]} {register}, ptr {slot}")

    def _finish(self) -> None:
        """Binds the results: the initial values combined with the sums of all lanes, and the last values of scans."""
        f, eqn = self.f, self.loop.eqn
        for out, carry, initial, op in zip(eqn.outvars, self.carries, eqn.initials, self.loop.sums, strict=True):
            kept = self._kept(carry)
            if op:
                total = reduce_lanes(self.lanes, op, out.dtype, kept)
                kept = [combine(f.scalar, op, out.dtype, f.scalar_of(initial), total)]
            f.bind(out, kept)


def _lanes(f: LaneFrame, loop: InnerLoop) -> LaneFrame:
    """Returns a frame of lanes for a loop's trips, in which the values and the memory of `f` are uniform and shared."""
    g = LaneFrame(
        f.text, loop.facts, f.target, f.scalar.fast_math, f.emit_eqns,
        width=loop.width, vectors=loop.vectors, uniformity=loop.uniformity, row=None, accumulation=f.accumulators.plan,
    )  # fmt: skip
    g.env = dict(f.env)
    g.globals = {**f.globals, **{r: GlobalMemory(m.pointer, m.type, "", "") for r, m in f.privates.items()}}
    g.sources, g.renewed = f.sources, f.renewed
    g.odd = dict(f.odd)
    g.accumulators = f.accumulators
    g.leave, g.stop, g.failure, g.parameters = f.leave, f.stop, f.failure, f.parameters
    return g
