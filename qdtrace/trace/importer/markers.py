"""Regions and memory markers: nested loops and conditions without carries, loads and stores of buffers and cells.

A `break_if` or `continue_if` guards what follows it in its block. Inside a `qd.when` it also sets the flag `skip` of
the iteration, on which the rest of the enclosing blocks is guarded; a break sets the flag `broken` of the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.analysis.index.trips import CountedLoop, unsigned
from qdtrace.errors import TraceValueError
from qdtrace.frozen import mutable
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.custom import Part
from qdtrace.ir.faults import ITERATION
from qdtrace.ir.primitives import AND, NOT
from qdtrace.ir.program import is_local, ref_type
from qdtrace.ir.types import DType
from qdtrace.trace.importer.bounds import checked
from qdtrace.trace.importer.core import LoopFlow
from qdtrace.trace.importer.indexing import each
from qdtrace.trace.importer.registry import RESULT_TYPE, item_rule, rule
from qdtrace.trace.importer.scalars import FALSE, TRUE, integer
from qdtrace.trace.importer.trip_limits import TripLimit, check_trips
from qdtrace.trace.importer.values import RefValue, Value, rank0
from qdtrace.trace.loops import too_many
from qdtrace.trace.markers import break_p, continue_p, for_p, when_p, while_p
from qdtrace.trace.physical import is_pair
from qdtrace.trace.tree import body_of, bounds_of, hints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qdtrace.ir.program import Atom, Var
    from qdtrace.trace.compat import JaxprEqn, Primitive
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Env, EnvValue
    from qdtrace.trace.markers import Slices

_JUMPS = (break_p, continue_p)
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def _jumps(items: Sequence[JaxprEqn], nested: bool = False) -> Iterator[tuple[Primitive, bool]]:
    """Yields (primitive, inside a condition) of each jump that belongs to the loop with these items."""
    for item in items:
        if item.primitive is when_p:
            yield from _jumps(body_of(item).eqns, True)
        elif item.primitive in _JUMPS:
            yield item.primitive, nested


@item_rule(*_JUMPS)
def _jump(imp: Importer, eqn: JaxprEqn, rest: Sequence[JaxprEqn], env: Env) -> bool:
    imp.unlocated = eqn
    predicate = imp.element(imp.read(env, eqn.invars[0]), ())
    flow = imp.flow[-1]
    if flow.skip is not None:
        imp.store_at(flow.skip, predicate, ())
    if eqn.primitive is break_p and flow.broken is not None:
        imp.store_at(flow.broken, predicate, ())
    if rest:
        imp.if_(imp.op("not", predicate), lambda: imp.items(rest, env))
    return True


def _open_flow(imp: Importer, items: Sequence[JaxprEqn]) -> LoopFlow:
    jumps = list(_jumps(items))
    flow = LoopFlow()
    if any(jump is break_p for jump, _ in jumps):
        flow.broken = imp.cell(DType.bool, hint="broken")
        imp.store_at(flow.broken, FALSE, ())
    if any(nested for _, nested in jumps):
        flow.skip = imp.cell(DType.bool, hint="skip")
    return flow


def _body(imp: Importer, flow: LoopFlow, items: Sequence[JaxprEqn], env: Env) -> None:
    if flow.skip is not None:
        imp.store_at(flow.skip, FALSE, ())
    imp.flow.append(flow)
    try:
        imp.items(items, env)
    finally:
        imp.flow.pop()


@item_rule("body")
def _items(imp: Importer, items: Sequence[JaxprEqn], env: Env) -> None:
    _body(imp, _open_flow(imp, items), items, env)


def _set_loc(imp: Importer, region: JaxprEqn) -> None:
    if region.params["loc"] is not None and not imp.calls:
        imp.loc = region.params["loc"]
        imp.unlocated = None


@item_rule(for_p)
def _for(imp: Importer, region: JaxprEqn, rest: Sequence[JaxprEqn], env: Env) -> None:
    hints, body = hints_of(region), body_of(region)
    index_var, items = body.invars[0], body.eqns
    dtype = imp.dtype_of(index_var.aval)
    start, stop, step, *checks = bounds_of(region)
    start, stop, step = (imp.convert(imp.element(imp.read(env, v), ()), dtype) for v in (start, stop, step))
    _set_loc(imp, region)
    for fits in checks:
        _fails_unless(imp, imp.element(imp.read(env, fits), ()), too_many(dtype.numpy))
    loop = CountedLoop(start, stop, step)
    most = hints.get("most")
    if most is not None:
        check_trips(imp, loop, most)
    flow = _open_flow(imp, items)
    index = scalar_var(dtype, "k")
    env[index_var] = rank0(index)
    imp.ranges.set_index(index, start, stop, step)
    hints = {k: v for k, v in hints.items() if k in ("unroll", "most") and v is not None}
    loc = imp.loc
    if flow.broken is None:
        with imp.block((index,)) as opened, imp.in_iteration(index):
            _body(imp, flow, items, env)
        imp.loc = loc
        imp.emit("for", start, stop, step, blocks=(opened.close(),), **hints)
        return
    # Where the index that ends the loop may not be a number of its dtype, iterations are counted down beside it.
    counts = loop.may_pass_the_end(imp.ranges.of(stop))
    at, left = scalar_var(dtype, "k"), scalar_var(unsigned(dtype), "left")
    limit = TripLimit(imp, most)
    with imp.block((at, left, *limit.tested) if counts else (at, *limit.tested)) as test:
        going = imp.op("ne", left, integer(0, left.dtype)) if counts else loop.emit_before(imp.op, at)
        going = limit.goes_on(imp.op("and", going, imp.op("not", imp.load_at(flow.broken, ()))))
    left = scalar_var(unsigned(dtype), "left")
    with imp.block((index, left, *limit.inside) if counts else (index, *limit.inside)) as opened:
        with imp.in_iteration(index):
            _body(imp, flow, items, env)
        following = [imp.op("add", index, step)]
        if counts:
            following.append(imp.op("sub", left, integer(1, left.dtype)))
        following += limit.following()
    imp.loc = loc
    first = [start, loop.emit_count(imp.op)] if counts else [start]
    imp.emit("while", *first, *limit.first, blocks=(test.close([going]), opened.close(following)))


@item_rule(while_p)
def _while(imp: Importer, region: JaxprEqn, rest: Sequence[object], env: Env) -> None:
    _set_loc(imp, region)
    loc = imp.loc
    body, tested = region.params["jaxprs"]
    items = body.eqns
    flow = _open_flow(imp, items)

    def condition() -> Atom:
        inner = dict(env)
        imp.items(tested.eqns, inner)
        return imp.element(imp.read(inner, tested.outvars[0]), ())

    def goes_on() -> Atom:
        if flow.broken is None:
            return condition()
        stopped = imp.load_at(flow.broken, ())
        with imp.block() as no:
            pass
        with imp.block() as yes:
            value = condition()
        return imp.emit("if", stopped, blocks=(no.close([FALSE]), yes.close([value])))[0]

    limit = TripLimit(imp, hints_of(region).get("most"))
    with imp.block(limit.tested) as test:
        going = limit.goes_on(goes_on())
    with imp.block(limit.inside) as opened:
        _body(imp, flow, items, env)
        following = limit.following()
    imp.loc = loc
    trips = imp.emit("while", *limit.first, blocks=(test.close([going]), opened.close(following)))
    limit.check_end(trips, goes_on)


@item_rule(when_p)
def _when(imp: Importer, region: JaxprEqn, rest: Sequence[JaxprEqn], env: Env) -> bool:
    items = body_of(region).eqns
    predicate = imp.element(imp.read(env, region.invars[0]), ())
    _set_loc(imp, region)
    loc = imp.loc
    imp.if_(predicate, lambda: imp.items(items, env))
    imp.loc = loc
    if next(_jumps(items), None) is None:
        return False
    skip = imp.flow[-1].skip
    if rest and skip is not None:
        imp.if_(imp.op("not", imp.load_at(skip, ())), lambda: imp.items(rest, env))
    return True


# Memory.


def _handle(imp: Importer, value: EnvValue) -> Var:
    if not isinstance(value, RefValue):
        raise TraceValueError(
            "a store needs a buffer or a cell, got an array value", loc=imp.here(),
            help="make it one before the loop: qd.copy(x), or qd.local(x) inside it",
        )  # fmt: skip
    return value.var


@mutable
class _Place:
    """Elements of a reference that an access with indices and static slices names."""

    shape: tuple[int, ...]
    slices: Slices
    indices: list[Atom]
    valid: Atom
    """Atom that is true if the indices were in range before they were clipped."""
    is_empty: bool
    """True if an axis with an index has no element, so nothing is in range."""
    imp: Importer

    def at(self, index: Sequence[Atom]) -> list[Atom]:
        """Returns the reference's index of an element of the value."""
        dynamic, inner, out = iter(self.indices), iter(index), []
        for entry in self.slices:
            if entry is None:
                out.append(next(dynamic))
                continue
            start, stop, step = entry
            k = next(inner)
            dtype = DType.i64 if stop > 2**31 else k.type.dtype
            scaled = self.imp.op("mul", self.imp.convert(k, dtype), integer(step, dtype))
            out.append(self.imp.op("add", scaled, integer(start, dtype)))
        return out


def _place(imp: Importer, var: Var, slices: Slices, indices: Sequence[Value]) -> _Place:
    shape = tuple(len(range(*s)) for s in slices if s is not None)
    is_empty = any(s is None and not n for s, n in zip(slices, ref_type(var).shape, strict=False))
    return _Place(shape, tuple(slices), *checked(imp, var, slices, indices), is_empty and imp.bounds == "clip", imp)


def _each(imp: Importer, shape: Sequence[int], value: Value, body: Callable[[Sequence[Atom]], None]) -> None:
    if isinstance(value, np.ndarray):
        for i in np.ndindex(*shape):
            body([imp.index(k) for k in i])
    else:
        each(imp, shape, body)


@rule("qd_load", "qd_lget")
def load(imp: Importer, eqn: JaxprEqn, handle: EnvValue, *indices: Value, slices: Slices) -> Value:
    """Returns a snapshot of elements of a buffer or cell."""
    var = _handle(imp, handle)
    place = _place(imp, var, slices, indices)
    aval = eqn.outvars[0].aval
    pair = is_pair(aval)
    if place.is_empty:
        zero = integer(0, var.dtype)
        return imp.build(place.shape, var.dtype, lambda i: (zero, zero) if pair else zero, pair, unroll=True)
    return imp.snapshot(place.shape, var.dtype, lambda i: imp.load_at(var, place.at(i), pair), pair)


@rule("qd_reach")
def reach(imp: Importer, eqn: JaxprEqn, handle: EnvValue, *indices: Value, slices: Slices) -> list[Value]:
    """Emits the checks of a load whose value nobody uses."""
    checked(imp, _handle(imp, handle), slices, indices)
    return []


@rule("qd_store", "qd_lset")
def store(imp: Importer, eqn: JaxprEqn, handle: EnvValue, value: Value, *indices: Value, slices: Slices) -> list[Value]:
    """Writes elements."""
    var = _handle(imp, handle)
    place = _place(imp, var, slices, indices)

    def one(i: Sequence[Atom]) -> None:
        imp.store_at(var, imp.element(value, i if value.ndim else ()), place.at(i))

    imp.if_(place.valid, lambda: _each(imp, place.shape, value, one))
    return []


@rule("qd_accum")
def accum(
    imp: Importer, eqn: JaxprEqn, handle: EnvValue, value: Value, *indices: Value, slices: Slices, op: str
) -> list[Value]:
    """Combines into elements."""
    var = _handle(imp, handle)
    place = _place(imp, var, slices, indices)
    local = is_local(var)

    def one(i: Sequence[Atom]) -> None:
        element, at = imp.element(value, i if value.ndim else ()), place.at(i)
        parts = (
            [(element, at)] if type(element) is not tuple else [(e, [*at, imp.index(p)]) for p, e in enumerate(element)]
        )
        for part, where in parts:
            if local:
                imp.store_at(var, imp.op(op, imp.load_at(var, where), part), where)
            else:
                imp.emit("accum", var, part, *where, op=op)

    imp.if_(place.valid, lambda: _each(imp, place.shape, value, one))
    return []


@rule("qd_accum_along")
def accum_along(
    imp: Importer, eqn: JaxprEqn, *operands: Value, slices: Slices, op: str, directions: int
) -> list[Value]:
    """Combines into elements of memory and of its twins.

    Of memory that threads may share, the parts that twins take are known when all is accumulated: they are marked.
    """
    count = 1 << directions
    refs, values = [_handle(imp, v) for v in operands[:count]], list(operands[count : 2 * count])
    place = _place(imp, refs[0], slices, operands[2 * count :])
    if not all(isinstance(v, np.ndarray) for v in values):
        values = [imp.rolled(v) for v in values]

    def one(i: Sequence[Atom]) -> None:
        elements, at = [imp.element(v, i if v.ndim else ()) for v in values], place.at(i)
        imp.emit("accum", refs[0], elements[0], *at, op=op)
        for k in range(1, count):
            part = imp("custom", elements[k], elements[0], rule=Part(op, k), result=0)
            imp.emit("accum", refs[k], part, *at, op="add")

    imp.if_(place.valid, lambda: _each(imp, place.shape, values[0], one))
    return []


@rule("qd_atomic")
def atomic(
    imp: Importer, eqn: JaxprEqn, handle: EnvValue, *operands: Value, slices: Slices, op: str, nvalues: int
) -> Value:
    """Combines into elements and returns what was there."""
    var, values = _handle(imp, handle), operands[:nvalues]
    place = _place(imp, var, slices, operands[nvalues:])

    def one(i: Sequence[Atom]) -> Atom:
        if place.is_empty:
            return integer(0, var.dtype)
        parts = [imp.element(v, i if v.ndim else ()) for v in values]
        at = place.at(i)
        if place.valid is TRUE:
            return imp.emit("atomic", var, *parts, *at, op=op)[0]
        with imp.block() as then:
            (old,) = imp.emit("atomic", var, *parts, *at, op=op)
        with imp.block() as other:
            (nearest,) = imp.emit("load", var, *at)
        return imp.emit("if", place.valid, blocks=(then.close([old]), other.close([nearest])))[0]

    return imp.build(place.shape, var.dtype, one, unroll=True)


@rule("qd_check")
def check(imp: Importer, eqn: JaxprEqn, condition: Value, *, message: str) -> list[Value]:
    """Ends the call with an error where the condition does not hold."""
    _fails_unless(imp, imp.element(condition, ()), message)
    return []


def _fails_unless(imp: Importer, holds: Atom, message: str) -> None:
    if holds is TRUE:
        return
    told, values = _comparisons(imp, holds)
    if imp.iteration is not None:
        told, values = f"{ITERATION}: {told}" if told else ITERATION, [imp.iteration, *values]
    params: dict[str, Any] = {"told": told} if told else {}
    imp.emit("check", holds, *values, message=message, **params)


def _comparisons(imp: Importer, holds: Atom) -> tuple[str, Sequence[Atom]]:
    """Returns what to tell of a condition that does not hold, if it is a comparison or two, with the values."""
    made = imp.definition(holds)
    if made is None:
        return "", ()
    if made.primitive.name in _SIGNS:
        return f"{{}} {_SIGNS[made.primitive.name]} {{}} does not hold", made.invars
    parts = [imp.definition(a) for a in made.invars] if made.primitive in (AND, NOT) else []
    signs = [_SIGNS.get(p.primitive.name) if p is not None else None for p in parts]
    if not all(signs):
        return "", ()
    texts, values = [f"{{}} {sign} {{}}" for sign in signs], [a for p in parts if p is not None for a in p.invars]
    if len(texts) == 1:
        return f"{texts[0]} holds", values
    return f"{' and '.join(texts)} do not both hold" if texts else "", values


@rule("qd_read")
def read(imp: Importer, eqn: JaxprEqn, handle: EnvValue) -> Value:
    """Returns a snapshot of a whole buffer or cell."""
    return load(imp, eqn, handle, slices=tuple((0, n, 1) for n in eqn.outvars[0].aval.shape))


@rule("qd_assign")
def assign(imp: Importer, eqn: JaxprEqn, handle: EnvValue, value: Value) -> list[Value]:
    """Writes everything."""
    _assign(imp, _handle(imp, handle), eqn.invars[0].aval.shape, value)
    return []


def _assign(imp: Importer, var: Var, shape: Sequence[int], value: Value) -> None:
    _each(imp, shape, value, lambda i: imp.store_at(var, imp.element(value, i if value.ndim else ()), i))


_MADE = {
    "uid": "it tells equal allocations apart while tracing",
    "called": "a name for people",
    "dtype": RESULT_TYPE,
    "shape": RESULT_TYPE,
}


def _cell(imp: Importer, eqn: JaxprEqn) -> RefValue:
    aval = eqn.outvars[0].aval
    return RefValue(imp.private(aval.shape, imp.dtype_of(aval), is_pair(aval), eqn.params.get("called") or "cell").var)


@rule("qd_local", "qd_buffer", ignores=_MADE)
def local(imp: Importer, eqn: JaxprEqn, initial: Value) -> RefValue:
    """Allocates memory of the thread with a first content."""
    cell = _cell(imp, eqn)
    _assign(imp, cell.var, eqn.outvars[0].aval.shape, initial)
    return cell


@rule("qd_alloc", ignores=_MADE)
def alloc(imp: Importer, eqn: JaxprEqn, *fill: Value) -> RefValue:
    """Allocates memory of the thread, filled with one value or undefined."""
    cell = _cell(imp, eqn)
    if fill:
        element = imp.element(fill[0], ())
        each(imp, eqn.outvars[0].aval.shape, lambda i: imp.store_at(cell.var, element, i))
    return cell
