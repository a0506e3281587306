"""Emission of `if`, `for` and checks.

A uniform branch stays a branch. Both sides of a divergent one are computed, each with its own lanes active, and the
results are selected. A loop has the same bounds in all lanes. A check that fails reports its number and deactivates
the lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.tables import FAILURE_BITS
from lowering.triton.types import type_of
from qdtrace.ir.faults import told_in_a_word
from qdtrace.ir.primitives import BOUND, CHECK
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.triton.frame import Frame
    from qdtrace.ir.program import Atom, Block, Eqn, Var


def emit_if(f: Frame, eqn: Eqn) -> None:
    """Emits `if`: a branch on a scalar condition, or both sides under masks."""
    if f.is_block(eqn.invars[0]):
        _both_sides(f, eqn)
        return
    names = [f.text.name(out.hint or "v") for out in eqn.outvars]
    _with_mask(f, eqn)
    condition = f.typed(eqn.invars[0])
    for header, block in zip((f"if {condition}:", "else:"), eqn.blocks, strict=True):
        with f.text.block(header):
            f.emit(block.eqns)
            for name, out, result in zip(names, eqn.outvars, block.results, strict=True):
                f.text.line(f"{name} = {f.spread(result, block=f.is_block(out))}")
    f.env.update(zip(eqn.outvars, names, strict=True))


def _both_sides(f: Frame, eqn: Eqn) -> None:
    condition = f.typed(eqn.invars[0])
    left: list[str] = []
    for holds, block in zip((condition, f"~{condition}"), eqn.blocks, strict=True):
        if block.eqns:
            with f.only(holds):
                f.emit(block.eqns)
                left.append(f.mask)
        else:
            left.append(f"({f.mask} & {holds})" if f.mask else f"({holds})")
    if any(_checks(block) for block in eqn.blocks):
        f.text.line(f"{f.mask} = {' | '.join(left)}")
    for out, then, other in zip(eqn.outvars, *(b.results for b in eqn.blocks), strict=True):
        f.bind(out, f"tl.where({condition}, {f.operand(then)}, {f.operand(other)})")


def _with_mask(f: Frame, eqn: Eqn) -> None:
    """Defines a mask before an equation whose blocks have checks, as these may deactivate what follows."""
    if not f.mask and any(_checks(block) for block in eqn.blocks):
        f.mask = f.text.let("live", "tl.full((), 1, tl.int1)")


def _checks(block: Block) -> bool:
    return any(e.primitive in (BOUND, CHECK) or any(map(_checks, e.blocks)) for e in block.eqns)


def emit_for(f: Frame, eqn: Eqn) -> None:
    """Emits `for`, counting trips from 0 if its step is not 1 or its index not i32."""
    _with_mask(f, eqn)
    start, stop, step = eqn.bounds
    body = eqn.blocks[0]
    index, *params = body.params
    names = [f.text.name(p.hint or "v") for p in params]
    for name, param, initial in zip(names, params, eqn.initials, strict=True):
        f.text.line(f"{name} = {f.spread(initial, block=f.is_block(param))}")
    f.env.update(zip(params, names, strict=True))
    simple = isinstance(step, Literal) and int(step.value) == 1 and index.dtype is DType.i32
    counter = f.text.name(index.hint or "k")
    bounds = f"{_bound(f, start)}, {_bound(f, stop)}" if simple else f"0, {_trips(f, start, stop, step)}"
    with f.text.block(f"for {counter} in range({bounds}):"):
        f.loops += 1
        f.env[index] = counter
        if not simple:
            assert isinstance(step, Literal)
            first = f"{f.typed(start)}.to(tl.int64)"
            f.bind(index, f"({first} + {counter} * {int(step.value)}).to({type_of(index.dtype)})")
        f.emit(body.eqns)
        _hand_on(f, names, params, body.results)
        f.loops -= 1
    f.env.update(zip(eqn.outvars, names, strict=True))


def _bound(f: Frame, atom: Atom) -> str:
    return str(int(atom.value)) if isinstance(atom, Literal) else f.typed(atom)


def _trips(f: Frame, start: Atom, stop: Atom, step: Atom) -> str:
    """Returns an expression of the trip count of a loop."""
    assert isinstance(step, Literal)
    by = int(step.value)
    if not by:
        return "0"
    low, high = (start, stop) if by > 0 else (stop, start)
    far = distance(f"{f.typed(low)}.to(tl.int64)", f"{f.typed(high)}.to(tl.int64)")
    return f.text.let("trips", far if abs(by) == 1 else f"({far} + {abs(by) - 1}) // {abs(by)}")


def distance(low: str, high: str) -> str:
    """Returns code of `high - low`, or of 0 for an empty range, whose difference could wrap around."""
    return f"tl.where({high} > {low}, {high} - {low}, 0)"


def _hand_on(f: Frame, names: Sequence[str], params: Sequence[Var], results: Sequence[Atom]) -> None:
    """Assigns the carried values of the next iteration as if all at once."""
    values = [f.spread(r, block=f.is_block(p)) for p, r in zip(params, results, strict=True)]
    changed = [(n, v) for n, v in zip(names, values, strict=True) if n != v]
    if any(v in names for _, v in changed):
        changed = [(n, f.text.let("following", v)) for n, v in changed]
    for name, value in changed:
        f.text.line(f"{name} = {value}")


def bound(f: Frame, eqn: Eqn) -> None:
    """Emits `j = bound[size] i`."""
    (index,), size = eqn.invars, int(eqn.params["size"])
    i, most = f.typed(index), (1 << 63) - 1
    shown = f"tl.where(({i} >> 63) != 0, {most}, {i}.to(tl.int64))" if index.dtype is DType.u64 else i
    holds = f"({i} >= 0) & ({i} < {size})" if size <= _last(index) else f"{i} >= 0"
    _check(f, eqn, holds, shown, block=f.is_block(index))
    f.env[eqn.outvars[0]] = i


def _last(index: Atom) -> int:
    return (1 << (index.dtype.bits - index.dtype.is_signed)) - 1


def check(f: Frame, eqn: Eqn) -> None:
    """Emits `check p`."""
    condition, *told = eqn.invars
    holds, is_block, value = f.typed(condition), f.is_block(condition), ""
    if (number := told_in_a_word(eqn)) is not None:
        value = f.typed(told[number])
        if f.is_block(told[number]) and not is_block:
            holds, is_block = f"({holds}) & ({value} == {value})", True
    _check(f, eqn, holds, value, block=is_block)


def _check(f: Frame, eqn: Eqn, condition: str, value: str, *, block: bool) -> None:
    holds = f.text.let("holds", condition)
    failed = f.text.let("failed", f"{f.mask} & ~{holds}" if f.mask else f"~{holds}")
    number = f.facts.check_numbers[eqn] + 1
    report = f.module.helper("report")
    given = value or "tl.full((), 0, tl.int32)"
    f.text.line(f"{report}(failure, {failed}, {number}, {given}, {FAILURE_BITS})")
    f.narrow(holds, is_block=block)
