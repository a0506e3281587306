"""The kernels of a scan: sums of stretches, prefixes of them, and each stretch anew from its prefix.

kernel        a program                        leaves in the scratch
qd_sums       adds up the terms of a stretch   one sum
qd_prefixes   is alone; combines the sums      what is carried into each stretch, and behind the last one
qd_kernel     walks through a stretch again
qd_after      is alone; only where something follows the loop

A stretch is the same blocks of iterations in both walks. The second walk begins with the last stretches, which the
first one read last, so that some of them are still near.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.types import compute_dtype
from lowering.triton.code import TritonCode, TritonLaunch
from lowering.triton.elementwise import round_to
from lowering.triton.kernel import Kernel
from lowering.triton.memory import combined, ordered_refs
from lowering.triton.plan import Way, slot_bytes, warps_for
from lowering.triton.text import Source
from lowering.triton.types import constant
from qdtrace.ir.combining import identity
from qdtrace.ir.primitives import WRITES
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.options import EmitOptions
    from lowering.triton.plan import Tiling
    from lowering.triton.scan import Carried, Scan


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the iterations are divided."""

    block: int
    stretches: int
    tiles: int | None
    """Of a stretch; None where only the device knows."""


def describe_scan(scan: Scan, tiling: Tiling) -> str:
    """How a scan is made, in words."""
    shape = _shape(scan, tiling)
    count = "iterations known on the device" if scan.count is None else f"{scan.count} iterations"
    ops = ", ".join(c.op for c in scan.carried)
    return f"scan by {ops}: {count} in {shape.stretches} stretches of blocks of {shape.block}"


def emit_scan(scan: Scan, options: EmitOptions, tiling: Tiling) -> TritonCode:
    """The kernels of a scan."""
    return _Emitter(scan, options, tiling).emit()


def _shape(scan: Scan, tiling: Tiling) -> _Shape:
    block, count = tiling.walk, scan.count
    if count is None:
        return _Shape(block, tiling.programs, None)
    while block > 32 and block >= 2 * count:
        block //= 2
    tiles = max(1, -(-count // block))
    each = -(-tiles // tiling.programs)
    return _Shape(block, -(-tiles // each), each)


class _Emitter:
    def __init__(self, scan: Scan, options: EmitOptions, tiling: Tiling) -> None:
        self.scan = scan
        self.options = options
        self.tiling = tiling
        self.shape = _shape(scan, tiling)
        self.reason = describe_scan(scan, tiling)
        self.module = Source(f"{scan.facts.task.name or 'task'}: {self.reason}.")
        self.sums: list[int] = []
        self.prefixes: list[int] = []
        self.end = 0
        for c in scan.carried:
            dtype = compute_dtype(c.dtype)
            for places, n in ((self.sums, self.shape.stretches), (self.prefixes, self.shape.stretches + 1)):
                places.append(self.end)
                self.end += slot_bytes(dtype, 1, n)

    def emit(self) -> TritonCode:
        block, stretches = self.shape.block, self.shape.stretches
        whole = 1 << max(5, stretches.bit_length())  # one more than the stretches
        self._sums()
        self._prefixes()
        self._walk()
        launches = [
            TritonLaunch("qd_sums", stretches, block, warps_for(block)),
            TritonLaunch("qd_prefixes", 1, whole, warps_for(whole)),
            TritonLaunch("qd_kernel", stretches, block, warps_for(block)),
        ]
        if self.scan.after:
            self._after()
            launches.append(TritonLaunch("qd_after", 1, 32, 1))
        facts = self.scan.facts
        return TritonCode(
            self.module.render(), facts.refs, tuple(launches), self.end, facts.cost, self.reason, self.options.fast_math
        )

    def _kernel(self, *, before: bool = False) -> Kernel:
        """A kernel that has computed what stands before the loop; one of them stores what is stored there."""
        scan = self.scan
        kernel = Kernel(self.module, scan.facts, scan.blocks, fast_math=self.options.fast_math)
        f = kernel.frame
        accums = [e for e in walk_eqns(scan.facts.task.body) if e.primitive.name == "accum"]
        f.ways = dict.fromkeys(accums, Way.OWN)
        f.emit([e for e in scan.before if before or WRITES.isdisjoint(e.primitive.effects)])
        return kernel

    def _tiles(self, kernel: Kernel, stretch: str, body: Callable[[], None]) -> None:
        """Emits the blocks of a stretch."""
        scan, shape, text = self.scan, self.shape, kernel.text
        start, stop = scan.loop.invars[:2]
        index = scan.body.params[0]
        if scan.count is None:
            count: int | str = kernel.counted(start, stop)
            tiles = text.let("tiles", f"({count} + BLOCK - 1) // BLOCK")
            each = text.let("each", f"({tiles} + {shape.stretches - 1}) // {shape.stretches}")
            first = text.let("first", f"{stretch}.to(tl.int64) * {each}")
        else:
            count, tiles, each = scan.count, str(-(-scan.count // shape.block)), str(shape.tiles)
            first = text.let("first", f"{stretch} * {each}")
        tile = text.name("tile")
        with text.block(f"for {tile} in range({first}, tl.minimum({first} + {each}, {tiles})):"):
            kernel.lanes(index, start, count, tile, shape.block)
            body()
        kernel.frame.mask, kernel.frame.mask_is_block = "", False

    def _term(self, kernel: Kernel, c: Carried, mask: str) -> str:
        """What lanes combine, the neutral element in those that are not active."""
        f = kernel.frame
        term = f.spread(c.term, block=True)
        if c.update.primitive.name == "sub":
            term = f"({term} * -1.0)" if c.dtype.is_float else f"(0 - {term})"
        neutral = constant(identity(c.op, compute_dtype(c.dtype)))
        return f"tl.where({mask}, {term}, {neutral})" if mask else term

    def _combiner(self, c: Carried) -> str:
        return self.module.helper(f"combine_{c.op}")

    def _sums(self) -> None:
        kernel = self._kernel()
        f, text = kernel.frame, kernel.text
        totals = [
            text.let("total", kernel.filled(identity(c.op, compute_dtype(c.dtype)))) for c in self.scan.carried
        ]

        def tile() -> None:
            f.emit(self.scan.terms)
            for c, total in zip(self.scan.carried, totals, strict=True):
                term = self._term(kernel, c, f.mask)
                text.line(f"{total} = {combined(f, c.op, compute_dtype(c.dtype), total, term)}")

        self._tiles(kernel, "tl.program_id(0)", tile)
        for c, total, place in zip(self.scan.carried, totals, self.sums, strict=True):
            slots = kernel.slots(place, compute_dtype(c.dtype))
            text.line(f"tl.store({slots} + tl.program_id(0), tl.reduce({total}, 0, {self._combiner(c)}))")
        kernel.close("qd_sums", "What a stretch of iterations adds.")

    def _prefixes(self) -> None:
        kernel = self._kernel(before=True)
        f, text, stretches = kernel.frame, kernel.text, self.shape.stretches
        stretch = text.let("stretch", "tl.arange(0, BLOCK)")
        for c, place, prefix in zip(self.scan.carried, self.sums, self.prefixes, strict=True):
            d = compute_dtype(c.dtype)
            inside = f"({stretch} > 0) & ({stretch} <= {stretches})"
            slots = f"{kernel.slots(place, d)} + {stretch} - 1"
            sums = text.let("sums", f"tl.load({slots}, mask={inside}, other={constant(identity(c.op, d))})")
            scanned = text.let("scanned", f"tl.associative_scan({sums}, 0, {self._combiner(c)})")
            value = combined(f, c.op, d, f.typed(c.initial), scanned)
            at = f"{kernel.slots(prefix, d)} + {stretch}"
            text.line(f"tl.store({at}, {value}, mask={stretch} <= {stretches})")
        kernel.close("qd_prefixes", "What is carried into each stretch.")

    def _walk(self) -> None:
        scan, kernel = self.scan, self._kernel()
        f, text = kernel.frame, kernel.text
        f.ordered = ordered_refs(scan.body, frozenset())
        stretch = text.let("stretch", f"{self.shape.stretches - 1} - tl.program_id(0)")
        carries: list[str] = []
        for c, place in zip(scan.carried, self.prefixes, strict=True):
            carries.append(text.let("carry", f"tl.load({kernel.slots(place, compute_dtype(c.dtype))} + {stretch})"))

        def tile() -> None:
            f.touched.clear()
            pairs = list(zip(scan.carried, carries, strict=True))
            self._starts(kernel, [(c, carry) for c, carry in pairs if c.param in scan.starts_used])
            f.emit(scan.terms)
            following: list[str] = []
            for c, carry in pairs:
                d = compute_dtype(c.dtype)
                terms = text.let("terms", self._term(kernel, c, f.mask))
                if c.param not in scan.starts_used:
                    sums = text.let("sums", f"tl.associative_scan({terms}, 0, {self._combiner(c)})")
                    f.bind(c.update.outvars[0], round_to(c.dtype, combined(f, c.op, d, carry, sums)))
                total = f"tl.reduce({terms}, 0, {self._combiner(c)})"
                following.append(text.let("following", combined(f, c.op, d, carry, total)))
            done = {c.update for c, _ in pairs if c.param not in scan.starts_used} | set(scan.terms)
            f.emit([e for e in scan.body.eqns if e not in done])
            for carry, value in zip(carries, following, strict=True):
                text.line(f"{carry} = {value}")

        self._tiles(kernel, stretch, tile)
        kernel.close("qd_kernel", "The iterations of a stretch, with what is carried into it.")

    def _starts(self, kernel: Kernel, pairs: list[tuple[Carried, str]]) -> None:
        """Values that are carried into each iteration: sums of the terms of those before, which are computed anew."""
        if not pairs:
            return
        f, text, index = kernel.frame, kernel.text, self.scan.body.params[0]
        here, mask = f.env[index], f.mask
        earlier = "tl.arange(0, BLOCK) > 0"
        f.mask = text.let("behind", f"{mask} & ({earlier})" if mask else earlier)
        f.mask_is_block = True
        f.bind(index, f"{here} - 1")
        f.emit(self.scan.terms)
        for c, carry in pairs:
            terms = text.let("terms", self._term(kernel, c, f.mask))
            sums = f"tl.associative_scan({terms}, 0, {self._combiner(c)})"
            f.bind(c.param, round_to(c.dtype, combined(f, c.op, compute_dtype(c.dtype), carry, sums)))
        f.mask, f.mask_is_block, f.env[index] = mask, bool(mask), here

    def _after(self) -> None:
        scan, kernel = self.scan, self._kernel()
        f = kernel.frame
        f.ordered = ordered_refs(scan.facts.task.body, frozenset())
        for c, place in zip(scan.carried, self.prefixes, strict=True):
            d = compute_dtype(c.dtype)
            last = f"tl.load({kernel.slots(place, d)} + {self.shape.stretches})"
            f.bind(c.outvar, round_to(c.dtype, last))
        f.emit(scan.after)
        kernel.close("qd_after", "What follows the loop.")
