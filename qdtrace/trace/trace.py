"""Tracing a function: arrays in, a jaxpr whose regions own their bodies out."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace import tracebacks
from qdtrace.errors import Loc, QdError, TraceTypeError, TraceValueError
from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.arguments import as_buffer, as_values, checked_leaf, is_memory, parameters_of
from qdtrace.trace.buffers import Buffer, content_of
from qdtrace.trace.cells import Cell
from qdtrace.trace.context import new_trace, remember_finished
from qdtrace.trace.diagnosis.explain import explained
from qdtrace.trace.diagnosis.repeated import warn_of_repeated
from qdtrace.trace.diagnosis.replay import Replay, check_suspects
from qdtrace.trace.diagnosis.reports import carried, shown
from qdtrace.trace.lengths import recording
from qdtrace.trace.refs import without_refs
from qdtrace.trace.regions import restructure
from qdtrace.trace.source import traceback_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import Any

    from qdtrace.trace.context import TraceContext
    from qdtrace.trace.jaxprs import AnyJaxpr
    from qdtrace.trace.lengths import Recording
    from qdtrace.trace.tree import Root


@frozen(eq=False)
class Traced:
    """A traced function."""

    root: Root
    """Equations of the function: its parameters are the leaves of the arguments, its results those of the result."""
    out_tree: object
    names: tuple[str, ...]
    """Names of the operands, as in the signature: `x`, `state.v`."""


def _run(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    context: TraceContext,
    loc: Loc | None,
    lengths: Recording | None,
) -> object:
    for leaf in jax.tree.leaves((args, kwargs)):
        trace = compat.trace_of(leaf)
        if trace is not None:
            context.jax_traces.add(trace)
    context.jax_trace = compat.current_trace()
    leaves, tree = jax.tree.flatten((args, kwargs))
    leaves = [leaf if k in context.arrays else as_buffer(leaf) for k, leaf in enumerate(leaves)]
    if lengths is not None:
        lengths.begin_arguments(leaves)
    args, kwargs = jax.tree.unflatten(tree, leaves)
    try:
        with explained():
            try:
                result = function(*args, **kwargs)
                context.finish()
                warn_of_repeated(result, context, loc)
                return jax.tree.map(lambda leaf: _unwrap(leaf, loc), result, is_leaf=is_memory)
            except Exception as error:
                if context.again is None or error is context.error:
                    raise
                raise _second_trip_failed(context, error) from tracebacks.cause(error)
    finally:
        buffers = (k for k, leaf in enumerate(leaves) if isinstance(leaf, Buffer))
        context.readable = frozenset(k for k in buffers if id(leaves[k].tracer) not in context.written)


def _second_trip_failed(context: TraceContext, error: Exception) -> TraceValueError:
    region, changes = context.again
    raised = f"traced for a second iteration, the body raises {shown(error)}"
    loc = error.loc if isinstance(error, QdError) else traceback_loc(error.__traceback__)
    return carried(changes[0], region.name, parallel=region.parallel, loc=loc, loop=region.loc, notes=[raised])


def _unwrap(leaf: object, loc: Loc | None) -> object:
    if isinstance(leaf, Cell):
        raise TraceValueError(
            "a qd.local cannot be returned, it is gone with its iteration",
            loc=loc,
            help="store its value into a buffer",
        )
    return content_of(leaf) if isinstance(leaf, Buffer) else leaf


def _function_loc(function: Callable[..., object]) -> Loc | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else Loc(code.co_filename, code.co_firstlineno, code.co_name)


def _name_of(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def trace_function(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    static_argnums: Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    name: str = "",
    inlines: bool = False,
) -> Traced:
    """Traces a function on arrays, numbers or `jax.ShapeDtypeStruct`s, in any pytree; static ones are passed as is.

    If it `inlines`, functions of `qd.jit` that it calls become part of it.
    """
    args, keywords = as_values((tuple(args), dict(kwargs or {})))
    static_nums = {n % len(args) for n in static_argnums if -len(args) <= n < len(args)}
    dynamic_args = tuple(a for k, a in enumerate(args) if k not in static_nums)
    dynamic_kwargs = {k: v for k, v in keywords.items() if k not in static_argnames}
    static_kwargs = {k: v for k, v in keywords.items() if k in static_argnames}
    paths, in_tree = jax.tree_util.tree_flatten_with_path((dynamic_args, dynamic_kwargs))
    names = tuple(_leaf_name(function, path, len(args), static_nums) for path, _ in paths)
    leaves = [checked_leaf(leaf, leaf_name) for (_, leaf), leaf_name in zip(paths, names, strict=True)]
    name = name or _name_of(function)
    loc = _function_loc(function)
    lengths = recording()
    if lengths is not None and not lengths.is_of(leaves):
        lengths = None  # of a function that calls this one
    out_tree: object = None

    def trace_in(context: TraceContext) -> AnyJaxpr:
        def flat(*values: object) -> list[object]:
            nonlocal out_tree
            rest, given = jax.tree.unflatten(in_tree, values)
            moving = iter(rest)
            full = [args[k] if k in static_nums else next(moving) for k in range(len(args))]
            result = _run(functools.partial(function, **static_kwargs), full, given, context, loc, lengths)
            outputs, out_tree = jax.tree.flatten(result)
            return [_check_output(o, loc) for o in outputs]

        try:
            made = jax.make_jaxpr(flat)(*leaves)
            closed = without_refs(made)
            context.has_refs = closed is not made
            return closed
        finally:
            remember_finished(context)

    def trace_with(arrays: frozenset[int]) -> Traced:
        nonlocal readable, out_tree

        def trace_again(left_out: Mapping[Hashable, int]) -> Replay:
            with new_trace(name) as other:
                other.watching, other.left_out, other.arrays = False, left_out, arrays
                other.inlines, other.function = inlines, function
                return Replay(trace_in(other), other.uids)

        with new_trace(name) as context:
            context.arrays, context.inlines, context.function = arrays, inlines, function
            try:
                closed = trace_in(context)
            finally:
                readable = context.readable
            root = restructure(closed, is_function=True, has_refs=context.has_refs)
            if context.suspects:
                tree = out_tree
                check_suspects(context, Replay(closed, context.uids), trace_again)
                out_tree = tree
        return Traced(root, out_tree, names)

    readable: frozenset[int] = frozenset()
    try:
        return trace_with(frozenset())
    except Exception as failed:
        if not (readable and _wants_arrays(failed)):
            raise
        error = failed
    # A function of JAX compares arguments with results: an argument that nothing stores into may be an array.
    try:
        return trace_with(readable)
    except Exception as again:
        if isinstance(again, QdError) and again.wants != "buffer":
            raise
    raise error


def _wants_arrays(error: Exception) -> bool:
    """Returns whether an array in place of a buffer may mend an error; other packages check types by one of theirs."""
    if isinstance(error, QdError):
        return error.wants == "array"
    return isinstance(error, (AssertionError, TypeError)) or "Buffer" in str(error)


def _check_output(leaf: object, loc: Loc | None) -> object:
    if isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)):
        return jnp.asarray(leaf)
    if is_async := inspect.iscoroutine(leaf):
        leaf.close()  # else Python warns that nobody awaits it
    raise TraceTypeError(
        f"a qd.jit function needs to return arrays, numbers or pytrees of them, got {type(leaf).__name__}",
        loc=loc,
        help="write `def` in place of `async def`" if is_async else "return the parts that are arrays",
    )


def _leaf_name(function: Callable[..., object], path: tuple[Any, ...], count: int, static_nums: set[int]) -> str:
    """Returns the name of a leaf of the arguments: `x` or `state.v`."""
    where, which, *rest = path
    inner = jax.tree_util.keystr(tuple(rest))
    if where.idx == 1:
        return f"{which.key}{inner}"
    position, parameters = [k for k in range(count) if k not in static_nums][which.idx], parameters_of(function)
    if position < len(parameters) and parameters[position].kind is not inspect.Parameter.VAR_POSITIONAL:
        return f"{parameters[position].name}{inner}"
    return f"arg{position}{inner}"
