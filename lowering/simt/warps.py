"""`lane_max` of a warp: the maximum of its threads' values, a convergent bound for divergent loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import Value

if TYPE_CHECKING:
    from lowering.simt.frame import KernelFrame
    from qdtrace.ir.program import Eqn


def lane_max(f: KernelFrame, eqn: Eqn) -> None:
    """Emits `lane_max`: the maximum over the active threads of the warp."""
    operand, d = eqn.invars[0], eqn.invars[0].dtype
    value, o, kind = f.scalar_of(operand), f.scalar, REGISTER[operand.dtype]
    if not f.device.family.most:
        f.env[eqn.outvars[0]] = Value(d, scalar=value)
        return
    if d.bits < 64:
        wide = o.cast("sext" if d.is_signed else "zext", kind, value, "i32")
        f.env[eqn.outvars[0]] = Value(d, scalar=o.cast("trunc", "i32", _most(f, wide, signed=d.is_signed), kind))
        return
    high = o.cast("trunc", "i64", o.binary("lshr", "i64", value, "32"), "i32")
    first = _most(f, high, signed=d.is_signed)
    # only threads with the largest high half take part in the low one
    low = o.select(o.compare("icmp eq", "i32", high, first), "i32", o.cast("trunc", "i64", value, "i32"), "0")
    above = o.binary("shl", "i64", o.cast("zext", "i32", first, "i64"), "32")
    rest = o.cast("zext", "i32", _most(f, low, signed=False), "i64")
    f.env[eqn.outvars[0]] = Value(d, scalar=o.binary("or", "i64", above, rest))


def _most(f: KernelFrame, value: str, *, signed: bool) -> str:
    """Emits the maximum of a 32-bit value over the active threads of the warp."""
    family, module = f.device.family, f.text.module
    symbol = family.most.format("max" if signed else "umax")
    last = "0"
    if family.active:
        module.declare(family.active, "i32", "")
        last = f.text.op(f"call i32 @{family.active}()")
    module.declare(symbol, "i32", "i32, i32" if family.active else "i32, i32 immarg")
    return f.text.op(f"call i32 @{symbol}(i32 {value}, i32 {last})")
