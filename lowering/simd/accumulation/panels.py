"""The factors of a sum of outer products in memory, for `tiles`.

Each factor is written into a panel, `[index][lane]`. In the panel of the columns a lane's numbers are neighbours,
`[lane][column]`, so that a vector holds columns of one lane, and a number of the rows' panel multiplies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.borders import fetch
from lowering.llvm.types import BYTES, REGISTER
from lowering.simd.accumulation.lanes import each_active
from lowering.simd.turns import transposed
from lowering.tables import round_up
from qdtrace.analysis.index.trips import loop_values
from qdtrace.frozen import frozen
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from lowering.simd.accumulation.outer_products import Factor, OuterProduct
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn
    from qdtrace.ir.types import DType


@frozen(slots=True)
class Panels:
    """The factors in memory: `[row][lane]` and `[lane][column]`, of all vectors side by side."""

    rows: str
    columns: str
    pitch: int
    """Columns of a lane, in whole vectors."""
    dtype: DType


@frozen(slots=True)
class Lanes:
    """The active lanes, numbered through all vectors."""

    numbers: str
    """Memory of their numbers; empty if all lanes are active."""
    count: str

    def numbered(self, f: LaneFrame, k: str) -> str:
        """Returns the number of the k-th active lane."""
        if not self.numbers:
            return k
        return f.text.op(f"load i64, ptr {f.text.op(f'getelementptr i64, ptr {self.numbers}, i64 {k}')}")


def emit_panels(f: LaneFrame, found: OuterProduct) -> Panels:
    """Makes the factors of an outer product, by its loops, and returns them in memory."""
    d, (rows, columns) = found.updates[0].invars[1].dtype, (found.rows, found.columns)
    pitch = round_up(columns.count, f.width)
    panels = Panels(_memory(f, d, rows.count), _memory(f, d, pitch), pitch, d)
    turned = _memory(f, d, pitch)
    for factor in found.factors:
        panel = panels.rows if factor is rows else turned
        if factor.loop is None:
            _list(f, factor, panel)
        else:
            _run(f, factor, factor.loop, panel)
    _turn(f, turned, panels)
    return panels


def _memory(f: LaneFrame, d: DType, numbers: int) -> str:
    """Allocates a panel of so many numbers for each lane."""
    total = numbers * f.vectors * f.width
    return f.text.array(f"[{total} x {REGISTER[d]}]", total * BYTES[REGISTER[d]])


def _run(f: LaneFrame, factor: Factor, loop: Eqn, panel: str) -> None:
    """Runs a loop, which stores its factor."""
    text, index, values = f.text, loop.index, loop_values(*loop.bounds)
    assert values is not None
    with text.counted("0", str(values.count), 1) as k, f.region():
        number = text.op(f"{'add' if values.step > 0 else 'sub'} i64 {values.start}, {k}")
        f.bind(index, [f.scalar.cast("trunc", "i64", number, REGISTER[index.dtype])])
        f.emit(factor.eqns)
        _store(f, factor.atoms[0], panel, text.op(f"sub i64 {number}, {factor.low}"))


def _list(f: LaneFrame, factor: Factor, panel: str) -> None:
    """Stores numbers that are known."""
    for k, atom in enumerate(factor.atoms):
        if isinstance(atom, Literal) or atom in f.env:
            _store(f, atom, panel, str(k))
        else:  # it crossed from another part of the function: its registers are live only here
            fetch(f, atom)
            _store(f, atom, panel, str(k))
            del f.env[atom]


def _store(f: LaneFrame, atom: Atom, panel: str, number: str) -> None:
    """Stores a number of each lane in a panel."""
    kind = f.vector.type(atom.dtype)
    place = f.text.op(f"mul i64 {number}, {f.vectors}")
    first = f.text.op(f"getelementptr {kind}, ptr {panel}, i64 {place}")
    for v, register in enumerate(f.vectors_of(atom)):
        f.text.do(f"store {kind} {register}, ptr {_vector(f, kind, first, v)}")


def _vector(f: LaneFrame, kind: str, pointer: str, v: int) -> str:
    return f.text.op(f"getelementptr {kind}, ptr {pointer}, i64 {v}") if v else pointer


def _turn(f: LaneFrame, turned: str, panels: Panels) -> None:
    """Stores a panel `[column][lane]` as `[lane][column]`, squares of a vector's numbers at a time."""
    text, width, kind = f.text, f.width, f.vector.type(panels.dtype)
    number = REGISTER[panels.dtype]
    with text.counted("0", str(panels.pitch), width) as k, f.region():
        first = text.op(f"getelementptr {kind}, ptr {turned}, i64 {text.op(f'mul i64 {k}, {f.vectors}')}")
        into = text.op(f"getelementptr {number}, ptr {panels.columns}, i64 {k}")
        for v in range(f.vectors):
            square = [text.op(f"load {kind}, ptr {_vector(f, kind, first, c * f.vectors + v)}") for c in range(width)]
            for lane, row in enumerate(transposed(text, kind, square)):
                place = ahead(f, number, into, (v * width + lane) * panels.pitch)
                text.do(f"store {kind} {row}, ptr {place}, align {BYTES[number]}")


def active_lanes(f: LaneFrame) -> Lanes:
    """Stores the numbers of the active lanes."""
    text, total = f.text, f.width * f.vectors
    if f.mask.vectors is None:
        return Lanes("", str(total))
    numbers = text.slot(f"[{total} x i64]")
    count = text.slot("i64", 8)
    text.do(f"store i64 0, ptr {count}")
    for v in range(f.vectors):
        with each_active(f, v) as lane:
            place = text.op(f"load i64, ptr {count}")
            number = text.op(f"add i64 {lane}, {v * f.width}")
            text.do(f"store i64 {number}, ptr {text.op(f'getelementptr i64, ptr {numbers}, i64 {place}')}")
            text.do(f"store i64 {text.op(f'add i64 {place}, 1')}, ptr {count}")
    return Lanes(numbers, text.op(f"load i64, ptr {count}"))
