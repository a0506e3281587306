"""`qd.sparsity`: which entries of an argument meet in a term."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.api import to_jax
from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.sparse.arguments import avals_of, checked_argument, compiled, evaluated, function_of, shapes_like
from qdtrace.sparse.behind import check_plain
from qdtrace.sparse.gathering import Gathering
from qdtrace.sparse.layouts import block_of, touched_by
from qdtrace.sparse.meeting import is_repeated, which_meet, with_repeated
from qdtrace.sparse.pairs import merged, ranks
from qdtrace.sparse.pattern import Sparsity, Table
from qdtrace.sparse.reading import read, refusal, type_of
from qdtrace.trace import markers
from qdtrace.trace.allocation import empty
from qdtrace.trace.arguments import is_memory
from qdtrace.trace.compat import Tracer
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.tree import body_of, loc_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qdtrace.sparse.layouts import Layout, Touched
    from qdtrace.sparse.reading import Reading

MOST_ENTRIES = 2**31 - 1
"""Most entries of a pattern: their numbers are i32."""


@boundary
def sparsity(f: Callable[..., Any], argnum: int = 0) -> Callable[..., Sparsity]:
    """Returns a function of the arguments of `f` that reads from its loops which derivatives may differ from 0.

    A scalar that loops sum has second derivatives by two entries of the argument that one iteration loads for one term;
    an array has first ones by the entries that go into what an iteration writes. A term that is linear in its entries
    has no second ones. Indices are computed as the function computes them, once for each iteration; nothing is probed.
    Conditions that depend on the argument count as true, jumps that do as not taken. An index outside of its array is
    an error, with the option `bounds="clip"` too. `f` is a `qd.jit` function, or one that may be; those that it calls
    are a part of it.

    >>> @qd.jit
    ... def energy(x):
    ...     out = qd.zeros((), x.dtype)
    ...     for i in qd.range(x.shape[0] - 1):
    ...         out[()] += (x[i + 1] - x[i]) ** 4
    ...     return out
    >>> pattern = qd.sparsity(energy)(jnp.arange(3.0))
    >>> pattern.row.tolist(), pattern.col.tolist()
    ([0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2])

    Args:
        f: the function. It returns one scalar, linear in what its loops have accumulated or stored, or one array, as
            its loops have left it.
        argnum: position of the argument, an array of floats with at least one axis.

    Raises:
        TraceTypeError: of the argument; when it is called inside of `jax.jit`, as a pattern's size depends on values.
        GradientError: when it is called: no pattern can be read from `f`, with the construct and its line.
        TraceValueError: likewise: the pattern has `2**31` entries or more.
    """
    if type(argnum) is not int or argnum < 0:
        raise TraceTypeError.here(
            f"qd.sparsity needs the position of one argument, got {argnum!r}", help="count from 0: `qd.sparsity(f, 1)`"
        )
    function, name = function_of(f, "qd.sparsity")

    @boundary
    def pattern(*args: Any) -> Sparsity:
        args = to_jax(args)
        leaves = jax.tree.leaves(args)
        if any(isinstance(x, Tracer) for x in leaves) or any(map(is_memory, leaves)):
            raise TraceTypeError.here(
                "qd.sparsity needs arrays, got traced values",
                help="make the pattern outside of jax.jit: its size depends on them",
            )
        checked_argument(args, argnum, "qd.sparsity")
        return _made(f, function, name, args, argnum)

    return pattern


def _made(f: Any, function: Any, name: str, args: tuple[Any, ...], argnum: int) -> Sparsity:
    reading = read(function, shapes_like(args), argnum, name)
    is_second, x = reading.root.results[0].aval.shape == (), args[argnum]
    if not is_second:
        check_plain(reading)
    touched = [touched_by(reading, region) for region in reading.loops]
    meeting: list[Any] = []

    def places(*args: Any) -> Any:
        meeting.clear()
        env = evaluated(reading, args)
        return [_places(reading, own, env, meeting, is_second=is_second) for own in touched]

    firsts = compiled(places, f, pure=False)(*args)  # always traced, as `meeting` is needed
    used = [own for own, meets in zip(touched, meeting, strict=True) if meets.any()]
    width = block_of([layout for t in used for layout in t.loads])
    height = width if is_second else block_of([layout for t in used for layout in t.writes])
    _check_stores(reading, touched, [np.asarray(written) for _, written in firsts])
    shape = (x.size if is_second else math.prod(type_of(reading.outputs[0]).shape), x.size)
    pairs: list[tuple[Any, Any, Any]] = []
    for (read_at, written), t, meets in zip(firsts, touched, meeting, strict=True):
        columns = _blocks(read_at, t.loads if meets.any() else (), width)
        rows = columns if is_second else _blocks(written, t.writes if meets.any() else (), height)
        of_blocks = _of_blocks(meets, t, (height, width), is_second=is_second)
        pairs.append((rows, columns, with_repeated(of_blocks, np.asarray(columns)) if is_second else of_blocks))
    indptr, indices = merged(pairs, (shape[0] // height, shape[1] // width))
    if indices.size * width * height > MOST_ENTRIES:
        raise TraceValueError.here(f"a pattern has up to {MOST_ENTRIES} entries, got {indices.size * width * height}")
    ptr, ind = jnp.asarray(indptr), jnp.asarray(indices)
    tables: list[Table] = []
    for (read_at, written), t, (rows, columns, meets) in zip(firsts, touched, pairs, strict=True):
        kept = written[:, np.asarray(t.kept(range(len(t.writes)), is_second), int)]
        numbers = ranks(rows, columns, ptr, ind)
        may_miss = bool((columns < 0).any()) or bool((rows < 0).any()) or not meets.all()
        repeats = is_second and bool(is_repeated(np.asarray(columns)).any())
        tables.append(Table(read_at, kept, jnp.where(meets, numbers, -1), may_miss, repeats))
    of = jnp.asarray(np.repeat(np.arange(indptr.size - 1, dtype=np.int32), np.diff(indptr)))
    mirror = ranks(ind[:, None], of[:, None], ptr, ind)[:, 0, 0] if is_second else ind
    return Sparsity(ptr, ind, of, mirror, tuple(tables), shape, (height, width), argnum, is_second, avals_of(args))


def _places(reading: Reading, touched: Touched, env: Mapping[Any, Any], meeting: list[Any], *, is_second: bool) -> Any:
    """Returns buffers with the places that each iteration loads from the argument, and writes.

    It appends to `meeting` which of them meet.
    """
    count, body = len(touched.trips), body_of(touched.region)
    outputs: dict[Any, Any] = {v: empty(type_of(v).shape, type_of(v).dtype) for v in reading.outputs}
    env = {**env, **{v: buffer.handle for v, buffer in outputs.items()}}  # indices of what is written are checked
    read_at = empty((count, len(touched.loads)), jnp.int32)
    written = empty((count, len(touched.writes)), jnp.int32)
    for t in qd_range(count):
        walk = Gathering(reading, {**env, body.invars[0]: t * touched.trips.step + touched.trips.start})
        walk.run(body.eqns)
        meeting.append(which_meet(reading, touched, walk, is_second=is_second))
        for k, first in enumerate(walk.read):
            read_at[t, k] = first
        for k, first in enumerate(walk.written):
            written[t, k] = first
    return read_at, written


def _of_blocks(meets: Any, touched: Touched, block: tuple[int, int], *, is_second: bool) -> Any:
    """Returns which blocks meet, where rows and columns are loads or writes that do; none if nothing does."""
    if not meets.any():
        return np.zeros((0, 0), bool)
    own = touched.loads if is_second else touched.writes
    rows, columns = ([layout.size // n for layout in a] for a, n in ((own, block[0]), (touched.loads, block[1])))
    return np.repeat(np.repeat(meets, rows, axis=0), columns, axis=1)


def _blocks(firsts: jax.Array, layouts: Sequence[Layout], length: int) -> jax.Array:
    """Returns the blocks that iterations touch, of shape [iterations, blocks]."""
    found = [b for k, layout in enumerate(layouts) for b in layout.blocks(firsts[:, k], length)]
    return jnp.stack(found, axis=-1) if found else jnp.zeros((firsts.shape[0], 0), jnp.int32)


def _check_stores(reading: Reading, touched: Sequence[Touched], written: Sequence[Any]) -> None:
    """Refuses elements that are stored and written once more, of which the last store counts."""
    excludes = [own.exclude() for own in touched]
    for output in reading.outputs:
        writes = [
            (eqn, layout.blocks(firsts[:, k], 1), (n, k, eqn.primitive is markers.store_p))
            for n, (own, firsts) in enumerate(zip(touched, written, strict=True))
            for k, (eqn, layout) in enumerate(zip(own.write_eqns, own.writes, strict=True))
            if eqn.invars[0] is output
        ]
        stores = [eqn for eqn, _, (*_, is_store) in writes if is_store]
        if stores and _are_met_twice([(blocks, who) for _, blocks, who in writes], excludes):
            loc = loc_of(stores[-1])
            raise refusal("a store into an element that is written once more", loc, "accumulate: `out[i] += v`")


def _are_met_twice(writes: Sequence[tuple[Any, tuple[int, int, bool]]], excludes: Sequence[Any]) -> bool:
    """Returns whether a store and another write, both of which may be made, meet in an element.

    Args:
        writes: the elements that each iteration touches by a write, -1 for none, with the number of the loop, that of
            the write in it, and whether it is a store.
        excludes: for each loop which writes exclude each other in one iteration.
    """
    found: list[Any] = []
    for blocks, (n, k, is_store) in writes:
        for block in map(np.asarray, blocks):
            own = np.broadcast_to([n, k, is_store], (block.size, 3))
            found.append(np.column_stack([block, np.arange(block.size), own]))
    every = np.concatenate(found)
    every = every[every[:, 0] >= 0]
    every = every[np.argsort(every[:, 0], kind="stable")]
    for distance in range(1, len(every)):
        one, other = every[:-distance], every[distance:]
        same = one[:, 0] == other[:, 0]
        if not same.any():
            break
        met = same & ((one[:, 4] | other[:, 4]) > 0)
        one, other = one[met], other[met]
        if (one[:, 1:3] != other[:, 1:3]).any():  # of different iterations or loops
            return True
        pairs = np.unique(np.column_stack([one[:, 2], one[:, 3], other[:, 3]]), axis=0).tolist()
        if not all(excludes[n][k, m] for n, k, m in pairs):
            return True
    return False
