"""`qd.vmap`: any JAX function of one element as one task over a batch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace.allocation import empty
from qdtrace.trace.buffers import Buffer
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable


def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Maps `f` over a batch: one thread per element, each with its own control flow.

    Takes and gives what `jax.vmap` does: `in_axes` is an int, None or a (prefix) pytree of them over the positional
    arguments, `out_axes` one over the results. A `while_loop` in `f` stops per element.

    Raises TraceValueError when nothing is mapped or batch sizes differ, TraceTypeError for an axis out of range.
    """
    from qdtrace.api import jit

    @jit
    def mapped(args: tuple[Any, ...]) -> Any:
        return _one_task(f, in_axes, out_axes, args)

    @functools.wraps(f)
    def batched(*args: Any) -> Any:
        return mapped(args)

    batched.jitted = mapped  # type: ignore[attr-defined]
    return batched


def _one_task(f: Callable[..., Any], in_axes: Any, out_axes: Any, args: tuple[Any, ...]) -> Any:
    leaves, tree = jax.tree.flatten(args, is_leaf=_is_buffer)
    spec = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    axes = _flat_axes(spec, args, "in_axes")
    size = _batch_size(leaves, axes)
    element = [
        jax.ShapeDtypeStruct(_without(x.shape, a), x.dtype) if a is not None else jax.ShapeDtypeStruct(x.shape, x.dtype)
        for x, a in zip(leaves, axes, strict=True)
    ]
    shapes = jax.eval_shape(f, *jax.tree.unflatten(tree, element))
    out_leaves, out_tree = jax.tree.flatten(shapes)
    results = _flat_axes(out_axes, shapes, "out_axes")
    outs = []
    for s, a in zip(out_leaves, results, strict=True):
        if a is None:
            raise TraceValueError("needs an integer for every leaf of out_axes, got None")
        axis = a % (len(s.shape) + 1)
        outs.append(empty((*s.shape[:axis], size, *s.shape[axis:]), s.dtype))
    shared = [x[...] if a is None and getattr(x, "ndim", 0) > 0 else x for x, a in zip(leaves, axes, strict=True)]
    for i in qd_range(size):
        values = [x if a is None else jnp.asarray(x[_at(i, a, x.ndim)]) for x, a in zip(shared, axes, strict=True)]
        ys = jax.tree.leaves(f(*jax.tree.unflatten(tree, values)))
        for buffer, a, y in zip(outs, results, ys, strict=True):
            buffer[_at(i, a, buffer.ndim)] = y
    return jax.tree.unflatten(out_tree, outs)


def _flat_axes(axes: Any, tree: Any, what: str) -> list[int | None]:
    """The axes of a prefix pytree, one per leaf."""
    try:
        spread = jax.tree.map(
            lambda a, t: jax.tree.map(lambda _: _Axis(a), t, is_leaf=_is_buffer),
            axes,
            tree,
            is_leaf=lambda a: a is None,
        )
        return [axis.value for axis in jax.tree.leaves(spread)]
    except ValueError as e:
        raise TraceTypeError(f"needs {what} to be an int, None or a prefix of the arguments' pytree, got {axes}") from e


def _is_buffer(x: Any) -> bool:
    return isinstance(x, Buffer)


class _Axis:
    """An axis as a leaf, so that None counts as one."""

    def __init__(self, value: int | None) -> None:
        self.value = value


def _batch_size(leaves: list[Any], axes: list[int | None]) -> int:
    sizes: dict[int, None] = {}
    for x, a in zip(leaves, axes, strict=True):
        if a is None:
            continue
        ndim = getattr(x, "ndim", 0)
        if not -ndim <= a < ndim:
            raise TraceTypeError(f"needs an axis within the rank of the argument, got axis {a} of shape {x.shape}")
        sizes[x.shape[a]] = None
    if not sizes:
        raise TraceValueError("needs at least one mapped argument, got in_axes=None for all")
    if len(sizes) > 1:
        raise TraceValueError(f"needs one batch size, got {', '.join(map(str, sizes))}")
    return next(iter(sizes))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def _at(i: Any, axis: int | None, ndim: int) -> tuple[Any, ...]:
    assert axis is not None
    axis %= ndim
    return (*(slice(None),) * axis, i)
