"""The kernels of a scan, which read the summed memory once.

kernel      a program
qd_clear    is the only one; clears the words of the scratch and runs the equations before the loop
qd_kernel   takes a tile: sums its terms, publishes the sum, gets the carried-in value from the tiles before it
            (`look_back` in `functions`), and runs the rest of its iterations
qd_after    is the only one; runs the equations after the loop, if there are any

A range that fits into one tile is one program of one kernel, which does everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import compute_dtype
from lowering.plan.sums import Where
from lowering.tables import FIELD
from lowering.triton.code import TritonCode, TritonLaunch
from lowering.triton.elementwise import round_to
from lowering.triton.kernel import Kernel, is_short
from lowering.triton.memory import combined, ordered_refs
from lowering.triton.scan_plan import describe_scan, plan_scan
from lowering.triton.text import Source
from lowering.triton.types import constant, type_of
from qdtrace.ir.combining import identity
from qdtrace.ir.primitives import SUB
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lowering.llvm.options import EmitOptions
    from lowering.triton.plan import Tiling
    from lowering.triton.scan import Carried, Scan
    from lowering.triton.scan_plan import Slots

_CLEARED = 1024
"""Words that are cleared at a time."""


def emit_scan(scan: Scan, options: EmitOptions, tiling: Tiling) -> TritonCode:
    """Returns the kernels of a scan."""
    return _Emitter(scan, options, tiling).emit()


class _Emitter:
    def __init__(self, scan: Scan, options: EmitOptions, tiling: Tiling) -> None:
        self.scan = scan
        self.options = options
        self.plan = plan_scan(scan, tiling)
        self.module = Source(f"{scan.facts.task.name or 'task'}: {describe_scan(scan, self.plan)}.")

    def emit(self) -> TritonCode:
        plan, facts = self.plan, self.scan.facts
        launches: list[TritonLaunch] = []
        if plan.alone:
            self._alone()
            launches.append(TritonLaunch("qd_kernel", 1, plan.block, plan.warps))
        else:
            self._clear()
            launches.append(TritonLaunch("qd_clear", 1, _CLEARED, 4))
            (self._walk if plan.walks else self._tile)()
            launches.append(TritonLaunch("qd_kernel", plan.tiles, plan.block, plan.warps, plan.registers))
            if self.scan.after:
                self._after()
                launches.append(TritonLaunch("qd_after", 1, 32, 1))
        text, scratch = self.module.render(), FIELD * plan.words
        return TritonCode(text, facts.refs, tuple(launches), scratch, self.options.fast_math)

    def _kernel(self, *, before: bool = False) -> Kernel:
        """Begins a kernel with the equations before the loop; only the one with `before` emits their writes."""
        scan = self.scan
        kernel = Kernel(self.module, scan.facts, scan.blocks, fast_math=self.options.fast_math)
        f = kernel.frame
        f.where = lambda _: Where.OWN
        f.emit([e for e in scan.before if before or not e.primitive.writes])
        f.ordered = ordered_refs(scan.body, frozenset())
        return kernel

    def _alone(self) -> None:
        """Emits the kernel of one program that runs the loop and the equations before and after it."""
        scan, kernel = self.scan, self._kernel(before=True)
        f, text = kernel.frame, kernel.text
        if any(e.primitive.writes for e in scan.before):
            text.line("tl.debug_barrier()")
        ends = [f.typed(c.initial) for c in scan.carried]
        if scan.count:
            kernel.lanes(scan.body.params[0], scan.loop.invars[0], scan.count, "tl.program_id(0)", self.plan.block)
            carries = dict(zip(scan.carried, ends, strict=True))
            totals = self._block(kernel, lambda _: None, lambda _: carries)
            ends = self._behind(kernel, ends, totals)
            f.mask, f.mask_is_block, f.size = "", False, ""
        if scan.after:
            text.line("tl.debug_barrier()")
            self._end(kernel, ends)
        kernel.close("qd_kernel", "All iterations, and what is around them.")

    def _clear(self) -> None:
        kernel = self._kernel(before=True)
        f, text = kernel.frame, kernel.text
        words, lane = text.let("words", kernel.slots(0, DType.i64)), text.let("lane", "tl.arange(0, BLOCK)")
        first = text.name("first")
        with text.block(f"for {first} in range(0, {self.plan.words}, BLOCK):"):
            zeros = "tl.full((BLOCK,), 0, tl.int64)"
            text.line(f"tl.store({words} + {first} + {lane}, {zeros}, mask={first} + {lane} < {self.plan.words})")
        text.line("tl.debug_barrier()")
        publish = self.module.helper("publish")
        for c, slots in zip(self.scan.carried, self.plan.slots, strict=True):
            text.line(f"{publish}({self._words(kernel, slots)}, {f.typed(c.initial)}, {slots.far})")
        kernel.close("qd_clear", "Clears what tiles wait for; what is carried into the first one.")

    def _tile(self) -> None:
        """Emits the kernel whose tiles are one block each."""
        scan, plan, kernel = self.scan, self.plan, self._kernel()
        number = self._number(kernel)
        count = scan.count or 0
        whole = kernel.lanes(scan.body.params[0], scan.loop.invars[0], count, number, plan.block)

        def tile() -> None:
            self._block(
                kernel,
                lambda totals: self._publish(kernel, number, totals),
                lambda totals: self._look_back(kernel, number, str(plan.tiles - 1 if scan.after else -1), totals),
            )

        kernel.either(whole if is_short(scan.body) else "", tile)
        kernel.close("qd_kernel", "A tile, from what is carried into it.")

    def _walk(self) -> None:
        """Emits the kernel whose tiles have a number of blocks known on the device; it walks through them twice."""
        scan, kernel = self.scan, self._kernel()
        f, text = kernel.frame, kernel.text
        count, blocks, each, tiles = self._division(kernel)
        with text.block(f"if tl.program_id(0) < {tiles}:"):
            number = self._number(kernel)
            first = text.let("first", f"{number}.to(tl.int64) * {each}")
            end = text.let("end", f"tl.minimum({first} + {each}, {blocks})")
            sums = [text.let("sums", kernel.filled(identity(c.op, compute_dtype(c.dtype)))) for c in scan.carried]

            def add() -> None:
                f.emit(scan.terms)
                for c, total in zip(scan.carried, sums, strict=True):
                    text.line(f"{total} = {self._joined(kernel, c, total, self._term(kernel, c))}")

            self._blocks(kernel, count, first, end, add)
            totals = [text.let("total", self._reduced(c, s)) for c, s in zip(scan.carried, sums, strict=True)]
            self._publish(kernel, number, totals)
            carries = self._look_back(kernel, number, f"{tiles} - 1" if scan.after else "-1", totals)

            def go() -> None:
                added = self._block(kernel, lambda _: None, lambda _: carries)
                for c, total in zip(scan.carried, added, strict=True):
                    if c in carries:
                        text.line(f"{carries[c]} = {self._joined(kernel, c, carries[c], total)}")

            if scan.rest:
                self._blocks(kernel, count, first, end, go)
        kernel.close("qd_kernel", "The blocks of a tile, from what is carried into it.")

    def _after(self) -> None:
        kernel, plan = self._kernel(), self.plan
        group: int | str = plan.groups
        if plan.walks:
            *_, tiles = self._division(kernel)
            group = f"({tiles} + {plan.group - 1}) // {plan.group}"
        received = self.module.helper("received")
        ends: list[str] = []
        for c, slots in zip(self.scan.carried, plan.slots, strict=True):
            like = f"tl.full((), 0, {type_of(c.dtype)})"
            ends.append(f"{received}({self._words(kernel, slots)} + {group}, {like}, {slots.far})")
        self._end(kernel, ends)
        kernel.close("qd_after", "What follows the loop.")

    def _end(self, kernel: Kernel, ends: Sequence[str]) -> None:
        """Emits the equations after the loop, from the final carried values."""
        f = kernel.frame
        f.touched.clear()
        f.ordered = ordered_refs(self.scan.facts.task.body, frozenset())
        for c, end in zip(self.scan.carried, ends, strict=True):
            f.bind(c.outvar, round_to(c.dtype, end))
        f.emit(self.scan.after)

    def _block(
        self,
        kernel: Kernel,
        leave: Callable[[Sequence[str]], None],
        carried_in: Callable[[Sequence[str]], Mapping[Carried, str]],
    ) -> list[str]:
        """Emits the iterations of a block and returns their sums. `leave` and then `carried_in` get the sums; the
        latter returns the values carried into the block, at least those that the body uses."""
        scan, f, text = self.scan, kernel.frame, kernel.text
        f.touched.clear()
        f.emit(scan.terms)
        terms = [text.let("terms", self._term(kernel, c)) for c in scan.carried]
        totals = [text.let("total", self._reduced(c, term)) for c, term in zip(scan.carried, terms, strict=True)]
        leave(totals)
        starts = self._starts(kernel)
        pairs = [(c, term) for c, term in zip(scan.carried, terms, strict=True) if scan.is_used(c)]
        sums = {c: starts[c] if c in starts else text.let("sums", self._scanned(c, term)) for c, term in pairs}
        carries = carried_in(totals)
        for c, inner in sums.items():
            var = c.param if c in starts else c.update.outvars[0]
            f.bind(var, round_to(c.dtype, self._joined(kernel, c, carries[c], inner)))
        f.emit(scan.rest)
        return totals

    def _starts(self, kernel: Kernel) -> dict[Carried, str]:
        """Returns exclusive prefix sums of carried values that the body uses before their update.

        The terms of the preceding iterations are recomputed for them.
        """
        scan, f, text = self.scan, kernel.frame, kernel.text
        found: dict[Carried, str] = {}
        if not scan.starts_used:
            return found
        index, here = scan.body.params[0], (dict(f.env), f.mask, f.mask_is_block)
        earlier = "tl.arange(0, BLOCK) > 0"
        f.mask, f.mask_is_block = text.let("behind", f"{f.mask} & ({earlier})" if f.mask else earlier), True
        f.bind(index, f"{f.env[index]} - 1")
        f.emit(scan.terms)
        for c in scan.carried:
            if c.param in scan.starts_used:
                found[c] = text.let("sums", self._scanned(c, self._term(kernel, c)))
        f.env, f.mask, f.mask_is_block = here
        return found

    def _term(self, kernel: Kernel, c: Carried) -> str:
        """Returns code of the lanes' terms, with the neutral element in inactive lanes."""
        f = kernel.frame
        term = f.spread(c.term, block=True)
        if c.update.primitive is SUB:
            term = f"({term} * -1.0)" if c.dtype.is_float else f"(0 - {term})"
        return f"tl.where({f.mask}, {term}, {self._neutral(c)})" if f.mask else term

    def _neutral(self, c: Carried) -> str:
        return constant(identity(c.op, compute_dtype(c.dtype)))

    def _joined(self, kernel: Kernel, c: Carried, a: str, b: str) -> str:
        return combined(kernel.frame, c.op, compute_dtype(c.dtype), a, b)

    def _behind(self, kernel: Kernel, carries: Sequence[str], totals: Sequence[str]) -> list[str]:
        """Returns the values carried out of a block."""
        pairs = zip(self.scan.carried, carries, totals, strict=True)
        return [self._joined(kernel, c, carry, total) for c, carry, total in pairs]

    def _reduced(self, c: Carried, block: str) -> str:
        return f"tl.reduce({block}, 0, {self.module.helper(f'combine_{c.op}')})"

    def _scanned(self, c: Carried, block: str) -> str:
        return f"tl.associative_scan({block}, 0, {self.module.helper(f'combine_{c.op}')})"

    def _words(self, kernel: Kernel, slots: Slots) -> str:
        return kernel.slots(slots.offset, DType.i64)

    def _number(self, kernel: Kernel) -> str:
        """Returns a variable with the number of the next tile: all smaller ones have been taken."""
        counter = kernel.slots(0, DType.i64)
        return kernel.text.let("tile", f'tl.atomic_add({counter}, 1, sem="relaxed").to(tl.int32)')

    def _publish(self, kernel: Kernel, number: str, totals: Sequence[str]) -> None:
        """Publishes the sums of a tile."""
        publish, first = self.module.helper("publish"), 2 * self.plan.groups + 1
        for total, slots in zip(totals, self.plan.slots, strict=True):
            place = f"{self._words(kernel, slots)} + {first} + {number}"
            kernel.text.line(f"{publish}({place}, {total}, {slots.far})")

    def _look_back(self, kernel: Kernel, number: str, last: str, totals: Sequence[str]) -> dict[Carried, str]:
        """Returns variables with the values carried into a tile; values that the body does not use only pass on."""
        plan, module, text = self.plan, self.module, kernel.text
        found: dict[Carried, str] = {}
        for c, total, slots in zip(self.scan.carried, totals, plan.slots, strict=True):
            given = f"{self._words(kernel, slots)}, {number}, {last}, {total}, {self._neutral(c)}"
            given += f", {plan.groups}, {slots.far}, {plan.group}"
            if self.scan.is_used(c):
                found[c] = text.let("carry", f"{module.helper(f'look_back_{c.op}')}({given})")
            else:
                text.line(f"{module.helper(f'hand_on_{c.op}')}({given})")
        return found

    def _division(self, kernel: Kernel) -> tuple[str, str, str, str]:
        """Returns variables with the trip count, its blocks, the blocks of a tile, and the tiles that have any."""
        text, most = kernel.text, self.plan.tiles
        start, stop, _ = self.scan.loop.bounds
        count = kernel.counted(start, stop)
        blocks = text.let("blocks", f"({count} + {self.plan.block - 1}) // {self.plan.block}")
        each = text.let("each", f"tl.maximum(({blocks} + {most - 1}) // {most}, 1)")
        return count, blocks, each, text.let("tiles", f"({blocks} + {each} - 1) // {each}")

    def _blocks(self, kernel: Kernel, count: str, first: str, end: str, body: Callable[[], None]) -> None:
        """Emits a loop over the blocks of a tile."""
        scan, text = self.scan, kernel.text
        block = text.name("block")
        with text.block(f"for {block} in range({first}, {end}):"):
            whole = kernel.lanes(scan.body.params[0], scan.loop.invars[0], count, block, self.plan.block)
            kernel.either(whole if is_short(scan.body) else "", body)
        kernel.frame.mask, kernel.frame.mask_is_block = "", False
