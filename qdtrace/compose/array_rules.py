"""Rules of array code as tasks: what one row of a result is made of (`array_tasks`).

A rule looks at an equation and returns the function that appends its tasks, or None where XLA has to run it. It may
look at the number of axes and at all lengths but the first: these belong to the program
(docs/design/0065-any-length.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from qdtrace.compose.array_scatters import JOINED, scatter_plan
from qdtrace.compose.array_tasks import ArrayTasks, assigned, copied
from qdtrace.compose.by_xla import by_xla
from qdtrace.compose.inlining import Inlining
from qdtrace.compose.jaxprs import is_literal
from qdtrace.ir.combining import FROM_ZERO, start_of
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.dtypes import accumulated
from qdtrace.trace.importer.reductions import combiner
from qdtrace.trace.importer.values import rank0
from qdtrace.trace.markers import MARKERS, alloc_p, assign_p, buffer_p, for_p, read_p
from qdtrace.trace.physical import is_pair
from qdtrace.trace.rows import ELEMENTWISE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.compose.array_tasks import Row
    from qdtrace.compose.stager import Stager
    from qdtrace.ir.program import Atom
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.values import Value

Plan: TypeAlias = "Callable[[], None] | None"
REDUCTIONS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul"}
ON_BOOLS = {"reduce_and": "min", "reduce_or": "max"}
CUMULATIVE = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}
RULES: dict[str, Callable[[ArrayTasks], Plan]] = {}


def _rule(*names: str) -> Callable[[Callable[[ArrayTasks], Plan]], Callable[[ArrayTasks], Plan]]:
    def register(rule: Callable[[ArrayTasks], Plan]) -> Callable[[ArrayTasks], Plan]:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _shape(atom: jaxprs.Atom) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _on_rows(eqn: JaxprEqn, shapes: Sequence[Sequence[int]], **params: object) -> JaxprEqn:
    """Returns an equation on operands, and with a result, of these shapes."""

    def typed(atom: jaxprs.Atom, shape: Sequence[int]) -> jaxprs.Atom:
        if is_literal(atom):
            return atom
        return compat.new_var_of(tuple(shape), atom.aval)

    *operands, result = shapes
    invars = [typed(v, s) for v, s in zip(eqn.invars, operands, strict=True)]
    outvars = [compat.new_var_of(tuple(result), v.aval) for v in eqn.outvars]
    return eqn.replace(invars=invars, outvars=outvars, params={**eqn.params, **params})


def _mapped(tasks: ArrayTasks, row: JaxprEqn, maps: Sequence[bool]) -> Plan:
    """Returns the plan of a result whose row is `row` on rows of the operands that it maps, and on other operands."""

    def plan() -> None:
        def one(at: Row) -> None:
            wholes = [at.whole(v) for v in tasks.eqn.invars]
            values = [at.of(x) if mapped else x for x, mapped in zip(wholes, maps, strict=True)]
            at.store(tasks.out, at.apply(row, values))

        tasks.rows(_shape(tasks.eqn.outvars[0])[0], one)

    return plan


def _each_row(tasks: ArrayTasks, **params: object) -> Plan:
    """Returns the plan of an equation that is, with these parameters, one on each row of all of its operands."""
    eqn = tasks.eqn
    row = _on_rows(eqn, [_shape(v)[1:] for v in (*eqn.invars, *eqn.outvars)], **params)
    return _mapped(tasks, row, [True] * len(eqn.invars))


def _moved(tasks: ArrayTasks, place: Callable[[Row], Atom], row: JaxprEqn | None = None) -> Plan:
    """Returns the plan of a result whose rows are those of its first operand at other places; `row` changes each."""

    def one(at: Row) -> None:
        value = at.of(at.whole(tasks.eqn.invars[0]), place(at))
        at.store(tasks.out, value if row is None else at.apply(row, [value]))

    return lambda: tasks.rows(_shape(tasks.eqn.outvars[0])[0], one)


@_rule(*ELEMENTWISE, "copy", "copy_p", "reduce_precision")
def _elementwise(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    shape, shapes = _shape(eqn.outvars[0]), [_shape(v) for v in eqn.invars]
    if any(len(s) not in (0, len(shape)) for s in shapes):
        return None
    row = _on_rows(eqn, [s[1:] for s in (*shapes, shape)])

    def one(at: Row) -> None:
        zero, values = at.importer.index(0), [at.whole(v) for v in eqn.invars]
        rows = [at.of(x, zero if s[0] < shape[0] else None) if s else x for x, s in zip(values, shapes, strict=True)]
        at.store(tasks.out, at.apply(row, rows))

    return lambda: tasks.rows(shape[0], one)


@_rule("custom_jvp_call")
def _call_of_elements(tasks: ArrayTasks) -> Plan:
    """A function of elements with a derivative rule, which differentiates it as an equation."""
    eqn, inlining = tasks.eqn, Inlining()
    closed, (out,) = eqn.params["call_jaxpr"], eqn.outvars
    jaxpr, shape = compat.open_jaxpr(closed), _shape(out)
    inner = list(inlining.items(jaxpr.eqns))
    (result,) = inlining.named(jaxpr.outvars)
    atoms = [a for e in inner for a in (*e.invars, *e.outvars)]
    are_plain = all(e.primitive.name in ELEMENTWISE for e in inner) and {_shape(a) for a in atoms} <= {(), shape}
    if not are_plain or jaxpr.constvars or inlining.constants or not shape or is_literal(result):
        return None
    rows = [_on_rows(e, [_shape(v)[1:] for v in (*e.invars, *e.outvars)]) for e in inner]

    def one(at: Row) -> None:
        given = [(v, at.whole(x)) for v, x in zip(jaxpr.invars, eqn.invars, strict=True)]
        env = {v: at.of(x) if x.ndim else x for v, x in given}
        for e, row in zip(inner, rows, strict=True):
            values = [at.importer.read({}, v) if is_literal(v) else env[v] for v in e.invars]
            env[e.outvars[0]] = at.apply(row, values)
        at.store(tasks.out, env[result])

    return lambda: tasks.rows(shape[0], one)


@_rule(*REDUCTIONS, *ON_BOOLS)
def _reduction(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    (x,), (out,), axes = eqn.invars, eqn.outvars, tuple(eqn.params["axes"])
    name = {**REDUCTIONS, **(ON_BOOLS if out.aval.dtype == np.bool_ else {})}.get(eqn.primitive.name)
    if name is None or accumulated(out.aval, name).dtype != out.aval.dtype or not axes:
        return None
    inner = tuple(d - 1 for d in axes if d)
    if 0 not in axes:
        return _each_row(tasks, axes=inner)
    row = _on_rows(eqn, [_shape(x)[1:], _shape(out)], axes=inner) if inner else None

    def one(at: Row) -> None:
        value = at.of(at.whole(x))
        at.accumulate(tasks.out, value if row is None else at.apply(row, [value]), name)

    def plan() -> None:
        tasks.begin(tasks.out, start_of(name, DType.of(out.aval.dtype)))
        tasks.rows(_shape(x)[0], one)

    return plan


@_rule(*CUMULATIVE)
def _cumulative(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    (x,), (out,), axis, name = eqn.invars, eqn.outvars, eqn.params["axis"], CUMULATIVE[eqn.primitive.name]
    shape, is_reversed = _shape(x), eqn.params["reverse"]
    if axis:
        return _each_row(tasks, axis=axis - 1)
    if len(shape) > 1 or accumulated(out.aval, name).dtype != out.aval.dtype:
        return None
    n = x.aval.shape[0]

    def all_of(at: Row) -> None:
        imp, values = at.importer, at.whole(x)
        combine = combiner(imp, name, out.aval)

        def element(place: Atom) -> Atom:
            return imp.element(values, [place])

        def where(k: Atom) -> Atom:
            return imp.op("sub", imp.index(n - 1), k) if is_reversed else k

        def step(k: Atom, carries: Sequence[Atom]) -> list[Atom]:
            place = where(imp.op("add", k, imp.index(1)))
            so_far = combine(carries[0], element(place))
            imp.store_at(tasks.out, so_far, [place])
            return [so_far]

        begin = imp.index(n - 1) if is_reversed else imp.index(0)
        first = element(begin)
        if name in FROM_ZERO and n > 1:  # JAX's begins at 0.0, of one element it is that
            first = combine(first, start_of(name, first.type.dtype))
        imp.store_at(tasks.out, first, [begin])
        imp.carry_loop(n - 1, [first], step)

    return lambda: tasks.serial(all_of)


@_rule("argmax", "argmin")
def _place_of_extreme(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    (x,), (out,), (axis,) = eqn.invars, eqn.outvars, eqn.params["axes"]
    if axis:
        return _each_row(tasks, axes=(axis - 1,))
    if len(_shape(x)) > 1:
        return None
    source, kind = DType.of(x.aval.dtype), DType.of(out.aval.dtype)
    name = eqn.primitive.name.removeprefix("arg")

    def plan() -> None:
        extreme = tasks.memory((), source, start_of(name, source))
        tasks.begin(tasks.out, start_of("min", kind))
        tasks.rows(x.aval.shape[0], lambda at: at.accumulate(extreme, at.of(at.whole(x)), name))

        def one(at: Row) -> None:
            imp, value = at.importer, at.scalar(at.of(at.whole(x)))
            best = imp.load_at(extreme, ())
            found = imp.op("eq", value, best)
            if source.is_float:  # the first NaN wins
                nans = [imp.op("ne", a, a) for a in (value, best)]
                found = imp.choose(nans[1], nans[0], found)
            place = imp.choose(found, imp.convert(at.index, kind), start_of("min", kind))
            at.accumulate(tasks.out, rank0(place), "min")

        tasks.rows(x.aval.shape[0], one)

    return plan


@_rule("iota")
def _iota(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    shape, axis = _shape(eqn.outvars[0]), eqn.params["dimension"]
    if eqn.invars:
        return None
    dtype = DType.of(eqn.outvars[0].aval.dtype)
    if axis:
        return _each_row(tasks, dimension=axis - 1, shape=shape[1:])

    def one(at: Row) -> None:
        imp = at.importer
        number = imp.convert(at.index, dtype)
        at.store(tasks.out, imp.build(shape[1:], dtype, lambda _: number))

    return lambda: tasks.rows(shape[0], one)


@_rule("broadcast_in_dim")
def _broadcast(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    (x, *more), shape = eqn.invars, _shape(eqn.outvars[0])
    if more or not shape:
        return None
    dims, given = tuple(eqn.params["broadcast_dimensions"]), _shape(x)
    is_along = dims[:1] == (0,)
    row = _on_rows(
        eqn, [given[is_along:], shape[1:]], shape=shape[1:], broadcast_dimensions=tuple(d - 1 for d in dims[is_along:])
    )
    is_one = is_along and given[0] == 1 != shape[0]

    def one(at: Row) -> None:
        value = at.whole(x)
        if is_along:
            value = at.of(value, at.importer.index(0) if is_one else None)
        at.store(tasks.out, at.apply(row, [value]) if shape[1:] else value)

    return lambda: tasks.rows(shape[0], one)


@_rule("reshape", "squeeze")
def _reshape(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    shape, given = _shape(eqn.outvars[0]), _shape(eqn.invars[0])
    name = eqn.primitive.name
    if len(eqn.invars) > 1 or (name == "reshape" and eqn.params["dimensions"] is not None):
        return None
    if shape[:1] == given[:1] and shape:  # rows are reshaped
        own: dict[str, object] = {"new_sizes": shape[1:]}
        if name == "squeeze":
            own = {"dimensions": tuple(d - 1 for d in eqn.params["dimensions"] or ())}
        return _each_row(tasks, **own)
    return None


@_rule("slice")
def _slice(tasks: ArrayTasks) -> Plan:
    eqn, params = tasks.eqn, tasks.eqn.params
    strides = params["strides"] or (1,) * len(params["start_indices"])
    (start, *starts), (_, *limits) = params["start_indices"], params["limit_indices"]
    given, shape = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
    row = None
    if shape[1:] != given[1:]:
        own = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": tuple(strides[1:])}
        row = _on_rows(eqn, [given[1:], shape[1:]], **own)
    return _moved(tasks, lambda at: at.moved(start, strides[0]), row)


@_rule("rev")
def _rev(tasks: ArrayTasks) -> Plan:
    eqn, axes = tasks.eqn, tasks.eqn.params["dimensions"]
    shape = _shape(eqn.outvars[0])
    inner = tuple(d - 1 for d in axes if d)
    row = _on_rows(eqn, [shape[1:], shape[1:]], dimensions=inner) if inner else None
    return _moved(tasks, lambda at: at.moved(shape[0] - 1, -1) if 0 in axes else at.index, row)


@_rule("transpose")
def _transpose(tasks: ArrayTasks) -> Plan:
    first, *order = tasks.eqn.params["permutation"]
    return None if first else _each_row(tasks, permutation=tuple(d - 1 for d in order))


@_rule("concatenate")
def _concatenate(tasks: ArrayTasks) -> Plan:
    eqn, axis = tasks.eqn, tasks.eqn.params["dimension"]
    if axis:
        return _each_row(tasks, dimension=axis - 1)

    def plan() -> None:
        offset = 0
        for x in eqn.invars:

            def one(at: Row, x: jaxprs.Atom = x, offset: int = offset) -> None:
                at.store(tasks.out, at.of(at.whole(x)), at.moved(offset))

            tasks.rows(_shape(x)[0], one)
            offset += _shape(x)[0]

    return plan


@_rule("stack")
def _stack(tasks: ArrayTasks) -> Plan:
    eqn, axis = tasks.eqn, tasks.eqn.params["axis"]
    if axis:
        return _each_row(tasks, axis=axis - 1)

    def all_of(at: Row) -> None:
        for k, x in enumerate(eqn.invars):
            at.store(tasks.out, at.whole(x), at.importer.index(k))

    return lambda: tasks.serial(all_of)


@_rule("pad")
def _pad(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    (low, high, interior), *others = eqn.params["padding_config"]
    (x, fill), shape, given = eqn.invars, _shape(eqn.outvars[0]), _shape(eqn.invars[0])
    if low < 0 or high < 0:
        return None
    row = None
    if any(any(sides) for sides in others):
        row = _on_rows(eqn, [given[1:], (), shape[1:]], padding_config=tuple(others))

    def empty(at: Row) -> None:
        element = at.scalar(at.whole(fill))
        at.store(tasks.out, at.importer.build(shape[1:], element.type.dtype, lambda _: element))

    def one(at: Row) -> None:
        value = at.of(at.whole(x))
        at.store(
            tasks.out, value if row is None else at.apply(row, [value, at.whole(fill)]), at.moved(low, 1 + interior)
        )

    def plan() -> None:
        tasks.rows(shape[0], empty)
        tasks.rows(given[0], one)

    return plan


@_rule("gather")
def _gather(tasks: ArrayTasks) -> Plan:
    eqn, params = tasks.eqn, tasks.eqn.params
    numbers, (x, indices), shape = params["dimension_numbers"], eqn.invars, _shape(eqn.outvars[0])
    if not shape or 0 in numbers.offset_dims or numbers.operand_batching_dims or len(_shape(indices)) < 2:
        return None
    own = numbers._replace(offset_dims=tuple(d - 1 for d in numbers.offset_dims))
    row = _on_rows(eqn, [_shape(x), _shape(indices)[1:], shape[1:]], dimension_numbers=own)
    return _mapped(tasks, row, [False, True])


_rule("scatter", *JOINED)(scatter_plan)


@_rule("dynamic_slice")
def _dynamic_slice(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    (x, start, *_), shape = eqn.invars, _shape(eqn.outvars[0])
    if shape[1:] != _shape(x)[1:]:
        return None

    def place(at: Row) -> Atom:
        imp, dtype = at.importer, DType.of(start.aval.dtype)
        given = at.scalar(at.whole(start))
        if dtype.bits < DType.i32.bits:  # which may not hold the last place
            given, dtype = imp.convert(given, DType.i32), DType.i32
        first = imp.op("min", imp.op("max", given, literal(0, dtype)), literal(_shape(x)[0] - shape[0], dtype))
        return imp.op("add", at.index, imp.convert(first, DType.i32))

    return _moved(tasks, place)


@_rule("dot_general")
def _dot(tasks: ArrayTasks) -> Plan:
    eqn = tasks.eqn
    (a, b), (out,) = eqn.invars, eqn.outvars
    (left, right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    shapes, shape = (_shape(a), _shape(b)), _shape(out)
    if accumulated(out.aval).dtype != out.aval.dtype or a.aval.dtype != out.aval.dtype != np.bool_:
        return None
    if b.aval.dtype != out.aval.dtype:
        return None

    def less(axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(d - 1 for d in axes)

    if batch_left[:1] == (0,) and batch_right[:1] == (0,):
        numbers = (less(left), less(right)), (less(batch_left[1:]), less(batch_right[1:]))
        return _each_row(tasks, dimension_numbers=numbers)
    if batch_left:
        return None
    if shapes[0] and 0 not in left:  # rows of the left operand, each with all of the right one
        row = _on_rows(eqn, [shapes[0][1:], shapes[1], shape[1:]], dimension_numbers=((less(left), right), ((), ())))
        return _mapped(tasks, row, [True, False])
    if 0 not in left or right[left.index(0)] != 0:
        return None
    kept = left.index(0)
    numbers = ((less(left[:kept] + left[kept + 1 :]), less(right[:kept] + right[kept + 1 :])), ((), ()))
    row = _on_rows(eqn, [shapes[0][1:], shapes[1][1:], shape], dimension_numbers=numbers)

    def one(at: Row) -> None:
        rows = [at.of(at.whole(v)) for v in (a, b)]
        if all(x.ndim == 0 for x in rows):
            product: Value = rank0(at.importer.op("mul", *[at.scalar(x) for x in rows]))
        else:
            product = at.apply(row, rows)
        at.accumulate(tasks.out, product, "add")

    def plan() -> None:
        tasks.begin(tasks.out, start_of("add", DType.of(out.aval.dtype)))
        tasks.rows(shapes[0][0], one)

    return plan


def array_code(stager: Stager, eqn: JaxprEqn, otherwise: Callable[[Stager, JaxprEqn], None] = by_xla) -> None:
    """Stages an equation between loops: as tasks if it has arrays and a rule, in a serial task if it has none."""
    avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    is_plain = not eqn.effects and not any(is_pair(a) or 0 in a.shape for a in avals)
    if is_plain and not any(a.shape for a in avals) and not compat.holds_jaxpr(eqn):
        stager.serial(eqn)
        return
    rule = RULES.get(eqn.primitive.name) if is_plain and len(eqn.outvars) == 1 else None
    plan = rule and rule(ArrayTasks(stager, eqn))
    if plan:
        plan()
        stager.segment.note(eqn, stager.conditions)
    else:
        otherwise(stager, eqn)


def again(stager: Stager, item: JaxprEqn) -> None:
    """Stages an item of a program once more, or what its tangents added."""
    if item.primitive in (for_p, alloc_p, buffer_p):
        stager.rule_of(item)(stager, item)
    elif item.primitive in MARKERS:
        as_task = {read_p: copied, assign_p: assigned}.get(item.primitive)
        if as_task is None or not as_task(stager, item):
            stager.serial(item)
    else:
        array_code(stager, item, type(stager).serial)
