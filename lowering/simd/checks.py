"""Checks of varying indices and conditions: the first active lane that fails is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import checks
from lowering.llvm.types import REGISTER
from qdtrace.ir.program import Eqn, Literal

if TYPE_CHECKING:
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.types import DType


def bound(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `j = bound[size] i`."""
    (index,) = eqn.invars
    if f.is_uniform(eqn.outvars[0]):
        checks.bound(f, eqn)
        return
    d, (test, limit) = index.dtype, checks.comparison(eqn)
    kind, constant = f.vector.type(d), f.lanes.splat(REGISTER[d], str(limit))
    indices = f.vectors_of(index)
    bad = _in_active(f, [f.text.op(f"icmp {test} {kind} {x}, {constant}") for x in indices])
    with checks.failing(f, f.any(tuple(bad))):
        _report(f, eqn, indices, bad)
    f.env[eqn.outvars[0]] = f.value(index)


def check(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `check p`."""
    (condition,) = eqn.invars
    if isinstance(condition, Literal) or f.is_uniform(condition):
        checks.check(f, eqn)
        return
    true = f.lanes.splat("i1", "true")
    bad = _in_active(f, [f.text.op(f"xor {f.vector.bits} {x}, {true}") for x in f.vectors_of(condition)])
    with checks.failing(f, f.any(tuple(bad))):
        checks.report(f, eqn)


def _in_active(f: LaneFrame, bad: list[str]) -> list[str]:
    if f.mask.vectors is None:
        return bad
    bits = f.vector.bits
    pairs = zip(f.mask.vectors, bad, strict=True)
    return [f.text.op(f"select {bits} {m}, {bits} {b}, {bits} zeroinitializer") for m, b in pairs]


def _report(f: LaneFrame, eqn: Eqn, indices: list[str], bad: list[str]) -> None:
    """Emits a call that records the failure with the index of the first failing lane."""
    d, helpers = eqn.invars[0].dtype, f.text.module.helpers
    kind, widening = f.vector.type(d), checks.widening(eqn)
    symbol = f"{checks.FAIL}_{widening}_{REGISTER[d]}_{f.width}x{f.vectors}"
    checks.require_failure(f)
    if symbol not in helpers:
        helpers[symbol] = _fail_lanes(f, symbol, d, widening)
    lanes = [f", {kind} {x}, {f.vector.bits} {b}" for x, b in zip(indices, bad, strict=True)]
    f.text.do(f"call void @{symbol}(ptr %refs, i64 {f.facts.check_numbers[eqn] + 1}{''.join(lanes)})")


def _fail_lanes(f: LaneFrame, symbol: str, d: DType, widening: str) -> str:
    """Returns a function that finds and records the first failing lane of vectors of indices and masks."""
    text, bits, kind, vector = f.text.module.function(checks.ONCE), f"i{f.width}", REGISTER[d], f.vector.type(d)
    text.module.declare(f"llvm.cttz.{bits}", bits, f"{bits}, i1")
    found = "0"
    for v in reversed(range(f.vectors)):
        lanes = text.op(f"bitcast {f.vector.bits} %m{v} to {bits}")
        first = text.op(f"call {bits} @llvm.cttz.{bits}({bits} {lanes}, i1 false)")
        index = text.op(f"extractelement {vector} %x{v}, {bits} {text.op(f'and {bits} {first}, {f.width - 1}')}")
        found = text.op(f"select i1 {text.op(f'icmp ne {bits} {lanes}, 0')}, {kind} {index}, {kind} {found}")
    wide = found if kind == "i64" else text.op(f"{widening} {kind} {found} to i64")
    text.do(f"call void @{checks.FAIL}(ptr %refs, i64 %number, i64 {wide})")
    text.do("ret void")
    params = "".join(f", {vector} %x{v}, {f.vector.bits} %m{v}" for v in range(f.vectors))
    return text.render(f"define internal void @{symbol}(ptr %refs, i64 %number{params})")
