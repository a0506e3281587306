"""`lax` control flow: cond, while, scan become `if`, `while`, `for` that carry scalars; large arrays stay in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.errors import UnsupportedError
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.primitives import CHECK
from qdtrace.ir.program import Atom, Literal
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.importer.carries import Carries, Carry
from qdtrace.trace.importer.counted_loops import is_counted
from qdtrace.trace.importer.elements import per_element
from qdtrace.trace.importer.indexed_carries import dynamically_indexed
from qdtrace.trace.importer.indexing import as_index
from qdtrace.trace.importer.memory import UNROLL
from qdtrace.trace.importer.platforms import on_platforms
from qdtrace.trace.importer.reductions import tree
from qdtrace.trace.importer.registry import rule
from qdtrace.trace.importer.scalars import FALSE, integer
from qdtrace.trace.importer.structural import reshaped, take, view
from qdtrace.trace.importer.values import (
    MemoryArray,
    PrivateArray,
    RefValue,
    Value,
    array_from,
    atoms_of,
    elements_of,
    hold,
    rank0,
)
from qdtrace.trace.lengths import recording
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from qdtrace.ir.builder import BlockBuilder
    from qdtrace.ir.program import Eqn
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.jaxprs import AnyJaxpr, Shaped

UNROLLED_STEPS = 4
"""Loops over elements of arrays of at most this many steps are written out."""


def pinned(values: Sequence[Value]) -> list[Value]:
    """Keeps values that a loop reads again from being updated in place."""
    for value in values:
        hold(value)
    return list(values)


def unpin(values: Sequence[Value]) -> None:
    """Undoes `pinned`."""
    for value in values:
        hold(value, -1)


@rule("while")
def while_(
    imp: Importer, eqn: JaxprEqn, *operands: Value,
    cond_nconsts: int, cond_jaxpr: AnyJaxpr, body_nconsts: int, body_jaxpr: AnyJaxpr,
) -> list[Value]:  # fmt: skip
    """Imports `lax.while_loop`; a predicate for each batch element runs until all are done."""
    n_cond, n_body = cond_nconsts, body_nconsts
    cond_consts, body_consts = operands[:n_cond], operands[n_cond : n_cond + n_body]
    initial = operands[n_cond + n_body :]
    if recording() is not None and is_counted(cond_jaxpr, body_jaxpr, n_cond, n_body):
        return _counted(imp, body_jaxpr, body_consts, initial)
    cond, body = cond_jaxpr, body_jaxpr
    avals = [v.aval for v in compat.open_jaxpr(body).invars[n_body:]]
    pinned(cond_consts)
    pinned(body_consts)
    carries = Carries(imp, avals, initial, dynamically_indexed(body, n_body))
    start = carries.start()
    batched = compat.open_jaxpr(cond).outvars[0].aval.shape

    params = carries.params()
    with imp.block(params) as test:
        seen = pinned(carries.values(params))
        (predicate,) = imp.inline(cond, [*cond_consts, *seen])
        predicate = imp.scalars(predicate, "a loop condition")
        going = tree(lambda a, b: imp.op("or", a, b), elements_of(predicate))

    params_body = carries.params()
    with imp.block(params_body) as inner:
        seen = carries.values(params_body)
        if batched:
            pinned(seen)
            (active,) = pinned(imp.inline(cond, [*cond_consts, *seen]))
            results = pinned(imp.inline(body, [*body_consts, *seen]))
            results = [
                _where_active(imp, active, c, new, old)
                for c, new, old in zip(carries.items, results, seen, strict=True)
            ]
        else:
            results = imp.inline(body, [*body_consts, *seen])
        atoms = carries.finish(seen, results)
    out = imp.emit("while", *start, blocks=(test.close([going]), inner.close(atoms)))
    unpin(cond_consts)
    unpin(body_consts)
    return carries.values(out)


def _counted(imp: Importer, body: AnyJaxpr, consts: Sequence[Value], initial: Sequence[Value]) -> list[Value]:
    """Imports a `while` that counts as a `for`, which it is in a program of one length."""
    count = len(consts)
    avals = [v.aval for v in compat.open_jaxpr(body).invars[count + 2 :]]
    start, stop = (imp.element(value, ()) for value in initial[:2])
    pinned(consts)
    carries = Carries(imp, avals, initial[2:], dynamically_indexed(body, count)[2:])
    index = scalar_var(start.type.dtype, "k")
    block_params = carries.params()
    with imp.block((index, *block_params)) as opened:
        seen = carries.values(block_params)
        results = imp.inline(body, [*consts, rank0(index), rank0(stop), *seen])
        atoms = carries.finish(seen, results[2:])
    bounds = (start, stop, integer(1, start.type.dtype))
    out = imp.emit("for", *bounds, *carries.start(), blocks=(opened.close(atoms),))
    unpin(consts)
    return [rank0(imp.op("max", start, stop)), rank0(stop), *carries.values(out)]


def _where_active(imp: Importer, active: Value, carry: Carry, new: Value, old: Value) -> Value:
    if carry.is_handle:
        return new
    unpin([new])  # another carry may get the same value
    mask = reshaped(imp, active, active.shape + (1,) * (len(carry.aval.shape) - active.ndim))
    imp.importing = None  # all equations of the body are imported
    return per_element(imp, imp.choose, carry.aval, mask, new, old)


@rule("scan", ignores={"unroll": "it is for speed", "ft_out": "results come in the order of the body's"})
def scan(
    imp: Importer, eqn: JaxprEqn, *operands: Value, jaxpr: AnyJaxpr, length: int, reverse: bool,
    num_consts: int = 0, num_carry: int = 0, ft_in: object = None,
) -> list[Value]:  # fmt: skip
    """Imports `lax.scan` and `fori_loop` of constant length: a `for`; few steps over arrays are written out."""
    counts = {"num_consts": num_consts, "num_carry": num_carry} if ft_in is None else {"ft_in": ft_in}
    n_consts, n_carry = compat.scan_counts(counts)
    body = jaxpr
    consts, initial, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    jaxpr = compat.open_jaxpr(body)
    y_avals = [v.aval for v in jaxpr.outvars[n_carry:]]
    if length <= UNROLLED_STEPS and (xs or y_avals or length <= 1):
        return _unrolled_scan(imp, body, consts, initial, xs, y_avals, length, reverse)
    pinned(consts)
    xs = pinned([imp.spill(x) if isinstance(x, np.ndarray) and x.size else x for x in xs])
    avals = [v.aval for v in jaxpr.invars[n_consts : n_consts + n_carry]]
    carries = Carries(imp, avals, initial, dynamically_indexed(body, n_consts)[:n_carry])
    ys = [imp.private((length, *a.shape), imp.dtype_of(a), is_pair(a), "ys") for a in y_avals]
    index = scalar_var(DType.i32, "k")
    block_params = carries.params()
    with imp.block((index, *block_params)) as opened:
        at = imp.op("sub", integer(length - 1), index) if reverse else index
        seen = carries.values(block_params)
        rows = [_row(imp, x, at) for x in xs]
        results = imp.inline(body, [*consts, *seen, *rows])
        for y, value in zip(ys, results[n_carry:], strict=True):
            _store_row(imp, y, at, value)
        atoms = carries.finish(seen, results[:n_carry])
    bounds = (integer(0), integer(length), integer(1))
    out = imp.emit("for", *bounds, *carries.start(), blocks=(opened.close(atoms),))
    unpin(consts)
    unpin(xs)
    final = carries.values(out)
    return [*final, *(imp.scalars(y) if y.size <= UNROLL else y for y in ys)]


def _row(imp: Importer, x: Value, at: Atom) -> Value:
    """Returns x[at] for a traced position in range."""
    if isinstance(x, np.ndarray):  # rows without elements
        return x[0]
    if x.ndim == 1:
        return rank0(imp.element(x, [at]))
    return view(imp, x, x.shape[1:], lambda i: [at, *i])


def _store_row(imp: Importer, target: PrivateArray, at: Atom, value: Value) -> None:
    if isinstance(value, np.ndarray):
        for i in np.ndindex(*value.shape):
            imp.store_at(target.var, value.item(i), [at, *(imp.index(k) for k in i)])
    else:
        imp.loop_nest(value.shape, lambda i: imp.store_at(target.var, imp.element(value, i), [at, *i]))


def _unrolled_scan(
    imp: Importer, body: AnyJaxpr, consts: Sequence[Value], initial: Sequence[Value], xs: Sequence[Value],
    y_avals: Sequence[Shaped], length: int, reverse: bool,
) -> list[Value]:  # fmt: skip
    carry: list[Value] = list(initial)
    steps: list[list[Value]] = [[] for _ in range(length)]
    pinned(consts)
    for t in range(length - 1, -1, -1) if reverse else range(length):
        results = imp.inline(body, [*consts, *carry, *(take(imp, x, t) for x in xs)])
        carry, steps[t] = results[: len(initial)], pinned(results[len(initial) :])
    unpin(consts)
    for rows in steps:
        unpin(rows)
    ys: list[Value] = []
    for j, aval in enumerate(y_avals):
        shape, dtype, pair = (length, *aval.shape), imp.dtype_of(aval), is_pair(aval)
        rows = [steps[t][j] for t in range(length)]
        arrays = [r for r in rows if isinstance(r, np.ndarray)]
        if int(np.prod(shape)) <= imp.scalar_budget and len(arrays) == length:
            ys.append(np.stack(arrays) if arrays else np.empty(shape, object))
            continue
        out = imp.private(shape, dtype, pair, "ys")
        for t, row in enumerate(rows):
            _store_row(imp, out, imp.index(t), row)
        ys.append(out)
    return [*carry, *ys]


@rule("cond")
def cond(
    imp: Importer,
    eqn: JaxprEqn,
    which: Value,
    *operands: Value,
    branches: Sequence[AnyJaxpr],
    branches_platforms: Sequence[Sequence[str] | None] | None = None,
) -> list[Value]:
    """Imports `lax.cond`, `lax.switch` and `lax.platform_dependent`: nested `if`s; only the taken branch runs."""
    avals = [v.aval for v in eqn.outvars]
    if branches_platforms is not None:
        return on_platforms(
            imp,
            branches_platforms,
            lambda k: imp.inline(branches[k], operands),
            lambda here, on_true, on_false: branch(imp, here, avals, on_true, on_false),
        )
    index = imp.element(which, ())
    last = len(branches) - 1
    if type(index) is Literal:
        return imp.inline(branches[min(max(int(index.value), 0), last)], operands)

    def choose(k: int) -> list[Value]:
        if k == last:
            return imp.inline(branches[k], operands)
        if index.type.dtype is DType.bool:
            here = imp.op("not", index)
        else:
            number = as_index(imp, index, len(branches))
            here = imp.op("le", number, integer(k, number.type.dtype))
        return branch(imp, here, avals, lambda: imp.inline(branches[k], operands), lambda: choose(k + 1))

    return choose(0)


def branch(
    imp: Importer,
    condition: Atom,
    avals: Sequence[Shaped],
    on_true: Callable[[], list[Value]],
    on_false: Callable[[], list[Value]],
) -> list[Value]:
    """Emits an `if` whose results are scalars, or arrays in memory that both branches write."""
    opened, results = [], []
    for run in (on_true, on_false):
        with imp.block() as block:
            results.append(run())
        opened.append(block)
    failing = [any(map(_fails, block.eqns)) for block in opened]
    if any(failing):
        lives = failing.index(False) if False in failing else 0
        _keep_one(imp, condition if lives else imp.op("not", condition), opened[1 - lives], opened[lives])
        return results[lives]
    atoms: list[list[Atom]] = [[], []]
    out: list[Any] = []
    for aval, *both in zip(avals, *results, strict=True):
        first, second = both
        if isinstance(first, RefValue) or isinstance(second, RefValue):
            if not (isinstance(first, RefValue) and isinstance(second, RefValue) and first.var is second.var):
                raise UnsupportedError(
                    "a branch cannot choose between buffers", loc=imp.here(),
                    help="index the buffers inside the branches and return the values",
                )  # fmt: skip
            out.append(first)
        elif first is second and isinstance(first, MemoryArray):
            out.append(first)
        elif isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
            for taken, value in zip(atoms, both, strict=True):
                taken.extend(atoms_of(value))
            out.append(None)
        else:
            target = imp.private(aval.shape, imp.dtype_of(aval), is_pair(aval))
            for block, value in zip(opened, both, strict=True):
                with imp.continued(block):
                    imp.write_all(target, value)
            out.append(target)
    scalars = iter(imp.emit("if", condition, blocks=(opened[0].close(atoms[0]), opened[1].close(atoms[1]))))
    return [array_from(scalars, aval) if value is None else value for aval, value in zip(avals, out, strict=True)]


def _fails(eqn: Eqn) -> bool:
    return eqn.primitive is CHECK and eqn.invars[0] is FALSE


def _keep_one(imp: Importer, fails: Atom, dead: BlockBuilder, alive: BlockBuilder) -> None:
    """Appends the branch that goes on, behind the checks of the one that surely fails."""
    checks = [e for e in dead.eqns if e.primitive.effects or e.blocks]
    if len(checks) == 1 and _fails(checks[0]):
        (check,) = checks
        imp.current.eqns.append(replace(check, invars=(imp.op("not", fails),)))
    else:
        with imp.block() as nothing:
            pass
        imp.emit("if", fails, blocks=(dead.close(), nothing.close()))
    imp.current.eqns += alive.eqns
