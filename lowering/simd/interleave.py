"""Arrays of small records: accesses whose lanes read or write one component of neighbouring records.

An access with a small stride moves whole records by contiguous vectors and shuffles, instead of one element per lane.
Stores wait until all components of the records are there; incomplete groups are scattered. Long records have `pieces`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import MEMORY
from lowering.simd.addresses import record_of
from lowering.simd.pieces import load_piece, write_pieces
from lowering.simd.records import Step, Touch, group_stores
from lowering.simd.transfers import load_vector, scatter_lanes, store_vectors
from lowering.simd.turns import shuffled
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, ATOMIC, LOAD, STORE
from qdtrace.ir.program import Eqn, ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.descriptions import Address, Mask
    from lowering.simd.frame import LaneFrame


def pick(f: LaneFrame, kind: str, sources: Sequence[str], wanted: Sequence[int]) -> str:
    """Returns a vector whose lane l is element `wanted[l]` of the concatenated sources.

    Each pair of sources is shuffled into the wanted lanes; then the pairs are blended.
    """
    width, type_ = f.width, f.lanes.of(kind)
    total = ""
    for first in range(0, len(sources), 2):
        low, high = first * width, min(first + 2, len(sources)) * width
        pair = sources[first], sources[min(first + 1, len(sources) - 1)]
        part = shuffled(f.text, type_, pair, [k - low if low <= k < high else "poison" for k in wanted])
        if total:
            part = shuffled(f.text, type_, (total, part), [n + width * (k >= low) for n, k in enumerate(wanted)])
        total = part
    return total


def apart(f: LaneFrame, kind: str, parts: list[str], number: int) -> str:
    """Returns component `number` of records that lie one after another in as many vectors as records have elements.

    Each step keeps every other element of neighbouring vectors, those of the even components or those of the odd ones,
    which are records of half the size. Components share steps.
    """

    def every_other(pair: tuple[str, str], odd: int) -> str:
        order = [2 * n + odd for n in range(f.width)]
        return f.cached(("apart", pair, odd), lambda: shuffled(f.text, f.lanes.of(kind), pair, order))

    while len(parts) % 2 == 0:
        parts = [every_other(pair, number % 2) for pair in zip(parts[::2], parts[1::2], strict=True)]
        number //= 2
    return pick(f, kind, parts, [number + len(parts) * n for n in range(f.width)]) if len(parts) > 1 else parts[0]


def together(f: LaneFrame, kind: str, columns: list[str]) -> list[str]:
    """Returns the vectors in which records lie one after another, given a vector of each component (`apart`)."""
    size, width = len(columns), f.width
    if size == 1:
        return columns
    if size % 2:
        places = (range(k * width, (k + 1) * width) for k in range(size))
        return [pick(f, kind, columns, [e % size * width + e // size for e in some]) for some in places]
    halves = zip(together(f, kind, columns[::2]), together(f, kind, columns[1::2]), strict=True)
    orders = [[n // 2 + n % 2 * width for n in range(first, first + width)] for first in (0, width)]
    return [shuffled(f.text, f.lanes.of(kind), pair, order) for pair in halves for order in orders]


def _masks(f: LaneFrame, mask: str, stride: int) -> list[str]:
    """Returns the mask of records as masks of their elements, vector by vector."""
    width = f.width

    def make(k: int) -> str:
        order = f.lanes.sequence("i32", [(k * width + n) // stride for n in range(width)])
        return f.text.op(f"shufflevector {f.vector.bits} {mask}, {f.vector.bits} poison, {f.lanes.of('i32')} {order}")

    return [f.cached(("records", mask, stride, k), lambda k=k: make(k)) for k in range(stride)]


def load_component(f: LaneFrame, ref: GlobalMemory, address: Address, mask: Mask, v: int) -> str:
    """Loads one component of the records of vector v, in its type in memory."""
    assert address.stride is not None
    assert address.record is not None
    if address.record.size != address.stride:
        assert mask is f.mask
        return load_piece(f, ref, address, address.record, v)
    stride, width, number = address.stride, f.width, address.record.number
    first = v * width * stride - number
    masks = [None] * stride if mask.vectors is None else _masks(f, mask.vectors[v], stride)

    def load(k: int) -> str:
        return load_vector(f, ref, address.pointer, first + k * width, masks[k])

    if ref.invariant:
        # the task never writes it, so the other components may use the same vectors
        key = ("record", ref.pointer, address.record.first, stride, mask.vectors, v)
        parts = [f.cached((*key, k), lambda k=k: load(k)) for k in range(stride)]
    else:
        parts = [load(k) for k in range(stride)]
    return apart(f, MEMORY[ref.type.dtype], parts, number)


def plan_stores(f: LaneFrame, eqns: Sequence[Eqn]) -> list[Step]:
    """Returns the actions on groups of stores at consecutive equations, and at their end."""
    if f.is_scalar or not any(e.primitive in (STORE, ACCUM) for e in eqns):
        return [Step()] * (len(eqns) + 1)
    return group_stores(_touch(f, eqn) for eqn in eqns)


def _touch(f: LaneFrame, eqn: Eqn) -> Touch | None:
    prim = eqn.primitive
    if eqn.primitive.values is None:
        return Touch(None) if eqn.blocks else None
    ref, indices = reference(eqn), indices_of(eqn)
    if ref not in f.globals:
        return None
    if prim is ACCUM and ref not in f.facts.exclusive_accums:
        return None if ref in f.facts.accumulated else Touch(ref)
    component = None if prim is ATOMIC else record_of(f, ref_type(ref), indices)
    return Touch(ref, component, stores=prim is not LOAD)


def settle_stores(f: LaneFrame) -> None:
    """Writes incomplete groups that must be in memory before the current equation."""
    for group in f.step.written:
        for address, raw in f.waiting.pop(group).values():
            scatter_lanes(f, f.globals[group.ref], address, raw)


def add_store(f: LaneFrame, ref: GlobalMemory, address: Address, raw: list[str]) -> None:
    """Adds the store of the current equation, to one component, to its group; `raw` has the type in memory."""
    group = f.step.joined
    assert group is not None
    assert address.record is not None
    stores = f.waiting.setdefault(group, {})
    stores[address.record.number] = (address, raw)
    if len(stores) == address.record.size:
        made = f.waiting.pop(group)
        (_write_records if address.record.size == address.stride else write_pieces)(f, ref, made)


def _write_records(f: LaneFrame, ref: GlobalMemory, stores: dict[int, tuple[Address, list[str]]]) -> None:
    number, (address, _) = next(iter(stores.items()))
    kind, stride, width = MEMORY[ref.type.dtype], len(stores), f.width
    parts: list[tuple[int, str, str | None]] = []
    for v in range(f.vectors):
        sources = [stores[c][1][v] for c in range(stride)]
        masks = _masks(f, f.mask.vectors[v], stride) if f.mask.vectors is not None else [None] * stride
        for k, vector in enumerate(together(f, kind, sources)):
            parts.append((v * width * stride - number + k * width, vector, masks[k]))
    store_vectors(f, ref, address.pointer, parts)
