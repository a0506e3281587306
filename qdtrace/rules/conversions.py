"""Chains of `convert` and `bitcast`. All rules are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.types import DType
from qdtrace.rules.match import bounds_of
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom
    from qdtrace.rules.emitter import Emitter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()
_EXACT_INTEGERS = {DType.f16: 11, DType.bf16: 8, DType.f32: 24, DType.f64: 53}
"""A float holds every integer up to this many bits."""
_WIDENED = {
    DType.f16: (DType.f32, DType.f64), DType.bf16: (DType.f32, DType.f64), DType.f32: (DType.f64,), DType.f64: ()
}  # fmt: skip


def keeps_value(source: DType, target: DType) -> bool:
    """Returns whether `convert` from source to target keeps every value."""
    if source is target:
        return True
    if source.is_float:
        return target in _WIDENED[source]
    low, high = (0, 1) if source is DType.bool else bounds_of(source)
    if target is DType.bool:
        return False
    if target.is_float:
        return max(-low, high + 1) <= 1 << _EXACT_INTEGERS[target]
    return bounds_of(target)[0] <= low and high <= bounds_of(target)[1]


@TABLE.rule("convert bitcast")
def convert_same(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """convert[dtype=T](x: T) -> x, and so for bitcast"""
    return ops[0] if ops[0].dtype is params["dtype"] else None


@TABLE.rule("convert")
def convert_convert(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """convert[T](convert[M](x: S)) -> convert[T](x), where M holds every value of S"""
    inner = w.defined_by(ops[0], "convert")
    if inner is None:
        return None
    source, middle, target = inner[0].dtype, ops[0].dtype, params["dtype"]
    if not keeps_value(source, middle):
        return None
    # A float saturates to an integer where an integer wraps, so the kind may not change on the way to a narrower one.
    if middle.is_float and not source.is_float and target.is_integer and not keeps_value(source, target):
        return None
    # A wide integer goes to f16 or bf16 through f32, which rounds once more than through f64.
    if target in (DType.f16, DType.bf16) and not source.is_float and not keeps_value(source, DType.f32):
        return None
    return w.op("convert", inner[0], dtype=target)


@TABLE.rule("convert", on="integer")
def convert_wrapped(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """convert[T](convert[M](x: S)) -> convert[T](x) for integers, M as wide as T or wider (wrapping nests)"""
    inner = w.defined_by(ops[0], "convert")
    if inner is None:
        return None
    source, middle, target = inner[0].dtype, ops[0].dtype, params["dtype"]
    if not (source.is_integer and target.is_integer and middle.bits >= target.bits):
        return None
    return w.op("convert", inner[0], dtype=target)


@TABLE.rule("bitcast")
def bitcast_bitcast(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """bitcast[T](bitcast[M](x)) -> bitcast[T](x)"""
    inner = w.defined_by(ops[0], "bitcast")
    return None if inner is None else w.op("bitcast", inner[0], dtype=params["dtype"])
