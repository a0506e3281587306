"""Pieces of long records: of 16, 8 or 4 neighbouring elements that each lane has, a lane far from the next one.

A block that reads at least half of a piece loads a vector a lane, which shuffles turn into a vector an element; one
that stores all of a piece turns them back. Gathers and scatters move an element of each lane. Where some lanes are
inactive, the pieces of the others are copied to memory of the function, or from there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.types import BYTES, MEMORY
from lowering.llvm.vectors import Lanes
from lowering.simd.accumulation.lanes import each_active
from lowering.simd.addresses import record_of
from lowering.simd.transfers import gather_lanes
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.descriptions import Address, Component
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Eqn

PIECE_USE = 0.5
"""Least fraction of a piece that a block reads for all of it to be loaded."""


def load_piece(f: LaneFrame, ref: GlobalMemory, address: Address, record: Component, v: int) -> str:
    """Loads one component of the pieces of vector v; with them the others, if the block reads many of them."""
    size, key = record.size, ("piece", ref.pointer, record.first, record.size, f.mask.vectors, v)
    least = size * PIECE_USE if record.is_whole else size
    if not ref.invariant or f.pieces[ref.pointer, record.first, size] < least:
        return gather_lanes(f, ref, address, f.mask, v)
    if not f.has_cached((*key, record.number)):
        rows = _Rows(f, ref, address, record, v)
        rows.copy(back=False)
        loaded = [f.text.op(f"load {rows.type}, ptr {place}, {rows.how}") for place in rows.places()]
        square = [_joined(f, rows.kind, loaded[r::size], size) for r in range(size)]
        for c, register in enumerate(transposed(f, f.lanes.of(rows.kind), square)):
            f.remember((*key, c), register)
    return f.cached((*key, record.number), str)


class _Rows:
    """The pieces of the lanes of a vector, one after another: in the array, or copies of those of the active lanes."""

    def __init__(self, f: LaneFrame, ref: GlobalMemory, address: Address, record: Component, v: int) -> None:
        assert address.stride is not None
        self.f, self.v, self.kind, self.size, self.stride = f, v, MEMORY[ref.type.dtype], record.size, address.stride
        self.type = Lanes(record.size).of(self.kind)
        self.how = f"align {BYTES[self.kind]}"
        self.array = ahead(f, self.kind, address.pointer, v * f.width * address.stride - record.number)
        self.whole = self.copies = ""
        if f.mask.vectors is None:
            self.how += ref.alias
            return
        text, bits = f.text, f"i{f.width}"
        number = text.op(f"bitcast {f.vector.bits} {f.mask.vectors[v]} to {bits}")
        self.whole = text.op(f"icmp eq {bits} {number}, -1")
        self.copies = text.cleared(self.type, f.width)

    def places(self) -> list[str]:
        """Returns the address of each lane's piece."""
        f, text = self.f, self.f.text
        if not self.whole:
            return [ahead(f, self.kind, self.array, lane * self.stride) for lane in range(f.width)]
        found = [text.op(f"select i1 {self.whole}, ptr {self.array}, ptr {self.copies}")]
        distance = text.op(f"select i1 {self.whole}, i64 {self.stride}, i64 {self.size}")
        while len(found) < f.width:
            found.append(text.op(f"getelementptr {self.kind}, ptr {found[-1]}, i64 {distance}"))
        return found

    def copy(self, *, back: bool) -> None:
        """Copies the pieces of the active lanes out of the array or `back`, unless all lanes are active."""
        if not self.whole:
            return
        text = self.f.text
        some, done = text.fresh_label("some"), text.fresh_label("moved")
        text.branch(self.whole, done, some)
        text.begin(some)
        with each_active(self.f, self.v) as lane:
            distances = [text.op(f"mul i64 {lane}, {n}") for n in (self.stride, self.size)]
            ends = [
                text.op(f"getelementptr {self.kind}, ptr {base}, i64 {at}")
                for base, at in zip((self.array, self.copies), distances, strict=True)
            ]
            source, target = reversed(ends) if back else ends
            text.do(
                f"store {self.type} {text.op(f'load {self.type}, ptr {source}, {self.how}')}, ptr {target}, {self.how}"
            )
        text.jump(done)
        text.begin(done)


def _joined(f: LaneFrame, kind: str, parts: list[str], size: int) -> str:
    """Returns parts of `size` elements each as one vector."""
    while len(parts) > 1:
        row, order = Lanes(size).of(kind), Lanes(2 * size).range("i32")
        both = [f"{row} {a}, {row} {b}" for a, b in zip(parts[::2], parts[1::2], strict=True)]
        parts = [f.text.op(f"shufflevector {pair}, {Lanes(2 * size).of('i32')} {order}") for pair in both]
        size *= 2
    return parts[0]


def transposed(f: LaneFrame, kind: str, square: list[str]) -> list[str]:
    """Returns the columns of squares of numbers, side by side in vectors.

    Each step swaps the halves of blocks. Two steps over numbers of 32 bits take neighbours from two vectors instead,
    and two over their blocks of four every other block, as processors do in one instruction.
    """
    width, short = f.width, kind.endswith((" float>", " i32>"))
    half = len(square) // 2
    while half:
        if short and half == 2:
            low = [c // 4 * 4 + c % 4 // 2 + c % 2 * width for c in range(width)]
            square = _fours(f, kind, square, 1, (low, [c + 2 for c in low]))
        elif short and half == 8 and width == 16:
            even = [c % 4 + c // 4 * 8 for c in range(16)]
            square = _fours(f, kind, square, 4, (even, [c + 4 for c in even]))
        else:
            lower = [c if not c & half else width + c - half for c in range(width)]
            upper = [c + half if not c & half else width + c for c in range(width)]
            made = list(square)
            for k in range(len(square)):
                if not k & half:
                    pair = square[k], square[k + half]
                    made[k], made[k + half] = (shuffled(f, kind, pair, order) for order in (lower, upper))
            square, half = made, half // 2
            continue
        half //= 4
    return square


def _fours(f: LaneFrame, kind: str, square: list[str], step: int, orders: tuple[list[int], list[int]]) -> list[str]:
    """Transposes squares of four vectors, `step` apart, of numbers or of blocks, by two orders, twice each."""
    made = list(square)
    first, second = ((0, 2), (1, 3)) if step == 1 else ((0, 1), (2, 3))
    for k in range(len(square)):
        if k // step % 4 == 0:
            rows = [square[k + n * step] for n in range(4)]
            halves = [[shuffled(f, kind, (rows[a], rows[b]), order) for a, b in (first, second)] for order in orders]
            found = [shuffled(f, kind, (a, b), order) for a, b in halves for order in orders]
            places = (0, 1, 2, 3) if step == 1 else (0, 2, 1, 3)
            for n, register in zip(places, found, strict=True):
                made[k + n * step] = register
    return made


def shuffled(f: LaneFrame, kind: str, pair: tuple[str, str], order: Sequence[int | str]) -> str:
    """Returns a vector of elements of two, by their numbers in both."""
    a, b = pair
    return f.text.op(f"shufflevector {kind} {a}, {kind} {b}, {f.lanes.of('i32')} {f.lanes.sequence('i32', order)}")


def count_pieces(f: LaneFrame, eqns: Sequence[Eqn]) -> Counter[object]:
    """Counts the components of each piece of a long record that a block reads."""
    found: set[tuple[str, Component]] = set()
    for eqn in () if f.is_scalar or f.split else eqns:
        if eqn.primitive is LOAD and (ref := reference(eqn)) in f.globals and f.globals[ref].invariant:
            component = record_of(f, ref_type(ref), indices_of(eqn))
            if component is not None:
                found.add((f.globals[ref].pointer, component))
    return Counter((pointer, c.first, c.size) for pointer, c in found)


def write_pieces(f: LaneFrame, ref: GlobalMemory, stores: dict[int, tuple[Address, list[str]]]) -> None:
    """Stores the pieces of all lanes, each as one vector."""
    size, (address, _) = len(stores), stores[0]
    assert address.record is not None
    for v in range(f.vectors):
        rows = _Rows(f, ref, address, address.record, v)
        kind = f.lanes.of(rows.kind)
        columns = transposed(f, kind, [stores[c][1][v] for c in range(size)])
        for lane, place in enumerate(rows.places()):
            part, at = columns[lane % size], lane // size * size
            if size < f.width:
                order = f"{Lanes(size).of('i32')} {Lanes(size).range('i32', at)}"
                part = f.text.op(f"shufflevector {kind} {part}, {kind} poison, {order}")
            f.text.do(f"store {rows.type} {part}, ptr {place}, {rows.how}")
        rows.copy(back=True)
