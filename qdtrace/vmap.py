"""`qd.vmap`: any JAX function of one element as one task over a batch, nested ones as one task over the product.

A call at the top runs `_map` under `qd.jit`: one loop over the batch, whose body selects the arguments of its element,
calls the function and stores its results. If the function is, or only calls, another `qd.vmap`, the loop runs over the
product of both batches (`lanes/plan`). A `qd.vmap` in the middle of a lane is `jax.vmap` there. Where lanes come
together at products of large arrays, XLA runs these between loops (`lanes/batch`).
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import jax

from qdtrace import tracebacks
from qdtrace.api import jit
from qdtrace.errors import TraceValueError, boundary
from qdtrace.lanes.batch import chosen_split, placed, run_split
from qdtrace.lanes.cache import compiled_for
from qdtrace.lanes.levels import along_levels
from qdtrace.lanes.plan import (
    IN_PLACE,
    REFERENCE,
    Lane,
    Mapped,
    Mapping,
    Part,
    Plan,
    Probe,
    is_value,
    plan_of,
    with_objects,
    without_cells,
)
from qdtrace.lanes.staging import most_copied
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty
from qdtrace.trace.arguments import as_buffer, as_values, is_memory
from qdtrace.trace.context import get_current
from qdtrace.trace.dtypes import as_weak, mode_for
from qdtrace.trace.lengths import known, recording
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range
from qdtrace.wrapped import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.api import Jitted
    from qdtrace.wrapped import Numbers

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@boundary
def vmap(
    f: Callable[P, R],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    pure: bool | None = None,
) -> Batched[P, R]:
    """Maps `f` over a batch: one thread per element, each with its own control flow.

    Takes and returns what `jax.vmap` does: `in_axes` is an int, None or a (prefix) pytree of them over the positional
    arguments, `out_axes` one over the results, with None for a result that depends on no mapped argument; keyword
    arguments are mapped over their first axis. A `while_loop` in `f` stops per element. `qd.vmap(qd.vmap(f))` and
    `jax.vmap(qd.vmap(f))` are one task over all elements, also with a function in between that does no more than call.
    `axis_size` is the batch size, where no argument tells it. `axis_name` names the axis for `lax.axis_size(name)` and
    `lax.psum(1, name)`; elements of a task run in no order, so other collectives over it are refused. A
    `spmd_axis_name` matters where JAX maps, which is in the middle of a lane.

    `qd.vmap(f)(x)` is compiled once for a function object `f`, axes and types of arguments, as `jax.jit(f)(x)` is: a
    global or attribute that changes afterwards is not seen, and a lambda or method that is made anew is traced.

    >>> def halvings(x):
    ...     return jax.lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] / 2, s[1] + 1), (x, 0))[1]
    >>> qd.vmap(halvings)(jnp.array([1.0, 2.0, 1000.0]))
    Array([ 0,  1, 10], dtype=int32, weak_type=True)

    Args:
        f: a function of one element, written with JAX.
        in_axes: the axis of each positional argument that is mapped; None: all elements get the whole.
        out_axes: the axis of each result that has the elements.
        axis_name: name of the axis.
        axis_size: number of elements.
        spmd_axis_name: as in `jax.vmap`.
        pure: as in `qd.jit`.

    Raises:
        TraceValueError: nothing is mapped, batch sizes differ, or a result with `out_axes=None` is mapped.
        TraceTypeError: an axis is out of range.
        UnsupportedError: of a collective over the axis.
    """
    size = None if axis_size is None else operator.index(axis_size)
    return Batched(Mapping(f, in_axes, out_axes, None, axis_name, size, spmd_axis_name, pure))


class Batched(Mapped, Wrapped[P, R_co]):
    """A mapped function; see `vmap`."""

    def __init__(self, mapping: Mapping) -> None:
        Mapped.__init__(self, mapping)
        Wrapped.__init__(self, mapping.f)
        self._compiled: Jitted[..., Any] | None = None

    @overload
    def __call__(self: Batched[P, Numbers], *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self: Batched[P, R | complex], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            for x in args:
                if type(x) not in _VALUES and _has_objects(x):
                    break
            else:
                if kwargs and _has_objects(kwargs):
                    pass
                elif self._compiled is not None and get_current() is None:
                    return self._compiled(*args, **kwargs)
                else:
                    return self._call(args, kwargs)
            mapping, values = with_objects(self.mapping, args, kwargs)
            return Batched(mapping)._call(tuple(values), {})
        except Exception as error:
            tracebacks.shorten(error)
            raise  # bare: this frame is not added to the traceback

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mapping = self.mapping
        context = get_current()
        if context is None:
            self._compiled = compiled_for(mapping, _compiled)
            return self._compiled(*args, **kwargs)
        mode = context.lanes
        if isinstance(mode, Lane):
            return _lane(mapping, _parts(*as_values((args, kwargs))), mode.indices)
        if isinstance(mode, Probe):
            return mode.called(mapping, args, kwargs)
        if mode is REFERENCE or context.in_thread:
            args, kwargs = as_values((args, kwargs))
            return mapping.by_jax(args, kwargs)
        is_last = context.function is self and mapping.pure is None
        if (is_last or recording() is not None) and not context.regions and compat.current_trace() is context.jax_trace:
            made = _map(mapping, *_as_buffers((args, kwargs)), is_last=is_last)  # a call would not know lengths
            return made if is_last else _as_buffers(made)
        return self.jitted(*args, **kwargs)

    @functools.cached_property
    def jitted(self) -> Jitted[..., Any]:
        """The function of whole arrays, compiled on its own."""
        return _compiled(lambda: self.mapping)

    def looks_at(self) -> object:
        """Returns what calls depend on, for `compose.pure_key`."""
        return self.mapping


_VALUES: set[type] = set()
"""Types of arrays and numbers met so far among arguments."""


def _has_objects(argument: Any) -> bool:
    """Returns whether an argument, or a leaf of it, is no array or number."""
    leaves = jax.tree.leaves(argument, is_leaf=is_memory)
    if len(leaves) == 1 and leaves[0] is argument and is_value(argument):
        _VALUES.add(type(argument))
        return False
    return not all(map(is_value, leaves))


def _compiled(mapping: Callable[[], Mapping]) -> Jitted[..., Any]:
    """Returns the compiled function of whole arrays."""

    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _map(mapping(), args, kwargs)

    f = mapping().f
    mapped.__name__ = getattr(f, "__name__", type(f).__name__)
    mapped.looks_at = mapping  # type: ignore[attr-defined]  # asked by `compose.pure_key`
    return jit(mapped, pure=mapping().pure)


def _map(mapping: Mapping, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_last: bool = True) -> Any:
    """Maps over all elements; it is the body of the function that `qd.jit` compiles."""
    context = get_current()
    assert context is not None
    plan = plan_of(mapping, args, kwargs, context)
    axes = mapping.leaf_axes(args, kwargs)
    split = chosen_split(plan, axes)
    if split is not None:
        plan = replace(plan, sizes=known(plan.sizes))
        args, kwargs = as_values((args, kwargs))
        values = _unmapped(mapping, plan, args, kwargs)
        given = list(zip(jax.tree.leaves((args, kwargs)), axes, strict=True))
        found = run_split(plan, split, given, mapping.f)
        mapped = ((k, slot) for k, slot in enumerate(plan.slots) if slot is not None)
        whole = ((k, slot, placed(found[k], slot.order.index(0), plan.sizes[0])) for k, slot in mapped)
        values.update((k, as_weak(x) if slot.weak else x) for k, slot, x in whole)
        return jax.tree.unflatten(plan.tree, [values[k] for k in range(len(found))])
    levels = along_levels(plan, mapping, args, kwargs)
    if levels is not None and levels.is_product:
        plan = replace(plan, sizes=known(plan.sizes))
        values = _unmapped(mapping, plan, *as_values((args, kwargs)))
        found = zip(levels.batched(plan.slots, plan.sizes), plan.slots, strict=True)
        values.update((k, as_weak(x) if s.weak else x) for k, (x, s) in enumerate(found) if s is not None)
        return jax.tree.unflatten(plan.tree, [values[k] for k in range(len(plan.slots))])
    with mode_for(slot.dtype for slot in plan.slots if slot is not None):
        outs = [None if slot is None or slot.is_float0 else empty(slot.shape, slot.dtype) for slot in plan.slots]
    values = _unmapped(mapping, plan, args, kwargs)
    if 0 not in plan.sizes and any(out is not None for out in outs):
        parts = _parts(args, kwargs)
        most = most_copied(plan.element)
        loop = qd_range(plan.sizes[0]) if len(plan.sizes) == 1 else ndrange(*plan.sizes)
        for index in loop.over(mapping.f):
            indices: Any = (index,) if len(plan.sizes) == 1 else index
            try:
                ys = jax.tree.leaves(_lane(mapping, parts, indices, most)) if levels is None else levels.lane(indices)
            finally:
                context.lanes = None
            for out, slot, y in zip(outs, plan.slots, ys, strict=True):
                if out is not None and slot is not None:
                    slot.store(out, indices, y)
    for k, (out, slot) in enumerate(zip(outs, plan.slots, strict=True)):
        if slot is not None:
            values[k] = slot.content(out, is_last=is_last)
    return jax.tree.unflatten(plan.tree, [values[k] for k in range(len(outs))])


def _as_buffers(tree: Any) -> Any:
    """Returns a tree with arrays as buffers."""
    return jax.tree.map(lambda x: x if is_memory(x) else as_buffer(x), tree, is_leaf=is_memory)


def _unmapped(mapping: Mapping, plan: Plan, args: Any, kwargs: Any) -> dict[int, Any]:
    """Returns results that some level does not map (`out_axes=None`), computed once by JAX, which checks that."""
    wanted = [k for k, slot in enumerate(plan.slots) if slot is None]
    if not wanted:
        return {}
    context = get_current()
    assert context is not None
    args, kwargs = as_values((args, kwargs))
    context.lanes = REFERENCE
    try:
        outs = mapping.by_jax(args, kwargs, keep=wanted)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise TraceValueError.here(
            "qd.vmap: a result with out_axes=None depends on a mapped argument",
            help="give the result an axis, as in out_axes=0",
        ) from None
    finally:
        context.lanes = None
    return dict(zip(wanted, outs, strict=True))


def _parts(args: Any, kwargs: Any) -> tuple[list[Part], Any]:
    leaves, tree = Mapping.flatten(args, kwargs)
    return [Part(x) for x in leaves], tree


def _lane(mapping: Mapping, parts: tuple[list[Part], Any], indices: tuple[Any, ...], most: Sequence[int] = ()) -> Any:
    """Runs one element: the first index selects here, the others in the `qd.vmap` that is called inside.

    It copies arguments of up to `most` elements, where that says something of each of them.
    """
    leaves, tree = parts
    axes = mapping.leaf_axes(*jax.tree.unflatten(tree, leaves))
    chosen = [x if a is None else x.select(a, indices[0]) for x, a in zip(leaves, axes, strict=True)]
    is_last = len(indices) == 1
    if isinstance(mapping.f, Mapped) and not is_last:
        with mapping.named(leaves, axes):
            return _lane(mapping.f.mapping, (chosen, tree), indices[1:], most)
    limits = most if len(most) == len(chosen) else [IN_PLACE] * len(chosen)
    values = [x.value(lazy=not is_last, most=n) for x, n in zip(chosen, limits, strict=True)]
    args, kwargs = jax.tree.unflatten(tree, values)
    context = get_current()
    assert context is not None
    expected = context.lanes = REFERENCE if is_last else Lane(indices[1:])
    with mapping.named(leaves, axes):
        out = without_cells(mapping.f(*args, **kwargs))
    if not is_last and context.lanes is expected:
        raise TraceValueError.here(
            "qd.vmap: the function called another qd.vmap the first time it was traced, and none the second time",
            help="let what the function does depend on its arguments only",
        )
    return out
