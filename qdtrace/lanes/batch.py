"""Runs the stages of a mapped function in turn: those of the whole batch by XLA, those of lanes as a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.config import current
from qdtrace.frozen import frozen
from qdtrace.groups.choice import refusal, with_groups
from qdtrace.groups.primitive import grouped
from qdtrace.groups.threads import is_for_threads
from qdtrace.lanes.elements import is_of_elements
from qdtrace.lanes.limits import limits_on_cpu, limits_on_gpu
from qdtrace.lanes.loop import looped
from qdtrace.lanes.panels import PANEL, with_kernels, with_tasks
from qdtrace.lanes.shared import cut, is_for_library
from qdtrace.lanes.stages import Stage, calls_programs, jaxprs_of, named, stages_of
from qdtrace.trace import compat
from qdtrace.trace.dependence import dependent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.lanes.loop import Value
    from qdtrace.lanes.plan import Plan


@frozen
class Split:
    """The function of one element in parts that run in turn."""

    jaxpr: Any
    """The open jaxpr of one element, of what is not computed once."""
    once: Any
    """The open jaxpr of what is computed once, as no lane differs in it; None where there is nothing."""
    stages: list[Stage]
    """Work of all lanes and of the loop over lanes."""
    varies: set[Any]
    """Variables in which lanes differ."""


def chosen_split(plan: Plan, axes: Sequence[int | None]) -> Split | None:
    """Returns the parts of a mapped function on this machine; None where all is one loop.

    The machine is that of JAX's default device: a function that is lowered for another one has this choice, too.
    """
    mode = current().array_mapping
    if mode == "lanes" or len(plan.sizes) != 1 or not plan.sizes[0]:
        return None
    lanes, jaxpr = plan.sizes[0], compat.open_jaxpr(plan.element)
    given = [v for v, axis in zip(jaxpr.invars, axes, strict=True) if axis is not None]
    varies = dependent(jaxpr, given)
    once = None
    if mode == "auto" and not compat.has_markers(jaxpr.effects) and (found := cut(jaxpr, varies, lanes)) is not None:
        once, jaxpr = found.once, found.rest
        varies = dependent(jaxpr, given)
    stages = stages_of(jaxpr, varies, None) if mode in ("batch", "group") else _stages(jaxpr, varies, lanes)
    if once is not None and not stages and jaxpr.eqns:
        stages = [Stage(tuple(jaxpr.eqns), batched=False)]
    return Split(jaxpr, once, stages, varies) if stages or once is not None else None


def _stages(jaxpr: Any, varies: set[Any], lanes: Any) -> list[Stage]:
    if jax.default_backend() != "cpu":
        return stages_of(jaxpr, varies, limits_on_gpu(jaxpr, lanes, varies))
    limits = limits_on_cpu(jaxpr, lanes)
    if calls_programs(jaxpr.eqns):
        return stages_of(jaxpr, varies, limits)
    are_many = isinstance(lanes, int) and lanes >= PANEL  # a symbol, as of `jax.export`, compares with nothing
    if limits is not None and are_many and is_of_elements(jaxpr, varies):
        return []
    return stages_of(jaxpr, varies, limits)


def run_split(plan: Plan, split: Split, given: Sequence[Value], f: Callable[..., Any]) -> list[Value]:
    """Returns the results of the function of one element, `plan.element`, for all elements."""
    jaxpr = compat.open_jaxpr(plan.element)
    size = plan.sizes[0]
    name = named(f, size)
    known: dict[Any, Value] = dict(zip(jaxpr.invars, given, strict=True))
    known.update((v, (x, None)) for v, x in zip(jaxpr.constvars, compat.constants_of(plan.element), strict=True))
    if split.once is not None:
        operands = [known[v] for v in split.once.invars]
        known.update(zip(split.once.outvars, run_once(split.once, operands, f), strict=True))
    for stage, part in zip(split.stages, jaxprs_of(split.stages, split.jaxpr.outvars), strict=True):
        operands = [known[v] for v in part.invars]
        if stage.batched:
            results = _batched(part, operands, [0 if v in split.varies else None for v in part.outvars], size, name)
        else:
            results = looped(part, operands, size, f)
        known.update(zip(part.outvars, results, strict=True))
    return [known[v] if isinstance(v, compat.Var) else (v.val, None) for v in split.jaxpr.outvars]


def run_once(part: Any, operands: Sequence[Value], f: Callable[..., Any]) -> list[Value]:
    """Runs what no lane differs in: by XLA where arrays are for libraries, and by one lane elsewhere."""
    if is_for_library(part) or calls_programs(part.eqns):
        return _batched(part, operands, [None] * len(part.outvars), 1, named(f, 1))
    return [(x[0], None) for x, _ in looped(part, operands, 1, f)]


def _batched(part: Any, operands: Sequence[Value], axes: Sequence[int | None], size: int, name: str) -> list[Value]:
    """Runs a stage for the whole batch; what no element of it differs in is computed once."""
    function = compat.function_of(part)
    in_axes = tuple(axis for _, axis in operands)
    mode = current().array_mapping
    on_cpu = jax.default_backend() == "cpu"
    as_groups = mode == "group" or (mode == "auto" and jax.default_backend() == "gpu")
    if calls_programs(part.eqns):
        on_cpu = as_groups = False  # no kernel has a program inside
    if on_cpu and not as_groups and size >= PANEL:
        function = with_tasks(function)

    def whole(*xs: Any) -> list[Any]:
        if all(axis is None for axis in in_axes):
            return list(function(*xs))
        mapped = jax.vmap(lambda *xs: list(function(*xs)), in_axes, list(axes), axis_size=size)
        if not as_groups:
            return (with_kernels(mapped) if on_cpu else mapped)(*xs)
        flags = [axis is not None for axis in in_axes]
        by_threads = mode == "auto" and None not in axes and is_for_threads(part, flags, size)
        if not by_threads and (None in axes or refusal(part, flags) is not None):
            return with_groups(mapped)(*xs)
        return grouped(function, flags, by_threads=by_threads)(
            *(x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(xs, in_axes, strict=True))
        )

    whole.__name__ = whole.__qualname__ = name
    return list(zip(jax.jit(whole)(*(x for x, _ in operands)), axes, strict=True))


def placed(value: Value, axis: int, size: int) -> Any:
    """Returns a result for all elements with their axis in this place."""
    x, found = value
    if found is not None:
        return jnp.moveaxis(x, found, axis)
    x = jnp.asarray(x)
    return jnp.broadcast_to(jnp.expand_dims(x, axis), (*x.shape[:axis], size, *x.shape[axis:]))
