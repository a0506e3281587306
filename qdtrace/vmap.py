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
    arguments, `out_axes` one over the results; keyword arguments are mapped over their first axis. A `while_loop` in
    `f` stops per element.

    Raises TraceValueError when nothing is mapped or batch sizes differ, TraceTypeError for an axis out of range.
    """
    from qdtrace.api import jit

    def mapped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _one_task(f, in_axes, out_axes, args, kwargs)

    mapped.__name__ = getattr(f, "__name__", type(f).__name__)
    jitted = jit(mapped)

    @functools.wraps(f)
    def batched(*args: Any, **kwargs: Any) -> Any:
        return jitted(args, kwargs)

    batched.jitted = jitted  # type: ignore[attr-defined]
    return batched


def _one_task(f: Callable[..., Any], in_axes: Any, out_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_buffer)
    spec = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    axes = [*_flat_axes(spec, args, "in_axes", "arguments"), *_flat_axes(0, kwargs, "in_axes", "arguments")]
    size = _batch_size(leaves, axes)
    element = [
        jax.ShapeDtypeStruct(_without(x.shape, a), x.dtype) if a is not None else jax.ShapeDtypeStruct(x.shape, x.dtype)
        for x, a in zip(leaves, axes, strict=True)
    ]
    ordered, named = jax.tree.unflatten(tree, element)
    shapes = jax.eval_shape(f, *ordered, **named)
    out_leaves, out_tree = jax.tree.flatten(shapes)
    results = _flat_axes(out_axes, shapes, "out_axes", "results")
    outs = []
    for s, a in zip(out_leaves, results, strict=True):
        if a is None:
            raise TraceValueError("needs an integer for every leaf of out_axes, got None")
        if not -len(s.shape) - 1 <= a <= len(s.shape):
            batched = (size, *s.shape)
            raise TraceTypeError(f"needs an axis within the rank of the result, got axis {a} of shape {batched}")
        axis = a % (len(s.shape) + 1)
        words, dtype = ((2,), jnp.uint32) if _is_key(s) else ((), s.dtype)
        outs.append((empty((*s.shape[:axis], size, *s.shape[axis:], *words), dtype), axis))
    shared = [x[...] if a is None and getattr(x, "ndim", 0) > 0 else x for x, a in zip(leaves, axes, strict=True)]
    impls: list[Any] = [None] * len(outs)
    for i in qd_range(size):
        values = [x if a is None else jnp.asarray(x[_at(i, a, x.ndim)]) for x, a in zip(shared, axes, strict=True)]
        ordered, named = jax.tree.unflatten(tree, values)
        ys = jax.tree.leaves(f(*ordered, **named))
        impls = [jax.random.key_impl(y) if _is_key(y) else None for y in ys]
        for (buffer, axis), y in zip(outs, ys, strict=True):
            buffer[_at(i, axis, buffer.ndim)] = jax.random.key_data(y) if _is_key(y) else y
    mapped = [
        b if impl is None else jax.random.wrap_key_data(b[...], impl=impl)
        for (b, _), impl in zip(outs, impls, strict=True)
    ]
    return jax.tree.unflatten(out_tree, mapped)


def _flat_axes(axes: Any, tree: Any, what: str, of: str) -> list[int | None]:
    """The axes of a prefix pytree, one per leaf."""
    try:
        spread = jax.tree.map(
            lambda a, t: jax.tree.map(lambda _: _Axis(a), t, is_leaf=_is_buffer),
            axes,
            tree,
            is_leaf=lambda a: a is None,
        )
        flat = [axis.value for axis in jax.tree.leaves(spread)]
    except ValueError:
        flat = [axes]
    if all(a is None or (isinstance(a, int) and not isinstance(a, bool)) for a in flat):
        return flat
    raise TraceTypeError(f"needs {what} to be an int, None or a prefix of the {of}' pytree, got {axes!r}")


def _is_key(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


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
