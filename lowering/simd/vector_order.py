"""The order of the instructions of a block that is an iteration of a loop over several vectors.

The emitter writes an operation for all vectors side by side. LLVM keeps that order as long as registers suffice; where
they do not, it spills carried values of every vector. Written vector after vector, one vector's temporaries are dead
before those of the next.

LLVM's scheduler mixes them again, and its sinking pass moves what is dead after the loop into a block of its own. So
empty assembly reads what each vector carries on. A product that is added or subtracted becomes part of that (`fma`), as
LLVM does not do where two sums share a product.

Measured, time of quiet loops relative to test and body in two blocks: AVX2 0.82 to 1.0, AVX-512 0.8 to 1.04. A
Mandelbrot iteration by three vectors: 0.91; without the assembly 1.05, in LLVM's order 1.07. That the next vector's
values are made by assembly, too, gains with four vectors alone, and costs where a body has many constants (1.09).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simd.frame import LaneFrame

    Group = tuple[str, Sequence[str]]
    """A carried value: the type of its registers, and one of them a vector (one in all if it is uniform)."""

_MOST = 6
"""The most vectors that empty assembly holds in registers at once."""
_MADE = re.compile(r"  (%v\d+) = (.*)")
_USED = re.compile(r"%v\d+")
_PRODUCT = re.compile(r"fmul contract (<\d+ x (float|double)>) (splat \(.+?\)|[^,]+), (.+)")
_SUM = re.compile(r"f(add|sub) contract (<\d+ x (?:float|double)>) (%v\d+), (.+)")
_FRONT, _REST = -1, -2


def in_order(f: LaneFrame, lines: list[str], begin: Sequence[Group], end: Sequence[Group]) -> list[str]:
    """Returns the instructions of a block vector after vector, on processors for which that is measured.

    `begin` are the carried values at its start, `end` those at its end.
    """
    if not (f.has_numbers or f.target.has_masks) or f.vectors == 1 or not all(map(_MADE.fullmatch, lines)):
        return lines
    vectors = range(f.vectors)
    number = {r: v for _, group in begin if len(group) == f.vectors for v, r in enumerate(group)}
    parts: dict[int, list[str]] = {k: [] for k in (_FRONT, *vectors, _REST)}
    for line in _with_sums_of_products(f, lines):
        register, *used = _USED.findall(line)
        kinds = {number[u] for u in used if u in number} - {_FRONT}
        number[register] = kinds.pop() if len(kinds) == 1 else _REST if kinds else _FRONT
        parts[number[register]].append(line)
    read = {u for v in vectors for line in parts[v] for u in _USED.findall(line)}
    front: list[str] = []
    for line in reversed(parts.pop(_FRONT)):
        register, *used = _USED.findall(line)
        (front if register in read else parts[_REST]).insert(0, line)
        read.update(used if register in read else ())
    for v in vectors:
        parts[v] += _read([pair for pair in _vectors(f, end, v) if number.get(pair[1]) == v])
    return [*front, *(line for k in (*vectors, _REST) for line in parts[k])]


def _vectors(f: LaneFrame, groups: Sequence[Group], v: int) -> list[tuple[str, str]]:
    """Returns type and register of what vector v has of values that fit one register."""
    wide = f.width * 64 <= f.target.vector_bits
    types = {f.lanes.of(kind) for kind in ("i32", "float", *(("i64", "double") if wide else ()))}
    return [(type_, group[v]) for type_, group in groups if len(group) == f.vectors and type_ in types]


def _read(values: list[tuple[str, str]]) -> list[str]:
    """Returns empty assembly that reads values, behind which other vectors begin."""
    if not 0 < len(values) <= _MOST:
        return []
    operands = ", ".join(f"{type_} {register}" for type_, register in values)
    return [f'  call void asm sideeffect "", "{",".join(["v"] * len(values))}"({operands})']


def _with_sums_of_products(f: LaneFrame, lines: list[str]) -> list[str]:
    """Returns instructions with `fma` in place of sums whose first operand is a product, where that is allowed."""
    products: dict[str, tuple[str, ...]] = {}
    found: list[str] = []
    for line in lines:
        register, text = line.strip().split(" = ", 1)
        if (product := _PRODUCT.fullmatch(text)) is not None:
            products[register] = product.groups()
        total = _SUM.fullmatch(text)
        if total is None or (factors := products.get(total[3])) is None:
            found.append(line)
            continue
        type_, kind, a, b = factors
        other = total[4]
        if total[1] == "sub":
            other = f.text.name()
            found.append(f"  {other} = fneg {type_} {total[4]}")
        symbol = f"llvm.fma.{f.lanes.suffix(kind)}"
        f.text.module.declare(symbol, type_, ", ".join([type_] * 3))
        found.append(f"  {register} = call contract {type_} @{symbol}({type_} {a}, {type_} {b}, {type_} {other})")
    return found
