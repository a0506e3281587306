"""Checks of varying indices and conditions: the first active lane that fails is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import checks
from lowering.llvm.types import REGISTER
from qdtrace.ir.primitives import BOUND
from qdtrace.ir.program import Eqn, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom
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
    bad = f.narrowed(f.mask, [f.text.op(f"icmp {test} {kind} {x}, {constant}") for x in indices])
    with checks.failing(f, f.any(bad)):
        _report(f, eqn, [index], bad)
    f.env[eqn.outvars[0]] = f.value(index)


def check(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `check p`."""
    condition, *told = eqn.invars
    if all(isinstance(a, Literal) or f.is_uniform(a) for a in eqn.invars):
        checks.check(f, eqn)
        return
    bad = f.narrowed(f.mask, f.vectors_of(condition), negate=True)
    with checks.failing(f, f.any(bad)):
        if told:
            _report(f, eqn, told, bad)
        else:
            checks.report(f, eqn)


def _report(f: LaneFrame, eqn: Eqn, told: Sequence[Atom], bad: Sequence[str]) -> None:
    """Emits a call that records the failure with what it tells of the first failing lane."""
    dtypes, helpers = [a.dtype for a in told], f.text.module.helpers
    is_bound = eqn.primitive is BOUND
    kinds = "_".join(f"{'u' * (not d.is_float and not d.is_signed)}{REGISTER[d]}" for d in dtypes)
    symbol = f"{checks.FAIL if is_bound else checks.TELL}_{kinds}_{f.width}x{f.vectors}"
    (checks.require_failure if is_bound else checks.require_told)(f)
    if symbol not in helpers:
        helpers[symbol] = _fail_lanes(f, symbol, dtypes, is_bound)
    given = [f"{f.vector.bits} {b}" for b in bad]
    given += [f"{f.vector.type(a.dtype)} {x}" for a in told for x in f.vectors_of(a)]
    f.text.do(f"call void @{symbol}(ptr %refs, i64 {f.facts.check_numbers[eqn] + 1}, {', '.join(given)})")


def _fail_lanes(f: LaneFrame, symbol: str, dtypes: Sequence[DType], is_bound: bool) -> str:
    """Returns a function that finds the first failing lane and records it, by vectors of masks and of values."""
    text, bits = f.text.module.function(checks.ONCE), f"i{f.width}"
    text.module.declare(f"llvm.cttz.{bits}", bits, f"{bits}, i1")
    found = ["0.0" if d.is_float else "false" if REGISTER[d] == "i1" else "0" for d in dtypes]
    for v in reversed(range(f.vectors)):
        lanes = text.op(f"bitcast {f.vector.bits} %m{v} to {bits}")
        first = text.op(f"call {bits} @llvm.cttz.{bits}({bits} {lanes}, i1 false)")
        lane, fails = text.op(f"and {bits} {first}, {f.width - 1}"), text.op(f"icmp ne {bits} {lanes}, 0")
        for k, d in enumerate(dtypes):
            kind, value = REGISTER[d], text.op(f"extractelement {f.vector.type(d)} %x{k}.{v}, {bits} {lane}")
            found[k] = text.op(f"select i1 {fails}, {kind} {value}, {kind} {found[k]}")
    words = checks.told_words(text, dtypes, found)
    if is_bound:
        text.do(f"call void @{checks.FAIL}(ptr %refs, i64 %number, {words.partition(',')[0]})")
    else:
        text.do(f"call void @{checks.TELL}(ptr %refs, i64 %number, {words})")
    text.do("ret void")
    params = [f"{f.vector.bits} %m{v}" for v in range(f.vectors)]
    params += [f"{f.vector.type(d)} %x{k}.{v}" for k, d in enumerate(dtypes) for v in range(f.vectors)]
    return text.render(f"define internal void @{symbol}(ptr %refs, i64 %number, {', '.join(params)})")
