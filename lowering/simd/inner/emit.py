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
from lowering.simd.steps import lanes_below
from qdtrace.ir.carries import carried_params
from qdtrace.ir.combining import identity

if TYPE_CHECKING:
    from lowering.simd.descriptions import Mask
    from lowering.simd.inner.facts import InnerLoop
    from qdtrace.ir.program import Eqn


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
        self.slots = [
            [f.text.slot(self.lanes.vector.type(c.dtype)) for _ in range(loop.vectors)] for c in self.carries
        ]

    def emit(self) -> None:
        """Emits whole steps, the rest of the trips under a mask, and the sums of all lanes."""
        g, loop = self.lanes, self.loop
        step = loop.width * loop.vectors
        full, end = loop.first + loop.trips // step * step, loop.first + loop.trips
        for carry, op, slots in zip(self.carries, loop.sums, self.slots, strict=True):
            neutral = g.vector.constant(identity(op, carry.dtype).value, carry.dtype)
            for slot in slots:
                g.text.do(f"store {g.vector.type(carry.dtype)} {neutral}, ptr {slot}")
        if full > loop.first:
            with g.text.counted(str(loop.first), str(full), step, unroll=None) as index:
                self._step(index, ALL)
                poll_in(g, loop.eqn)
        if full < end:
            with g.region():
                self._step(str(full), lanes_below(g, str(full), str(end)))
        self._finish()

    def _step(self, index: str, mask: Mask) -> None:
        g, loop = self.lanes, self.loop
        (block,) = loop.eqn.blocks
        with g.region(mask):
            g.bind_index(block.params[0], index)
            old = [self._load(n) for n in range(len(self.carries))]
            for carry, registers in zip(self.carries, old, strict=True):
                g.bind(carry, registers)
            g.emit(block.eqns)
            for n, (carry, result) in enumerate(zip(self.carries, block.results, strict=True)):
                for slot, new in zip(
                    self.slots[n], g.blended(mask, carry.dtype, g.vectors_of(result), old[n]), strict=True
                ):
                    g.text.do(f"store {g.vector.type(carry.dtype)} {new}, ptr {slot}")

    def _load(self, n: int) -> list[str]:
        kind = self.lanes.vector.type(self.carries[n].dtype)
        return [self.lanes.text.op(f"load {kind}, ptr {slot}") for slot in self.slots[n]]

    def _finish(self) -> None:
        """Binds the results: the initial values combined with the sums of all lanes."""
        f, eqn = self.f, self.loop.eqn
        for n, (out, initial, op) in enumerate(zip(eqn.outvars, eqn.initials, self.loop.sums, strict=True)):
            total = reduce_lanes(self.lanes, op, out.dtype, self._load(n))
            f.bind(out, [combine(f.scalar, op, out.dtype, f.scalar_of(initial), total)])


def _lanes(f: LaneFrame, loop: InnerLoop) -> LaneFrame:
    """Returns a frame of lanes for a loop's trips, in which the values and the memory of `f` are uniform and shared."""
    g = LaneFrame(
        f.text, loop.facts, f.target, f.scalar.fast_math, f.emit_eqns,
        width=loop.width, vectors=loop.vectors, uniformity=loop.uniformity, row=None, accumulation=f.accumulators.plan,
    )  # fmt: skip
    g.env = dict(f.env)
    g.globals = {**f.globals, **{r: GlobalMemory(m.pointer, m.type, "", "") for r, m in f.privates.items()}}
    g.odd = dict(f.odd)
    g.accumulators = f.accumulators
    g.leave, g.stop, g.failure, g.parameters = f.leave, f.stop, f.failure, f.parameters
    return g
