"""Vectors side by side as one vector of all their lanes, and back; LLVM splits it into registers again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def joined(op: Callable[[str], str], scalar: str, lanes: int, vectors: Sequence[str]) -> str:
    """Emits the lanes of vectors, whose number is a power of two, as one vector; `op` appends an instruction."""
    found = list(vectors)
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [_shuffled(op, f"<{lanes} x {scalar}>", a, b, range(2 * lanes)) for a, b in pairs]
        lanes *= 2
    return found[0]


def part(op: Callable[[str], str], scalar: str, lanes: int, whole: str, vectors: int, k: int) -> str:
    """Emits vector `k` of the vectors that `whole` consists of."""
    if vectors == 1:
        return whole
    return _shuffled(op, f"<{lanes * vectors} x {scalar}>", whole, "poison", range(k * lanes, (k + 1) * lanes))


def _shuffled(op: Callable[[str], str], type_: str, a: str, b: str, order: range) -> str:
    places = ", ".join(f"i32 {n}" for n in order)
    return op(f"shufflevector {type_} {a}, {type_} {b}, <{len(order)} x i32> <{places}>")
