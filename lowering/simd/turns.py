"""Rows of the lanes of a vector, turned into a vector an element and back, by functions of the module.

A task turns the rows of many arrays. One function for all rows of a type and a length is a fraction of the code to
compile; where it is called once, it is inlined. Where some lanes are inactive, the rows of the others are copied to
memory of the function, or from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import BYTES
from lowering.llvm.vectors import Lanes
from lowering.simd.accumulation.lanes import each_bit
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.text import Text
    from lowering.simd.frame import LaneFrame


LONGEST = 16
"""Rows of so many elements are turned by calls, where a task has several. Calls for 8 and 4 elements took 1.16 of the
time of a task that does little else."""


@frozen(slots=True)
class Rows:
    """The rows of the lanes of a vector: neighbouring elements, a lane's as far from the next one's as all others."""

    kind: str
    """LLVM's type of an element."""
    size: int
    """Elements of a row: at most the lanes of a vector."""
    first: str
    """Pointer to the row of lane 0."""
    stride: int
    """Elements from a row to the next one."""
    mask: str
    """Register of the active lanes; empty: all are."""


def read_rows(f: LaneFrame, ref: GlobalMemory, rows: Rows) -> list[str]:
    """Returns a vector of each element of the rows."""
    results = _results(f, rows)
    found = f.text.op(f"call {_called(f, rows, results, [])}{ref.alias}")
    return [f.text.op(f"extractvalue {results} {found}, {c}") for c in range(rows.size)]


def write_rows(f: LaneFrame, ref: GlobalMemory, rows: Rows, columns: Sequence[str]) -> None:
    """Stores a vector of each element of the rows; those of inactive lanes stay."""
    f.text.do(f"call {_called(f, rows, 'void', columns)}{ref.alias}")


def _results(f: LaneFrame, rows: Rows) -> str:
    """Returns LLVM's type of a vector of each element."""
    name = f"%qd_{f.width}x{rows.size}x{rows.kind}"
    f.text.module.types.setdefault(name, f"{name} = type {{ {', '.join([f.lanes.of(rows.kind)] * rows.size)} }}")
    return name


def _called(f: LaneFrame, rows: Rows, results: str, columns: Sequence[str]) -> str:
    """Returns a call of the function that turns such rows."""
    text, module, width = f.text, f.text.module, f.width
    kind = f.lanes.of(rows.kind)
    name = f"qd_{'store' if columns else 'load'}_{'some' if rows.mask else 'all'}_{width}x{rows.size}x{rows.kind}"
    # of a system's calls, this one has most vectors in registers
    header = f"{'x86_regcallcc ' if f.target.triple.startswith('x86_64') else ''}{results} @{name}"
    given, bits = [f"ptr {rows.first}", f"i64 {rows.stride}"], f"i{width}"
    if rows.mask:
        given.append(f"{bits} {text.op(f'bitcast {f.vector.bits} {rows.mask} to {bits}')}")
    if name not in module.helpers:
        module.helpers[name] = _function(f, rows, header, back=bool(columns))
    module.sites[name] += 1
    if module.sites[name] == 2 and rows.size >= LONGEST:
        module.helpers[name] = module.helpers[name].replace(" alwaysinline ", " noinline ", 1)
    return f"{header}({', '.join(given + [f'{kind} {c}' for c in columns])})"


def _function(f: LaneFrame, rows: Rows, header: str, *, back: bool) -> str:
    """Returns the function that turns such rows, or `back`."""
    text, width, size, kind = f.text.module.function(f.text.attributes), f.width, rows.size, rows.kind
    row, vector, how = Lanes(size).of(kind), f.lanes.of(kind), f"align {BYTES[kind]}"
    parameters = ["ptr %rows", "i64 %stride", *([f"i{width} %mask"] if rows.mask else [])]
    places, distance, copies, some = ["%rows"], "%stride", "", ""
    if rows.mask:
        copies, some = text.slot(f"[{width} x {row}]"), text.op(f"icmp ne i{width} %mask, -1")
        if not back:
            with text.when(some):
                text.do(f"store [{width} x {row}] zeroinitializer, ptr {copies}")
                _copy(text, rows, width, copies, back=False)
        places = [text.op(f"select i1 {some}, ptr {copies}, ptr %rows")]
        distance = text.op(f"select i1 {some}, i64 {size}, i64 %stride")
    while len(places) < width:
        places.append(text.op(f"getelementptr {kind}, ptr {places[-1]}, i64 {distance}"))
    if back:
        columns = [f"%c{n}" for n in range(size)]
        parameters += [f"{vector} {c}" for c in columns]
        columns = transposed(text, vector, columns)
        for lane, place in enumerate(places):
            part, at = columns[lane % size], lane // size * size
            if size < width:
                part = shuffled(text, vector, (part, "poison"), range(at, at + size))
            text.do(f"store {row} {part}, ptr {place}, {how}")
        if rows.mask:
            with text.when(some):
                _copy(text, rows, width, copies, back=True)
        text.do("ret void")
    else:
        loaded = [text.op(f"load {row}, ptr {place}, {how}") for place in places]
        square = [_joined(text, kind, loaded[r::size], size) for r in range(size)]
        results, found = _results(f, rows), "poison"
        for c, register in enumerate(transposed(text, vector, square)):
            found = text.op(f"insertvalue {results} {found}, {vector} {register}, {c}")
        text.do(f"ret {results} {found}")
    text.attributes += f" alwaysinline memory(argmem: {'write' if back else 'read'})"
    return text.render(f"define internal {header}({', '.join(parameters)})")


def _copy(text: Text, rows: Rows, width: int, copies: str, *, back: bool) -> None:
    """Copies the rows of the active lanes out of the array or `back`."""
    row, how = Lanes(rows.size).of(rows.kind), f"align {BYTES[rows.kind]}"
    with each_bit(text, "%mask", width) as lane:
        ends = [
            text.op(f"getelementptr {rows.kind}, ptr {base}, i64 {text.op(f'mul i64 {lane}, {distance}')}")
            for base, distance in (("%rows", "%stride"), (copies, rows.size))
        ]
        source, target = reversed(ends) if back else ends
        text.do(f"store {row} {text.op(f'load {row}, ptr {source}, {how}')}, ptr {target}, {how}")


def _joined(text: Text, kind: str, parts: list[str], size: int) -> str:
    """Returns parts of `size` elements each as one vector."""
    while len(parts) > 1:
        row, order = Lanes(size).of(kind), Lanes(2 * size).range("i32")
        both = [f"{row} {a}, {row} {b}" for a, b in zip(parts[::2], parts[1::2], strict=True)]
        parts = [text.op(f"shufflevector {pair}, {Lanes(2 * size).of('i32')} {order}") for pair in both]
        size *= 2
    return parts[0]


def transposed(text: Text, kind: str, square: list[str]) -> list[str]:
    """Returns the columns of squares of numbers, side by side in vectors.

    Each step swaps the halves of blocks. Two steps over numbers of 32 bits take neighbours from two vectors instead,
    and two over their blocks of four every other block, as processors do in one instruction.
    """
    width, short = int(kind[1:].split()[0]), kind.endswith((" float>", " i32>"))
    half = len(square) // 2
    while half:
        if short and half == 2:
            low = [c // 4 * 4 + c % 4 // 2 + c % 2 * width for c in range(width)]
            square = _fours(text, kind, square, 1, (low, [c + 2 for c in low]))
        elif short and half == 8 and width == 16:
            even = [c % 4 + c // 4 * 8 for c in range(16)]
            square = _fours(text, kind, square, 4, (even, [c + 4 for c in even]))
        else:
            lower = [c if not c & half else width + c - half for c in range(width)]
            upper = [c + half if not c & half else width + c for c in range(width)]
            made = list(square)
            for k in range(len(square)):
                if not k & half:
                    pair = square[k], square[k + half]
                    made[k], made[k + half] = (shuffled(text, kind, pair, order) for order in (lower, upper))
            square, half = made, half // 2
            continue
        half //= 4
    return square


def _fours(text: Text, kind: str, square: list[str], step: int, orders: tuple[list[int], list[int]]) -> list[str]:
    """Transposes squares of four vectors, `step` apart, of numbers or of blocks, by two orders, twice each."""
    made = list(square)
    first, second = ((0, 2), (1, 3)) if step == 1 else ((0, 1), (2, 3))
    for k in range(len(square)):
        if k // step % 4 == 0:
            rows = [square[k + n * step] for n in range(4)]
            halves = [[shuffled(text, kind, (rows[a], rows[b]), order) for a, b in (first, second)] for order in orders]
            found = [shuffled(text, kind, (a, b), order) for a, b in halves for order in orders]
            places = (0, 1, 2, 3) if step == 1 else (0, 2, 1, 3)
            for n, register in zip(places, found, strict=True):
                made[k + n * step] = register
    return made


def shuffled(text: Text, kind: str, pair: tuple[str, str], order: Sequence[int | str]) -> str:
    """Returns a vector of elements of two, by their numbers in both."""
    (a, b), lanes = pair, Lanes(len(order))
    return text.op(f"shufflevector {kind} {a}, {kind} {b}, {lanes.of('i32')} {lanes.sequence('i32', order)}")
