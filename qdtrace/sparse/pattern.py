"""`qd.sparsity` and what it gives: which entries of an argument meet in a term."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from qdtrace.api import jit, to_jax
from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.frozen import frozen
from qdtrace.sparse.arguments import avals_of, checked_argument, evaluated, function_of, shapes_like
from qdtrace.sparse.behind import check_plain
from qdtrace.sparse.layouts import block_of, touched_by
from qdtrace.sparse.reading import read, refusal, type_of
from qdtrace.sparse.walk import Gathering
from qdtrace.trace import markers
from qdtrace.trace.allocation import empty
from qdtrace.trace.arguments import is_memory
from qdtrace.trace.cells import local
from qdtrace.trace.compat import Tracer
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.loops import while_
from qdtrace.trace.tree import body_of, loc_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qdtrace.sparse.layouts import Layout, Touched
    from qdtrace.sparse.reading import Reading

MOST_ENTRIES = 2**31 - 1
"""Most entries of a pattern: their numbers are i32."""


@frozen(eq=False)
class Table:
    """The accesses of all iterations of a loop."""

    read: jax.Array
    """First elements or rows of loads of the argument, i32 of shape [iterations, loads]; -1 for none."""
    written: jax.Array
    """The same of writes that rows or values depend on."""
    pairs: jax.Array
    """Numbers of the pairs of blocks in the pattern, i32 of shape [iterations, rows, columns]; -1 for none."""
    may_miss: bool
    """True if some pair is none."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of iterations, loads, kept writes, rows and columns."""
        return (*self.read.shape, self.written.shape[1], *self.pairs.shape[1:])


@frozen(eq=False)
class Sparsity:
    """A pattern of derivatives: the entries that may differ from 0, by rows and columns of flattened arrays.

    `qd.sparsity` makes one. Values stand in its order: by rows, then by columns. It is a pytree, so that it may be an
    argument of a `jax.jit` function.

    >>> @qd.jit
    ... def squares(x):
    ...     out = qd.empty_like(x)
    ...     for i in qd.range(x.shape[0]):
    ...         out[i] = x[i] ** 2
    ...     return out
    >>> pattern = qd.sparsity(squares)(jnp.arange(2.0))
    >>> pattern.shape, pattern.nse, pattern.to_bcoo(jnp.ones(2)).todense().tolist()
    ((2, 2), 2, [[1.0, 0.0], [0.0, 1.0]])
    """

    indptr: jax.Array
    """Offsets of each row of blocks, and the end."""
    indices: jax.Array
    """The column of each block."""
    block_rows: jax.Array
    """The row of each block."""
    tables: tuple[Table, ...]
    shape: tuple[int, int]
    """Numbers of rows and columns."""
    block: tuple[int, int]
    """Rows and columns of a block."""
    argnum: int
    is_second: bool
    """True for second derivatives of a scalar, False for first ones of an array."""
    avals: tuple[tuple[tuple[int, ...], str], ...]
    """Shapes and dtypes of the arguments that it was read with."""

    @property
    def nse(self) -> int:
        """Number of entries."""
        return self.indices.shape[0] * math.prod(self.block)

    @property
    def row(self) -> jax.Array:
        """Rows of the entries, i32."""
        lengths = jnp.diff(self._starts())
        return jnp.repeat(jnp.arange(self.shape[0], dtype=jnp.int32), lengths, total_repeat_length=self.nse)

    @property
    def col(self) -> jax.Array:
        """Columns of the entries, i32."""
        row, width = self.row, self.block[1]
        if not self.nse:
            return row
        offset = jnp.arange(self.nse, dtype=jnp.int32) - self._starts()[row]
        return self.indices[self.indptr[row // self.block[0]] + offset // width] * width + offset % width

    def _starts(self) -> jax.Array:
        """Returns where each row begins among the entries."""
        height, width = self.block
        counts = jnp.repeat(jnp.diff(self.indptr) * width, height, total_repeat_length=self.shape[0])
        return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])

    def to_bcoo(self, values: jax.Array) -> Any:
        """Returns values in the pattern's order as a `jax.experimental.sparse.BCOO`."""
        from jax.experimental.sparse import BCOO  # only here: it takes time to import

        at = jnp.stack([self.row, self.col], axis=-1)
        return BCOO((values, at), shape=self.shape, indices_sorted=True, unique_indices=True)

    def to_bcsr(self, values: jax.Array) -> Any:
        """Returns values in the pattern's order as a `jax.experimental.sparse.BCSR`."""
        from jax.experimental.sparse import BCSR  # only here, as above

        return BCSR((values, self.col, self._starts()), shape=self.shape, indices_sorted=True, unique_indices=True)

    def to_scipy(self, values: jax.Array) -> Any:
        """Returns values in the pattern's order as a `scipy.sparse.csr_array`."""
        parts = (np.asarray(x) for x in (values, self.col, self._starts()))
        return scipy.sparse.csr_array(tuple(parts), shape=self.shape)


jax.tree_util.register_dataclass(Table, ["read", "written", "pairs"], ["may_miss"])
jax.tree_util.register_dataclass(
    Sparsity,
    ["indptr", "indices", "block_rows", "tables"],
    ["shape", "block", "argnum", "is_second", "avals"],
)


@boundary
def sparsity(f: Callable[..., Any], argnum: int = 0) -> Callable[..., Sparsity]:
    """Returns a function of the arguments of `f` that reads from its loops which derivatives may differ from 0.

    A scalar that loops sum has second derivatives by two entries of the argument where one iteration loads both; an
    array has first ones by the entries that an iteration loads which writes the element. Indices are computed as the
    function computes them, once for each iteration; nothing is probed. Conditions that depend on the argument count as
    true. `f` is a `qd.jit` function, or one that may be.

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
        raise TraceTypeError.here(f"qd.sparsity needs the position of one argument, got {argnum!r}")
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
        return _made(function, name, args, argnum)

    return pattern


def _made(function: Any, name: str, args: tuple[Any, ...], argnum: int) -> Sparsity:
    reading = read(function, shapes_like(args), argnum, name)
    is_second, x = reading.root.results[0].aval.shape == (), args[argnum]
    if not is_second:
        check_plain(reading)
    touched = [touched_by(reading, region) for region in reading.loops]
    width = block_of([layout for t in touched for layout in t.loads])
    height = width if is_second else block_of([layout for t in touched for layout in t.writes])

    def places(*args: Any) -> Any:
        env = evaluated(reading, args)
        return [_places(reading, own, env) for own in touched]

    firsts = jit(places)(*args)
    columns = [_blocks(read_at, t.loads, width) for (read_at, _), t in zip(firsts, touched, strict=True)]
    rows = [_blocks(written, t.writes, height) for (_, written), t in zip(firsts, touched, strict=True)]
    check_stores(reading, touched, [np.asarray(written) for _, written in firsts])
    rows = columns if is_second else rows
    shape = (x.size if is_second else math.prod(type_of(reading.outputs[0]).shape), x.size)
    indptr, indices = _merged(rows, columns, (shape[0] // height, shape[1] // width))
    if indices.size * width * height > MOST_ENTRIES:
        raise TraceValueError.here(f"a pattern has up to {MOST_ENTRIES} entries, got {indices.size * width * height}")
    ptr, ind = jnp.asarray(indptr), jnp.asarray(indices)
    tables: list[Table] = []
    for (read_at, written), t, r, c in zip(firsts, touched, rows, columns, strict=True):
        kept = written[:, np.asarray(t.kept(range(len(t.writes)), is_second), int)]
        may_miss = bool((c < 0).any()) or bool((r < 0).any())
        tables.append(Table(read_at, kept, _ranks(r, c, ptr, ind), may_miss))
    of = jnp.asarray(np.repeat(np.arange(indptr.size - 1, dtype=np.int32), np.diff(indptr)))
    return Sparsity(ptr, ind, of, tuple(tables), shape, (height, width), argnum, is_second, avals_of(args))


def _places(reading: Reading, touched: Touched, env: Mapping[Any, Any]) -> Any:
    """Returns buffers with the places that each iteration loads from the argument, and writes."""
    count, body = len(touched.trips), body_of(touched.region)
    read_at = empty((count, len(touched.loads)), jnp.int32)
    written = empty((count, len(touched.writes)), jnp.int32)
    for t in qd_range(count):
        walk = Gathering(reading, {**env, body.invars[0]: t * touched.trips.step + touched.trips.start})
        walk.run(body.eqns)
        for k, first in enumerate(walk.read):
            read_at[t, k] = first
        for k, first in enumerate(walk.written):
            written[t, k] = first
    return read_at, written


def _blocks(firsts: jax.Array, layouts: Sequence[Layout], length: int) -> jax.Array:
    """Returns the blocks that iterations touch, of shape [iterations, blocks]."""
    found = [b for k, layout in enumerate(layouts) for b in layout.blocks(firsts[:, k], length)]
    return jnp.stack(found, axis=-1) if found else jnp.zeros((firsts.shape[0], 0), jnp.int32)


def _merged(rows: Any, columns: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Returns the pairs of blocks, once each and in order, as `indptr` and `indices`."""
    pairs: list[Any] = []
    for r, c in zip(map(np.asarray, rows), map(np.asarray, columns), strict=True):
        both = np.broadcast_arrays(r[:, :, None], c[:, None, :])
        kept = (both[0] >= 0) & (both[1] >= 0)
        pairs.append([x[kept] for x in both] if not kept.all() else [x.ravel() for x in both])
    r, c = (np.concatenate([p[k] for p in pairs] or [np.zeros(0, np.int32)]) for k in (0, 1))
    if not r.size:
        return np.zeros(shape[0] + 1, np.int32), np.zeros(0, np.int32)
    found = scipy.sparse.csr_array((np.ones(r.size, np.int8), (r, c)), shape=shape)
    found.sort_indices()
    return found.indptr.astype(np.int32), found.indices.astype(np.int32)


@jit
def _ranks(rows: Any, columns: Any, indptr: Any, indices: Any) -> Any:
    """Returns the numbers of pairs of blocks, by a search in the columns of a row."""
    (count, height), width = rows.shape, columns.shape[1]
    out = empty((count, height, width), jnp.int32)
    for t in qd_range(count * height * width):
        k, a, b = t // (height * width), t // width % height, t % width
        row, column = rows[k, a], columns[k, b]
        low, high = local(indptr[jnp.maximum(row, 0)]), local(indptr[jnp.maximum(row, 0) + 1])
        for _ in while_(lambda low=low, high=high: low.value < high.value):
            middle = (low.value + high.value) // 2
            is_below = indices[middle] < column
            low.value, high.value = jnp.where(is_below, middle + 1, low.value), jnp.where(is_below, high.value, middle)
        out[k, a, b] = jnp.where((row < 0) | (column < 0), -1, low.value)
    return out


def check_stores(reading: Reading, touched: Sequence[Touched], written: Sequence[Any]) -> None:
    """Refuses elements that are stored and written once more, of which the last store counts."""
    for output in reading.outputs:
        found: list[Any] = []
        loc = None
        for own, firsts in zip(touched, written, strict=True):
            for k, (eqn, layout) in enumerate(zip(own.write_eqns, own.writes, strict=True)):
                if eqn.invars[0] is output:
                    found += [np.asarray(b) for b in layout.blocks(firsts[:, k], 1)]
                    loc = loc_of(eqn) if eqn.primitive is markers.store_p else loc
        if loc is None:
            continue
        every = np.concatenate(found)
        every = every[every >= 0]
        if np.unique(every).size != every.size:
            raise refusal("a store into an element that is written once more", loc, "accumulate: `out[i] += v`")
