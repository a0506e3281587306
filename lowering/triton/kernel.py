"""One kernel: its arguments, the head of the task, and blocks of iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.triton.control import distance
from lowering.triton.frame import Frame
from lowering.triton.rules import RULES
from lowering.triton.text import Text
from lowering.triton.types import constant, type_of
from qdtrace.analysis.cost import code_size
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.facts import TaskFacts
    from lowering.triton.text import Source
    from qdtrace.ir.program import Atom, Block, Var

_I32 = 1 << 31
_WIDEST = 16
"""The most elements of one load."""
_TWICE = 128
"""The most operations of a body that may be emitted twice."""


def is_short(body: Block) -> bool:
    """Returns whether a body may be emitted twice: without masks for whole blocks, with masks for the last one."""
    return code_size(body) <= _TWICE and not any(e.primitive.loops for e in walk_eqns(body))


class Kernel:
    """Emits one kernel of a task."""

    def __init__(self, module: Source, facts: TaskFacts, blocks: frozenset[Var], *, fast_math: bool) -> None:
        self.facts = facts
        self.text = Text(module)
        self.frame = Frame(self.text, facts, blocks, RULES, fast_math=fast_math)
        for name in ("start", "stop", "failure", "scratch", "BLOCK"):
            self.text.name(name)
        for ref in facts.refs:
            self.frame.env[ref] = self.text.name(ref.hint or "ref")

    def head(self) -> None:
        """Emits the head of the task; a failing check in it deactivates all lanes of all kernels."""
        self.frame.emit(self.facts.task.head)

    def close(self, name: str, doc: str) -> None:
        """Puts the kernel into the module."""
        refs = [self.frame.env[ref] for ref in self.facts.refs]
        self.text.close(name, [*refs, "start", "stop", "failure", "scratch", "BLOCK: tl.constexpr"], doc)

    def bound(self, atom: Atom) -> str:
        """Returns code of a bound of the range, as i64."""
        return str(int(atom.value)) if isinstance(atom, Literal) else f"{self.frame.env[atom]}.to(tl.int64)"

    def lanes(self, index: Var, start: Atom, count: int | str, tile: str, block: int) -> str:
        """Binds the index of the lanes of a tile and deactivates those beyond the end of the range.

        `count` is a number, or a variable of i64. Returns the condition that all lanes of the tile are in the range;
        empty if that would not make loads wider, or if lanes may be inactive for other reasons.
        """
        f, text = self.frame, self.text
        f.size = "BLOCK"
        first = int(start.value) if isinstance(start, Literal) else None
        narrow = isinstance(count, int) and first is not None and first + count + block < _I32
        tile = tile if narrow else f"{tile}.to(tl.int64)"
        lane = f"{tile} * BLOCK + tl.arange(0, BLOCK)"
        if narrow and not first:
            position = text.let(index.hint or "i", lane)
            value = position
        else:
            position = text.let("lane", lane)
            value = f"{position} + {first if first is not None else self.bound(start)}"
        convert = "" if narrow and index.dtype is DType.i32 else f".to({type_of(index.dtype)})"
        if value == position and not convert:
            f.env[index] = position
        else:
            f.bind(index, f"({value}){convert}" if convert else value)
        exact = isinstance(count, int) and count % block == 0
        active = "" if exact else f"{position} < {count}"
        if f.mask:
            active = f"{f.mask} & ({active})" if active else f"{f.mask} & tl.full((BLOCK,), 1, tl.int1)"
        elif not active and self.facts.check_numbers:
            active = "tl.full((BLOCK,), 1, tl.int1)"
        checked = bool(f.mask) or bool(self.facts.check_numbers)
        f.mask = text.let("live", active) if active else ""
        f.mask_is_block = bool(active)
        aligned = isinstance(count, int) and (count % _WIDEST == 0 or count < block)
        return "" if checked or aligned else f"({tile} + 1) * BLOCK <= {count}"

    def either(self, whole: str, body: Callable[[], None]) -> None:
        """Emits the body of a tile twice: without masks under the condition `whole`, else with them. Masks that may
        end anywhere would make each load as narrow as an element."""
        f = self.frame
        if not whole:
            body()
            return
        mask, touched = f.mask, set(f.touched)
        with self.text.block(f"if {whole}:"):
            f.mask, f.mask_is_block = "", False
            body()
        with self.text.block("else:"):
            f.mask, f.mask_is_block, f.touched = mask, True, touched
            body()

    def tiles(self, count: int | str, programs: int, block: int, body: Callable[[str], None]) -> None:
        """Emits the body for the tiles of this program: one, or every `programs`-th."""
        text = self.text
        if isinstance(count, int) and programs * block >= count:
            body("tl.program_id(0)")
            return
        tiles = -(-count // block) if isinstance(count, int) else text.let("tiles", f"({count} + BLOCK - 1) // BLOCK")
        mask = self.frame.mask, self.frame.mask_is_block
        tile = text.name("tile")
        with text.block(f"for {tile} in range(tl.program_id(0), {tiles}, {programs}):"):
            body(tile)
        self.frame.mask, self.frame.mask_is_block = mask

    def counted(self, start: Atom, stop: Atom) -> str:
        """Returns an i64 variable with the trip count of a range that only the device knows."""
        return self.text.let("count", distance(self.bound(start), self.bound(stop)))

    def slots(self, offset: int, dtype: DType) -> str:
        """Returns code of a pointer to values of a dtype in the scratch."""
        kind = "tl.int8" if dtype is DType.bool else type_of(dtype)
        base = f"(scratch + {offset})" if offset else "scratch"
        return f"{base}.to(tl.pointer_type({kind}))"

    def filled(self, value: Literal) -> str:
        """Returns code of a block filled with a constant."""
        text = constant(value)
        if text.endswith("* -1.0)"):
            return f"tl.full((BLOCK,), 0.0, {type_of(value.dtype)}) * -1.0"
        return f"tl.full((BLOCK,), {text.removeprefix('tl.full((), ').split(',')[0]}, {type_of(value.dtype)})"
