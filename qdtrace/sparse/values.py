"""`qd.sparse_hessian` and `qd.sparse_jacobian`: derivatives in the order of a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.api import to_jax
from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.sparse.arguments import avals_of, checked_argument, compiled, evaluated, function_of, shapes_like
from qdtrace.sparse.behind import adjoints_of
from qdtrace.sparse.blocks import Blocks, adds_by_rows, adds_half
from qdtrace.sparse.layouts import touched_by
from qdtrace.sparse.pattern import Sparsity
from qdtrace.sparse.reading import read
from qdtrace.trace.allocation import empty, zeros
from qdtrace.trace.conditions import when
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable

    import jax


def sparse_hessian(f: Callable[..., Any], pattern: Sparsity, psd: bool = False) -> Callable[..., jax.Array]:
    """Returns a function of the arguments of `f` that computes its second derivatives, in a pattern's order.

    One task computes for each iteration the dense second derivatives of its term by the entries that it loads, and adds
    them to the pattern's. It may stand in `jax.jit` and has derivatives itself. The whole is symmetric; both halves are
    there.

    >>> @qd.jit
    ... def energy(x, ends):
    ...     out = qd.zeros((), x.dtype)
    ...     for k in qd.range(ends.shape[0]):
    ...         out[()] += (x[ends[k, 0]] - x[ends[k, 1]]) ** 4
    ...     return out
    >>> x, ends = jnp.array([0.0, 1.0, 3.0]), jnp.array([[0, 1], [1, 2]])
    >>> pattern = qd.sparsity(energy)(x, ends)
    >>> values = qd.sparse_hessian(energy, pattern)(x, ends)
    >>> pattern.to_scipy(values).toarray()
    array([[ 12., -12.,   0.],
           [-12.,  60., -48.],
           [  0., -48.,  48.]], dtype=float32)

    Args:
        f: the function that the pattern was made of.
        pattern: of `qd.sparsity(f, argnum)`.
        psd: negative eigenvalues of each term's second derivatives become 0, so that the sum has none. An entry that
            an iteration loads more than once is one variable of its term. What this gives has derivatives; second
            ones are not finite where a term has equal eigenvalues.

    Returns an array of `pattern.nse` values with the dtype of the argument. NaN in a term is NaN in its entries.

    Raises:
        TraceTypeError: `pattern` is none of second derivatives.
        TraceValueError: when it is called: arguments have other shapes or dtypes than those of the pattern.
        CheckError: when it runs: an iteration loads other entries than it did for the pattern.
        GradientError: of what `qd.sparsity` refuses.
    """
    return _values(f, pattern, "qd.sparse_hessian", is_second=True, psd=psd)


def sparse_jacobian(f: Callable[..., Any], pattern: Sparsity) -> Callable[..., jax.Array]:
    """Returns a function of the arguments of `f` that computes its first derivatives, in a pattern's order.

    >>> @qd.jit
    ... def steps(x):
    ...     out = qd.empty(x.shape[0] - 1, x.dtype)
    ...     for i in qd.range(x.shape[0] - 1):
    ...         out[i] = (x[i + 1] - x[i]) ** 2
    ...     return out
    >>> x = jnp.array([0.0, 1.0, 3.0])
    >>> pattern = qd.sparsity(steps)(x)
    >>> pattern.to_scipy(qd.sparse_jacobian(steps, pattern)(x)).toarray()
    array([[-2.,  2.,  0.],
           [ 0., -4.,  4.]], dtype=float32)

    Args:
        f: the function that the pattern was made of, which returns one array.
        pattern: of `qd.sparsity(f, argnum)`.

    Returns an array of `pattern.nse` values with the dtype of the argument.

    Raises:
        TraceTypeError: `pattern` is none of first derivatives.
        TraceValueError: when it is called: arguments have other shapes or dtypes than those of the pattern.
        CheckError: when it runs: an iteration loads or writes other entries than it did for the pattern.
        GradientError: of what `qd.sparsity` refuses.
    """
    return _values(f, pattern, "qd.sparse_jacobian", is_second=False, psd=False)


@boundary
def _values(f: Any, pattern: Any, what: str, *, is_second: bool, psd: bool) -> Callable[..., jax.Array]:
    if not isinstance(pattern, Sparsity):
        help = "make one: `qd.sparsity(f, argnum)(*args)`"
        raise TraceTypeError.here(f"{what} needs a pattern, got {type(pattern).__name__}", help=help)
    if pattern.is_second is not is_second:
        got, other = ("a scalar", "qd.sparse_hessian") if pattern.is_second else ("an array", "qd.sparse_jacobian")
        raise TraceTypeError.here(f"{what} got a pattern of a function that returns {got}", help=f"use {other}")
    function, name = function_of(f, what)

    def values(pattern: Sparsity, *args: Any) -> Any:
        return _by_rows(_in_blocks(function, name, pattern, args, psd=psd), pattern)

    values.__name__ = f"{'second' if is_second else 'first'}_derivatives_of_{name.strip('<>')}"
    run = compiled(values, f, "pattern_of_derivatives")

    @boundary
    def call(*args: Any) -> jax.Array:
        args = to_jax(args)
        checked_argument(args, pattern.argnum, what)
        if (got := avals_of(args)) != pattern.avals:
            raise _of_other_sizes(what, got, pattern.avals)
        return run(pattern, *args)

    return call


def _of_other_sizes(what: str, got: Any, needed: Any) -> TraceValueError:
    shown = [", ".join(f"{dtype}{list(shape)}" for shape, dtype in avals) for avals in (needed, got)]
    return TraceValueError.here(
        f"{what} needs arguments of the pattern's sizes ({shown[0]}), got {shown[1]}",
        help="make a pattern of these arguments: `qd.sparsity(f, argnum)(*args)`",
    )


def _in_blocks(function: Any, name: str, pattern: Sparsity, args: tuple[Any, ...], *, psd: bool) -> Any:
    """Returns a buffer of the pattern's blocks."""
    reading = read(function, shapes_like(args), pattern.argnum, name)
    env = evaluated(reading, args)
    adjoints = adjoints_of(reading, env) if pattern.is_second else {}
    out = zeros((pattern.indices.shape[0], *pattern.block), args[pattern.argnum].dtype)
    touched = [touched_by(reading, region) for region in reading.loops]
    kept = [(table.sizes, table.is_used) for table in pattern.tables]
    if len(kept) != len(touched) or any(
        own.sizes(*pattern.block, pattern.is_second, is_used) != sizes
        for own, (sizes, is_used) in zip(touched, kept, strict=True)
    ):
        raise TraceValueError.here(
            f"the pattern is of another function than {name}, or of one that has changed", help="make a new pattern"
        )
    for own, table in zip(touched, pattern.tables, strict=True):
        if not table.is_used:
            continue
        height = pattern.block[0]
        if pattern.is_second and height > 1 and not psd and adds_by_rows():
            for t, part in ndrange(len(own.trips), height):
                Blocks(reading, own, table, pattern.block, pattern.is_second, t, part, psd).add(env, adjoints, out)
        else:
            for t in qd_range(len(own.trips)):
                Blocks(reading, own, table, pattern.block, pattern.is_second, t, None, psd).add(env, adjoints, out)
    return out


def _by_rows(blocks: Any, pattern: Sparsity) -> Any:
    """Returns the elements of blocks by the rows of the whole matrix."""
    height, width = pattern.block
    if height == 1:
        return blocks[...].reshape(-1)
    count = pattern.indices.shape[0]
    out = empty((count * height, width), blocks.dtype)
    for k in qd_range(count):
        row = pattern.block_rows[k]
        first, end = pattern.indptr[row], pattern.indptr[row + 1]
        for part in qd_range(height):  # parts of a row of blocks lie side by side in both orders
            values = local(blocks[k, part])
            if pattern.is_second:
                mirror = pattern.mirror[k]
                with when(adds_half() & (mirror <= k)):
                    is_left = (mirror < k) | (jnp.arange(width) < part)
                    values.value = jnp.where(is_left, blocks[mirror, :, part], values.value)
            out[first * (height - 1) + k + part * (end - first)] = values.value
    return out[...].reshape(-1)
