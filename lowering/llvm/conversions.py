"""Conversions between dtypes, and f16 and bf16, which live in registers as f32 that are exact in the small type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.saturation import to_integer
from lowering.llvm.types import REGISTER, SMALL_FLOATS, compute_dtype
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.ops import Ops


def round_to(o: Ops, dtype: DType, value: str) -> str:
    """Rounds an f32 to the nearest f16 or bf16 (ties to even) and keeps it as f32; other dtypes are unchanged."""
    if dtype not in SMALL_FLOATS:
        return value
    return from_bits(o, dtype, to_bits(o, dtype, value)) if dtype is DType.f16 else _round_bf16(o, value)


def _numbers(o: Ops) -> Callable[[int], str]:
    return lambda value: o.number("i32", value)


def _round_bf16(o: Ops, value: str) -> str:
    """Adds half a unit of the kept bits, then drops the rest; a NaN keeps its sign and becomes quiet."""
    i32, n = o.vector("i32"), _numbers(o)
    bits = o.cast("bitcast", "float", value, "i32")
    odd = o.binary("and", i32, o.binary("lshr", i32, bits, n(16)), n(1))
    rounded = o.binary("add", i32, o.binary("add", i32, bits, n(0x7FFF)), odd)
    quiet = o.binary("or", i32, bits, n(0x400000))
    nan = o.compare("fcmp uno", o.vector("float"), value, value)
    kept = o.binary("and", i32, o.select(nan, i32, quiet, rounded), n(-0x10000))
    return o.cast("bitcast", "i32", kept, "float")


def to_bits(o: Ops, dtype: DType, value: str) -> str:
    """Returns the 16 bits of an f32, as i16: bf16 must be rounded already, f16 is rounded here."""
    if dtype is DType.bf16:
        bits = o.cast("bitcast", "float", value, "i32")
        return o.cast("trunc", "i32", o.binary("lshr", o.vector("i32"), bits, o.number("i32", 16)), "i16")
    if o.target.has_half:
        if o.target.part_half:  # `arithmetic.fence` would do, but fails for uniform values (LLVM 22)
            value = o.text.op(f"call float @llvm.canonicalize.f32(float {value})")
        return o.cast("bitcast", "half", o.cast("fptrunc", "float", value, "half"), "i16")
    return _half_bits(o, value)


def from_bits(o: Ops, dtype: DType, bits: str) -> str:
    """Returns the f32 of 16 bits (i16)."""
    if dtype is DType.bf16:
        wide = o.binary("shl", o.vector("i32"), o.cast("zext", "i16", bits, "i32"), o.number("i32", 16))
        return o.cast("bitcast", "i32", wide, "float")
    if o.target.has_half:
        return o.cast("fpext", "half", o.cast("bitcast", "i16", bits, "half"), "float")
    return _from_half_bits(o, bits)


def _half_bits(o: Ops, value: str) -> str:
    """Converts f32 to f16 bits in software: integers for normal numbers, a rounding addition for subnormal ones."""
    i32, f32, n = o.vector("i32"), o.vector("float"), _numbers(o)
    bits = o.cast("bitcast", "float", value, "i32")
    sign = o.binary("and", i32, bits, n(-0x80000000))
    size = o.binary("xor", i32, bits, sign)
    # 0.5 puts the last bit of an f16 below 2**-14 at the last bit of the sum
    half = o.constant(0.5, DType.f32)
    small = o.cast("bitcast", "float", o.binary("fadd", f32, o.cast("bitcast", "i32", size, "float"), half), "i32")
    small = o.binary("sub", i32, small, n(0x3F000000))
    odd = o.binary("and", i32, o.binary("lshr", i32, size, n(13)), n(1))
    normal = o.binary("add", i32, o.binary("add", i32, size, n(0xFFF - (112 << 23))), odd)
    normal = o.binary("lshr", i32, normal, n(13))
    result = o.select(o.compare("icmp ult", i32, size, n(113 << 23)), i32, small, normal)
    result = o.select(o.compare("icmp ugt", i32, size, n(0x477FEFFF)), i32, n(0x7C00), result)
    result = o.select(o.compare("icmp ugt", i32, size, n(0x7F800000)), i32, n(0x7E00), result)
    result = o.binary("or", i32, result, o.binary("lshr", i32, sign, n(16)))
    return o.cast("trunc", "i32", result, "i16")


def _from_half_bits(o: Ops, bits: str) -> str:
    """Converts f16 bits to f32 in software, without a subnormal f32, which XLA's threads would flush to zero."""
    i32, n = o.vector("i32"), _numbers(o)
    wide = o.cast("zext", "i16", bits, "i32")
    sign = o.binary("shl", i32, o.binary("and", i32, wide, n(0x8000)), n(16))
    size = o.binary("and", i32, wide, n(0x7FFF))
    place = o.binary("shl", i32, size, n(13))
    normal = o.binary("add", i32, place, n(112 << 23))
    small = o.binary("fmul", o.vector("float"), o.cast("sitofp", "i32", size, "float"), o.constant(2.0**-24, DType.f32))
    result = o.select(
        o.compare("icmp ult", i32, size, n(1 << 10)), i32, o.cast("bitcast", "float", small, "i32"), normal
    )
    special = o.binary("or", i32, place, n(0x7F800000))
    result = o.select(o.compare("icmp uge", i32, size, n(0x7C00)), i32, special, result)
    return o.cast("bitcast", "i32", o.binary("or", i32, result, sign), "float")


def _narrow_f64(o: Ops, value: str) -> str:
    """Converts f64 to f32, rounding to odd, so that a second rounding to f16 or bf16 is correct."""
    f64, i32, i64 = o.vector("double"), o.vector("i32"), o.vector("i64")
    near = o.cast("fptrunc", "double", value, "float")
    back = o.cast("fpext", "float", near, "double")
    bits = o.cast("bitcast", "float", near, "i32")
    size = 0x7FFFFFFFFFFFFFFF
    a = o.binary("and", i64, o.cast("bitcast", "double", value, "i64"), o.number("i64", size))
    b = o.binary("and", i64, o.cast("bitcast", "double", back, "i64"), o.number("i64", size))
    lower = o.binary("add", i32, bits, o.number("i32", -1))
    toward_zero = o.select(o.compare("icmp ugt", i64, b, a), i32, lower, bits)
    odd = o.binary("or", i32, toward_zero, o.number("i32", 1))
    inexact = o.compare("fcmp one", f64, value, back)
    return o.cast("bitcast", "i32", o.select(inexact, i32, odd, bits), "float")


def convert(o: Ops, source: DType, value: str, target: DType) -> str:
    """Emits `convert`: truncates and saturates to integers (NaN becomes 0), rounds to nearest even to floats."""
    if source is target:
        return value
    a, b = REGISTER[source], REGISTER[target]
    if target is DType.bool:
        zero = o.constant(0, source)
        return o.compare("fcmp une" if source.is_float else "icmp ne", o.type(source), value, zero)
    if source.is_float:
        if target.is_integer:
            return to_integer(o, source, value, target)
        if source is DType.f64 and target in SMALL_FLOATS:
            value, source, a = _narrow_f64(o, value), DType.f32, "float"
        opcode = "fpext" if b == "double" else "fptrunc"
        return round_to(o, target, o.cast(opcode, a, value, b))
    if target.is_float:
        signed = source.is_signed
        return round_to(o, target, o.cast("sitofp" if signed else "uitofp", a, value, REGISTER[compute_dtype(target)]))
    if source.bits < target.bits:
        return o.cast("sext" if source.is_signed else "zext", a, value, b)
    return o.cast("trunc", a, value, b)


def bitcast(o: Ops, source: DType, value: str, target: DType) -> str:
    """Returns the same bits as another dtype of the same width."""
    if source in SMALL_FLOATS:
        value, a = to_bits(o, source, value), "i16"
    else:
        a = REGISTER[source]
    if target in SMALL_FLOATS:
        return from_bits(o, target, value)
    return o.cast("bitcast", a, value, REGISTER[target])
