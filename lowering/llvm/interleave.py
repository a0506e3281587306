"""Arrays of small records: lanes that read or write one component each of neighbouring records.

Access with a small stride moves whole records by contiguous vectors and shuffles, instead of an element a lane.
Stores wait until all components of the records are there; what stays incomplete is scattered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowering.llvm.addresses import Place, ahead
from lowering.llvm.transfers import load_vector, scatter_lanes, store_vector
from lowering.llvm.types import MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.addresses import Global
    from lowering.llvm.frame import Frame
    from lowering.llvm.vectors import Mask


def pick(f: Frame, kind: str, sources: Sequence[str], wanted: Sequence[int]) -> str:
    """One vector: lane l is element `wanted[l]` of the concatenated sources.

    Pairs of sources give what they have at its place; then the pairs are blended.
    """
    width, type_ = f.width, f.lanes.of(kind)

    def shuffle(a: str, b: str, lanes: Sequence[int | None]) -> str:
        order = f.lanes.sequence("i32", ["poison" if k is None else k for k in lanes])
        return f.text.op(f"shufflevector {type_} {a}, {type_} {b}, {f.lanes.of('i32')} {order}")

    total = ""
    for first in range(0, len(sources), 2):
        low, high = first * width, min(first + 2, len(sources)) * width
        pair = sources[first], sources[min(first + 1, len(sources) - 1)]
        part = shuffle(*pair, [k - low if low <= k < high else None for k in wanted])
        total = shuffle(total, part, [n + width * (k >= low) for n, k in enumerate(wanted)]) if total else part
    return total


def _masks(f: Frame, mask: str, stride: int) -> list[str]:
    """The mask of records as masks of their elements, vector by vector."""
    width = f.width

    def make(k: int) -> str:
        order = f.lanes.sequence("i32", [(k * width + n) // stride for n in range(width)])
        return f.text.op(f"shufflevector {f.vector.bits} {mask}, {f.vector.bits} poison, {f.lanes.of('i32')} {order}")

    return [f.cached(("records", mask, stride, k), lambda k=k: make(k)) for k in range(stride)]


def load_component(f: Frame, ref: Global, place: Place, mask: Mask, v: int) -> str:
    """One component of the records of vector v, as it is in memory."""
    assert place.stride is not None
    assert place.component is not None
    stride, width = place.stride, f.width
    first = v * width * stride - place.component
    masks = [None] * stride if mask.vectors is None else _masks(f, mask.vectors[v], stride)

    def load(k: int) -> str:
        return load_vector(f, ref, place.pointer, first + k * width, masks[k])

    if ref.invariant:
        # nobody writes it, so the other components may use the same vectors
        key = ("record", ref.pointer, place.record, mask.vectors, v)
        parts = [f.cached((*key, k), lambda k=k: load(k)) for k in range(stride)]
    else:
        parts = [load(k) for k in range(stride)]
    return pick(f, MEMORY[ref.type.dtype], parts, [place.component + stride * n for n in range(width)])


@dataclass
class _Record:
    """Stores to records of which some components are known."""

    ref: Global
    place: Place
    values: dict[int, list[str]] = field(default_factory=dict)


@dataclass
class PendingStores:
    """Stores of the current block that wait for the other components of their records."""

    records: dict[tuple[str, object], _Record] = field(default_factory=dict)

    def settle(self, f: Frame, ref: Global | None, place: Place | None = None) -> None:
        """Writes what waits for a buffer (None: for all), unless the access is to another component of the records."""
        for key in list(self.records):
            record = self.records[key]
            if ref is not None and record.ref is not ref:
                continue
            if place is not None and place.record == record.place.record and place.component not in record.values:
                continue
            del self.records[key]
            self._write(f, record)

    def add(self, f: Frame, ref: Global, place: Place, raw: list[str]) -> None:
        """A store of one component; `raw` as in memory."""
        assert place.component is not None
        key = (ref.pointer, place.record)
        record = self.records.setdefault(key, _Record(ref, place))
        record.values[place.component] = raw
        if len(record.values) == place.stride:
            del self.records[key]
            self._write(f, record)

    def _write(self, f: Frame, record: _Record) -> None:
        ref, place = record.ref, record.place
        assert place.stride is not None
        assert place.component is not None
        kind, stride, width = MEMORY[ref.type.dtype], place.stride, f.width
        if len(record.values) < stride:
            for component, raw in record.values.items():
                pointer = ahead(f, kind, place.pointer, component - place.component)
                scatter_lanes(f, ref, Place(pointer, stride), raw)
            return
        for v in range(f.vectors):
            sources = [record.values[c][v] for c in range(stride)]
            masks = _masks(f, f.mask.vectors[v], stride) if f.mask.vectors is not None else [None] * stride
            for k in range(stride):
                wanted = [e % stride * width + e // stride for e in range(k * width, (k + 1) * width)]
                shift = v * width * stride - place.component + k * width
                store_vector(f, ref, place.pointer, shift, pick(f, kind, sources, wanted), masks[k])
