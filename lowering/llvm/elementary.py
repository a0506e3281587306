"""Calls of the vector maths library: elementary functions by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.conversions import round_to
from lowering.llvm.maths.library import APART, PLACES, function_for
from lowering.llvm.maths.side_by_side import joined, part
from lowering.llvm.types import REGISTER, compute_dtype
from lowering.llvm.vectors import Lanes

if TYPE_CHECKING:
    from lowering.llvm.ops import Ops
    from qdtrace.ir.types import DType


def call(o: Ops, name: str, dtype: DType, rows: list[list[str]]) -> list[str]:
    """Emits an elementary function of each row of operands; f16 and bf16 are computed as f32 and rounded.

    One call takes 4, 2 or 1 of the vectors side by side: their operations then stand next to each other, and one
    branch to a slow path serves all. Time relative to that of a call for each of four vectors with AVX2: f32 sin 0.8,
    tan 0.82, pow 0.86, log 0.92, exp 0.98; f64 cos 0.82, tan 0.75, pow 0.7, exp 0.95.
    """
    compute = compute_dtype(dtype)
    found: list[str] = []
    while rows:
        vectors = 1 if o.lanes.width == 1 or (name, compute) in APART else 1 << len(rows).bit_length() - 1
        found += _call(o, name, compute, rows[:vectors])
        rows = rows[vectors:]
    return [round_to(o, dtype, register) for register in found]


def _call(o: Ops, name: str, dtype: DType, rows: list[list[str]]) -> list[str]:
    """Emits one call for some vectors."""
    kind, width, vectors = REGISTER[dtype], o.lanes.width, len(rows)
    function = function_for(name, dtype, width, o.text.module.form, vectors)
    type_ = Lanes(width * vectors).of(kind)
    operands = ", ".join(f"{type_} {joined(o.op, kind, width, values)}" for values in zip(*rows, strict=True))
    call = f"call {function.several or type_} @{function.symbol}({operands})"
    label, made = o.text.pairs.get(call, ("", ""))
    if label != o.text.label:
        o.text.module.library[function.symbol] = function
        o.text.module.sites[function.symbol] += vectors
        made = o.op(call)
    if function.several:
        o.text.pairs[call] = o.text.label, made
        made = o.op(f"extractvalue {function.several} {made}, {PLACES[name]}")
    return [part(o.op, kind, width, made, vectors, k) for k in range(vectors)]
