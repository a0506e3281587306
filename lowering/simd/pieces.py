"""Pieces of long records: of 16, 8 or 4 neighbouring elements that each lane has, a lane far from the next one.

A block that reads at least half of a piece loads a vector a lane, which shuffles turn into a vector an element; one
that stores all of a piece turns them back. Gathers and scatters move an element of each lane. Where some lanes are
inactive, the pieces of the others are copied to memory of the function, or from there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.types import MEMORY
from lowering.simd.addresses import record_of
from lowering.simd.transfers import gather_lanes
from lowering.simd.turns import Rows, read_rows, write_rows
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
        for c, register in enumerate(read_rows(f, ref, _rows(f, ref, address, record, v))):
            f.remember((*key, c), register)
    return f.cached((*key, record.number), str)


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
    address, _ = stores[0]
    assert address.record is not None
    for v in range(f.vectors):
        columns = [stores[c][1][v] for c in range(len(stores))]
        write_rows(f, ref, _rows(f, ref, address, address.record, v), columns)


def _rows(f: LaneFrame, ref: GlobalMemory, address: Address, record: Component, v: int) -> Rows:
    """Returns the places of the pieces of a vector's lanes."""
    assert address.stride is not None
    kind = MEMORY[ref.type.dtype]
    first = ahead(f, kind, address.pointer, v * f.width * address.stride - record.number)
    return Rows(kind, record.size, first, address.stride, "" if f.mask.vectors is None else f.mask.vectors[v])
