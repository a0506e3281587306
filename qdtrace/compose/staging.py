"""Staging: a traced function becomes XLA operations and calls of programs, in program order.

The items of the traced function are walked once, inside a JAX trace:

- an outermost `qd.range` becomes a task of the open segment;
- scalar loads, stores and accumulations between loops go into serial tasks of the segment;
- array code is evaluated by JAX, that is, left to XLA. When it needs what a task computed, the segment is closed
  into one call first;
- `qd.while_` around loops becomes `lax.while_loop` over the buffers it uses.

Buffers are functional outside tasks: a call takes contents and returns contents. XLA shares the memory of both if
nothing else needs the old content, so no copy is made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from qdtrace.compose.array_rules import again, array_code
from qdtrace.compose.array_tasks import assigned, copied, filled, is_made
from qdtrace.compose.by_xla import by_xla
from qdtrace.compose.donation import pair_results
from qdtrace.compose.inlining import Inlining
from qdtrace.compose.items import has_jump, has_tasks
from qdtrace.compose.jaxprs import has_marker, is_literal, physical_type
from qdtrace.compose.large_access import large_access
from qdtrace.compose.lazy_derivatives import register
from qdtrace.compose.loops import jump, loop_of_tasks
from qdtrace.compose.records import needs_jax
from qdtrace.compose.restaging import source_of
from qdtrace.compose.segment import BufferState, Constant
from qdtrace.compose.stager import SMALL, Stager
from qdtrace.compose.task_range import task_range
from qdtrace.errors import UnsupportedError, warn
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.program import Task
from qdtrace.ir.types import DType
from qdtrace.trace import compat, markers
from qdtrace.trace.dtypes import mode_for, weak_as
from qdtrace.trace.importer.tells import tells
from qdtrace.trace.importer.values import rank0
from qdtrace.trace.loops import too_many
from qdtrace.trace.markers import alloc_p, buffer_p, lget_p, load_p, local_p, lset_p, reach_p, read_p
from qdtrace.trace.physical import logical, physical
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.tree import body_of, bounds_of, hints_of, loc_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array
    from jax.core import ShapedArray
    from jax.typing import ArrayLike

    from qdtrace.compose.shown_records import Left
    from qdtrace.compose.stager import Call
    from qdtrace.config import Options
    from qdtrace.limits import Limits
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.tree import Root

register()

UNSEEN = (alloc_p, buffer_p, read_p, load_p, local_p, lget_p, lset_p, reach_p)
"""Operations on buffers between loops that have no effect unless a result depends on them."""
LAUNCH_HINTS = ("block_dim", "unroll", "fuse", "refill")


def stage(
    root: Root,
    args: Sequence[ArrayLike],
    names: Sequence[str],
    name: str,
    options: Options,
    donated: Sequence[Array] = (),
    given: Sequence[tuple[object, Limits]] = (),
    *,
    array_tasks: bool = False,
) -> tuple[list[ArrayLike], list[Left], Call | None]:
    """Evaluates a traced function on JAX values (usually tracers). Returns flat outputs, what is still to be shown, and
    the call of a program if there is one alone.

    `names` are the arguments' names, for printed graphs and errors. Results may use the memory of `donated` arguments.
    `given` arguments have limits. With `array_tasks` array code that has a rule is tasks, unless a program is called.
    """
    tasks = again if array_tasks and not any(has_marker(item, "qd_call") for item in root.items) else None
    stager = Stager(name, options, _rule_of, source_of, tasks, given=given)
    stager.hints.update(zip(root.params, names, strict=True))
    stager.left = None if needs_jax(root.items, SMALL) else []
    stager.memory_of = pair_results(root, donated)
    items, results, constants = root.items, list(root.results), root.constants
    if tasks:
        inlining = Inlining()
        items = list(inlining.items(items))
        results, constants = inlining.named(results), {**constants, **inlining.constants}
    for var, const in constants.items():
        stager.env[var] = Constant(const)
    for var, arg in zip(root.params, args, strict=True):
        stager.env[var] = Constant(arg)
    if not root.results:
        _warn_of_no_results(root, name)
    stager.note_uses(items, results)
    stager.run(items)
    outs = stager.tied([stager.value(v) if is_literal(v) else weak_as(v, stager.value(v)) for v in results])
    alone = len(stager.calls) == 1 and stager.left == [] and not stager.is_tied
    return outs, stager.left or [], stager.calls[0] if alone else None


def _warn_of_no_results(root: Root, name: str) -> None:
    """Warns that a function without results has no effect, as JAX runs only code that results depend on."""
    markers_in = (i for i in root.items if compat.has_markers(i.effects))
    item = next((i for i in markers_in if i.primitive not in UNSEEN), None)
    if item is not None and not any(map(tells, compat.all_eqns(root.items))):
        text = (
            f"`{name}` returns nothing, so nothing of it runs: no loop, no store, no check\n"
            "help: return the buffers that it stores to; where it only checks, return an argument and use that one"
        )
        warn(text, loc_of(item))


def _rule_of(item: JaxprEqn) -> Callable[[Stager, JaxprEqn], None]:
    """Returns the rule that stages an item."""
    if item.primitive is markers.while_p:
        return loop_of_tasks if has_tasks(item) else Stager.serial
    if item.primitive is markers.when_p:
        has_several = has_tasks(item) or has_jump(item, "qd_break", "qd_continue")
        return _conditional_tasks if has_several else Stager.serial
    rule = _RULES.get(item.primitive.name)
    if rule is not None:
        return rule
    return _control_flow if compat.has_markers(item.effects) else _pure


def _task(stager: Stager, region: JaxprEqn) -> None:
    """Stages an outermost `qd.range` as a task."""
    hints, iteration, loc = hints_of(region), body_of(region), region.params["loc"]
    if hints.get("serial"):
        stager.serial(region)
        return
    stager.segment.close_serial()
    builder = Builder()
    builder.loc = loc
    index_var, *outside = iteration.invars
    dtype = DType.of(index_var.aval.dtype)
    bounds = [stager.scalar(builder, v) for v in bounds_of(region)]
    start, stop, step = (builder.convert(v, dtype) for v in bounds[:3])
    fits = bounds[3:]
    if stager.conditions:
        runs = stager.predicate(builder)
        stop = builder("select", runs, stop, start)
        fits = [builder("or", builder("not", runs), f) for f in fits]
    for condition in fits:
        builder.emit("check", condition, message=too_many(dtype.numpy))
    index = scalar_var(dtype, "i")
    env = {v: stager.operand(builder, v) for v in outside}
    importer = stager.importer(builder, iteration.eqns)
    span = task_range(builder, importer.ranges, start, stop, step, loc)
    with builder.block() as body:
        at = span.index(builder, index)
        env[index_var] = rank0(at)
        importer.ranges.set_index(at, start, stop, step)
        with importer.in_iteration(at):
            importer.body(iteration.eqns, env)
    name = str(hints.get("name") or f"{stager.name}.{len(stager.segment.tasks)}")
    head = tuple(builder.current.eqns)
    launch = {k: v for k, v in hints.items() if k in LAUNCH_HINTS and v is not None}
    stager.segment.append(Task("range_for", index, span.first, span.last, body.close(), head, name, loc, launch))
    stager.segment.note(region, stager.conditions)


def _conditional_tasks(stager: Stager, region: JaxprEqn) -> None:
    """Stages a top-level `qd.when` around loops: each of its tasks runs over an empty range if it is false."""
    (condition,) = bounds_of(region)
    stager.conditions = (*stager.conditions, condition)
    for item in body_of(region).eqns:
        stager.item(item)
    at = stager.conditions.index(condition)
    stager.conditions = (*stager.conditions[:at], *stager.conditions[at + 1 :])


def _pure(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages array code."""
    (array_code if stager.array_tasks else by_xla)(stager, eqn)


def _control_flow(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages `lax` control flow with buffer operations inside, between loops."""
    if has_marker(eqn, "qd_loop_begin"):
        raise UnsupportedError(
            f"needs qd.range outside of `{eqn.primitive.name}`, got it inside a lax loop or branch between tasks",
            loc=eqn_loc(eqn),
            help="use a Python loop, qd.while_ or qd.when, or put the lax loop around the qd.jit function",
        )
    if has_marker(eqn, "qd_call"):
        raise UnsupportedError(
            f"needs arrays in `{eqn.primitive.name}` when it calls a qd.jit function, got a buffer that it reads",
            loc=eqn_loc(eqn),
            help="read it in front of the lax loop or branch: `v = x[...]`",
        )
    stager.serial(eqn)


def _alloc(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages the allocation of a buffer."""
    if stager.array_tasks and is_made(stager, eqn):
        return filled(stager, eqn, _new_state(stager, eqn.outvars[0].aval))
    fill = stager.value(eqn.invars[0]) if eqn.invars else None
    stager.env[eqn.outvars[0]] = _new_state(stager, eqn.outvars[0].aval, fill=fill)


def _buffer(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages a buffer with the content of an array, or a cell between loops."""
    aval = eqn.outvars[0].aval
    if stager.array_tasks and is_made(stager, eqn):
        return filled(stager, eqn, _new_state(stager, aval))
    with mode_for([aval.dtype]):
        value = jnp.asarray(stager.value(eqn.invars[0]), aval.dtype)
    state = _new_state(stager, aval, value=physical(value))
    if not is_literal(eqn.invars[0]) and eqn.invars[0] in stager.hints:
        state.hint = re.sub(r"\W+", "_", stager.hints[eqn.invars[0]]).strip("_") or state.hint
    stager.env[eqn.outvars[0]] = state


def _new_state(
    stager: Stager, aval: ShapedArray, value: Array | None = None, fill: ArrayLike | None = None
) -> BufferState:
    """Returns the state of a new buffer; complex numbers are pairs on a trailing axis."""
    item = stager.current
    shape, dtype = physical_type(aval, item)
    if fill is not None and shape != tuple(aval.shape):
        with mode_for([aval.dtype]):
            value, fill = physical(jnp.full(aval.shape, fill, aval.dtype)), None
    called = None if item is None else item.params.get("called")
    return BufferState(shape, dtype, value, fill, called or "b")


def _read(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages a read of a buffer's whole content."""
    if stager.array_tasks and not stager.is_last() and copied(stager, eqn):
        return
    stager.env[eqn.outvars[0]] = Constant(logical(stager.content(stager.buffer_of(eqn)), eqn.outvars[0].aval))


def _assign(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages an assignment of a buffer's whole content."""
    if not (stager.array_tasks and assigned(stager, eqn)):
        stager.replace_content(stager.buffer_of(eqn), physical(stager.value(eqn.invars[1])))


def _access(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages a load, store, accumulation or atomic between loops."""
    is_large = any(np.prod(v.aval.shape) > SMALL for v in (*eqn.invars[1:], *eqn.outvars))
    (large_access if is_large else Stager.serial)(stager, eqn)


_RULES: dict[str, Callable[[Stager, JaxprEqn], None]] = {
    "qd_for": _task,
    "qd_alloc": _alloc,
    "qd_buffer": _buffer,
    "qd_local": _buffer,
    "qd_read": _read,
    "qd_assign": _assign,
    "qd_break": jump,
    "qd_continue": jump,
    **dict.fromkeys(("qd_load", "qd_store", "qd_accum", "qd_atomic", "qd_lget", "qd_lset"), _access),
    "qd_reach": Stager.serial,
}
