"""Checks of indices and of the user's conditions: one comparison and a branch that is not taken.

Where an active lane fails, its number goes into the record of the call and the function returns at once: the call ends
with an error, so nobody sees what is missing, and nothing behind the check is executed. The first lane to fail is
kept; which one that is of several, in several threads, is not determined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import Value
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Literal
from qdtrace.ir.walk import walk_task

if TYPE_CHECKING:
    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Eqn, Task

FAIL = "qd_fail"
_UNLIKELY = '!{!"branch_weights", i32 1, i32 1048575}'


def checks_of(task: Task) -> list[Eqn]:
    """The checks of a task; code names them by their position."""
    return [e for e in walk_task(task) if Effect.CHECK in e.primitive.effects]


def bound(f: Frame, eqn: Eqn) -> None:
    """`j = bound[size] i`: as unsigned numbers, negative indices are large ones."""
    (index,), out, size = eqn.invars, eqn.outvars[0], int(eqn.params["size"])
    d = index.dtype
    test, limit = ("slt", 0) if size >> (d.bits - 1) else ("uge", size)
    if isinstance(index, Literal) or f.is_uniform(index):
        scalar = f.scalar_of(index)
        bad = f.text.op(f"icmp {test} {REGISTER[d]} {scalar}, {limit}")
        _unless(f, eqn, scalar_bad=bad, value=Value(d, scalar=scalar))
    else:
        kind, constant = f.vector.type(d), f.lanes.splat(REGISTER[d], str(limit))
        vectors = [f.vector_of(index, v) for v in range(f.vectors)]
        bad = [f.text.op(f"icmp {test} {kind} {x}, {constant}") for x in vectors]
        _unless(f, eqn, bad=bad, value=Value(d, vectors=vectors))
    f.env[out] = f.value(index)


def check(f: Frame, eqn: Eqn) -> None:
    """`check p`."""
    (condition,) = eqn.invars
    if isinstance(condition, Literal) or f.is_uniform(condition):
        _unless(f, eqn, scalar_bad=f.text.op(f"xor i1 {f.scalar_of(condition)}, true"))
    else:
        true = f.lanes.splat("i1", "true")
        bad = [f.text.op(f"xor {f.vector.bits} {f.vector_of(condition, v)}, {true}") for v in range(f.vectors)]
        _unless(f, eqn, bad=bad)


def _unless(
    f: Frame, eqn: Eqn, *, bad: list[str] | None = None, scalar_bad: str = "", value: Value | None = None
) -> None:
    """Goes on unless an active lane is bad."""
    text, mask = f.text, f.mask.vectors
    if bad is None:
        condition = scalar_bad
        if mask is not None and not f.mask.nonempty:
            condition = text.op(f"and i1 {condition}, {f.any(mask)}")
    else:
        if mask is not None:
            bad = [
                text.op(f"select {f.vector.bits} {m}, {f.vector.bits} {b}, {f.vector.bits} zeroinitializer")
                for m, b in zip(mask, bad, strict=True)
            ]
        condition = f.any(tuple(bad))
    fail, fine = text.fresh_label("fail"), text.fresh_label("fine")
    text.branch(condition, fail, fine, f", !prof {_unlikely(f)}")
    text.begin(fail)
    _report(f, f.facts.check_numbers[eqn], bad, value)
    text.leave(f.leave)
    text.begin(fine)


def leave_if_failed(f: Frame) -> None:
    """Leaves the function where a check has failed: what it proves of indices does not hold then."""
    if not f.facts.check_numbers:
        return
    text = f.text
    slot = text.op(f"getelementptr ptr, ptr %refs, i64 {len(f.facts.refs) + 1}")
    failed = text.op(f"load i64, ptr {text.op(f'load ptr, ptr {slot}, align 8')}, align 8")
    fail, fine = text.fresh_label("fail"), text.fresh_label("fine")
    text.branch(text.op(f"icmp ne i64 {failed}, 0"), fail, fine, f", !prof {_unlikely(f)}")
    text.begin(fail)
    text.leave(f.leave)
    text.begin(fine)


def _unlikely(f: Frame) -> str:
    nodes = f.text.module.metadata
    return f"!{nodes.index(_UNLIKELY)}" if _UNLIKELY in nodes else f.text.module.node(_UNLIKELY)


def _report(f: Frame, number: int, bad: list[str] | None, value: Value | None) -> None:
    """Calls what keeps the failure, with the index of the first lane that fails."""
    helpers, count = f.text.module.helpers, len(f.facts.refs)
    helpers.setdefault(FAIL, _fail(count))
    start = f"ptr %refs, i64 {number}"
    if value is None or bad is None or value.vectors is None:
        index = "0"
        if value is not None and value.scalar is not None:
            index = f.scalar.cast("sext", REGISTER[value.dtype], value.scalar, "i64")
        f.text.do(f"call void @{FAIL}({start}, i64 {index})")
        return
    kind = f.vector.type(value.dtype)
    symbol = f"{FAIL}_{REGISTER[value.dtype]}_{f.width}x{f.vectors}"
    helpers.setdefault(symbol, _fail_lanes(f, symbol, REGISTER[value.dtype]))
    lanes = [f", {kind} {x}, {f.vector.bits} {b}" for x, b in zip(value.vectors, bad, strict=True)]
    f.text.do(f"call void @{symbol}({start}{''.join(lanes)})")


def _fail_lanes(f: Frame, symbol: str, kind: str) -> str:
    """A function that finds the first lane that fails, of some vectors of indices and masks."""
    bits, width = f"i{f.width}", f.width
    f.text.module.declare(f"llvm.cttz.{bits}", bits, f"{bits}, i1")
    params = "".join(f", {f.lanes.of(kind)} %x{v}, {f.vector.bits} %m{v}" for v in range(f.vectors))
    lines = [f"define internal void @{symbol}(ptr %refs, i64 %number{params}) cold noinline nounwind {{"]
    found = "0"
    for v in reversed(range(f.vectors)):
        lines += [
            f"  %b{v} = bitcast {f.vector.bits} %m{v} to {bits}",
            f"  %c{v} = call {bits} @llvm.cttz.{bits}({bits} %b{v}, i1 false)",
            f"  %l{v} = and {bits} %c{v}, {width - 1}",
            f"  %e{v} = extractelement {f.lanes.of(kind)} %x{v}, {bits} %l{v}",
            f"  %s{v} = icmp ne {bits} %b{v}, 0",
            f"  %f{v} = select i1 %s{v}, {kind} %e{v}, {kind} {found}",
        ]
        found = f"%f{v}"
    wide = found
    if kind != "i64":
        lines.append(f"  %wide = sext {kind} {found} to i64")
        wide = "%wide"
    lines += [f"  call void @{FAIL}(ptr %refs, i64 %number, i64 {wide})", "  ret void", "}"]
    return "\n".join(lines)


def _fail(references: int) -> str:
    """The function that keeps the first failure of a call: a number, counted from 1, and a value."""
    return f"""
define internal void @{FAIL}(ptr %refs, i64 %number, i64 %value) cold noinline nounwind {{
  %slot = getelementptr ptr, ptr %refs, i64 {references + 1}
  %record = load ptr, ptr %slot, align 8
  %name = add i64 %number, 1
  %pair = cmpxchg ptr %record, i64 0, i64 %name monotonic monotonic
  %first = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %first, label %keep, label %done
keep:
  %place = getelementptr i64, ptr %record, i64 1
  store i64 %value, ptr %place, align 8
  br label %done
done:
  ret void
}}"""
