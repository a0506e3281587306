"""Patterns of derivatives, and the formats of sparse matrices that their values have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from qdtrace.errors import TraceValueError, boundary
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from types import ModuleType


def _sparse() -> ModuleType:
    """Returns the module `jax.experimental.sparse`, which takes longer to import than this package."""
    from jax.experimental import sparse

    return sparse


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
    repeats: bool
    """True if an iteration loads some block more than once."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of iterations, loads, kept writes; of rows and columns if some meet."""
        return (*self.read.shape, self.written.shape[1], *(self.pairs.shape[1:] if self.is_used else ()))

    @property
    def is_used(self) -> bool:
        """True if some pair may meet."""
        return 0 not in self.pairs.shape[1:]


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
    mirror: jax.Array
    """The number of the block that is the transpose of each, of second derivatives."""
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

    def _checked(self, values: jax.Array, what: str) -> jax.Array:
        if jnp.shape(values) != (self.nse,):
            raise TraceValueError.here(
                f"{what} needs a value for each of the {self.nse} entries, got shape {jnp.shape(values)}",
                help="give it what `qd.sparse_hessian(f, pattern)` or `qd.sparse_jacobian` computes",
            )
        return values

    def _starts(self) -> jax.Array:
        """Returns where each row begins among the entries."""
        height, width = self.block
        counts = jnp.repeat(jnp.diff(self.indptr) * width, height, total_repeat_length=self.shape[0])
        return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])

    @boundary
    def to_bcoo(self, values: jax.Array) -> Any:
        """Returns values in the pattern's order as a `jax.experimental.sparse.BCOO`.

        >>> pattern = qd.sparsity(qd.vmap(jnp.square))(jnp.arange(2.0))
        >>> pattern.to_bcoo(jnp.array([3.0, 4.0])) @ jnp.ones(2)
        Array([3., 4.], dtype=float32)

        Args:
            values: an array of `nse` numbers.

        Raises:
            TraceValueError: it has another shape.
        """
        parts = self._checked(values, "to_bcoo"), jnp.stack([self.row, self.col], axis=-1)
        return _sparse().BCOO(parts, shape=self.shape, indices_sorted=True, unique_indices=True)

    @boundary
    def to_bcsr(self, values: jax.Array) -> Any:
        """Returns values in the pattern's order as a `jax.experimental.sparse.BCSR`.

        >>> pattern = qd.sparsity(qd.vmap(jnp.square))(jnp.arange(2.0))
        >>> pattern.to_bcsr(jnp.array([3.0, 4.0])) @ jnp.ones(2)
        Array([3., 4.], dtype=float32)

        Args:
            values: an array of `nse` numbers.

        Raises:
            TraceValueError: it has another shape.
        """
        parts = self._checked(values, "to_bcsr"), self.col, self._starts()
        return _sparse().BCSR(parts, shape=self.shape, indices_sorted=True, unique_indices=True)

    @boundary
    def to_scipy(self, values: jax.Array) -> Any:
        """Returns values in the pattern's order as a `scipy.sparse.csr_array`.

        >>> pattern = qd.sparsity(qd.vmap(jnp.square))(jnp.arange(2.0))
        >>> pattern.to_scipy(jnp.array([3.0, 4.0])).toarray()
        array([[3., 0.],
               [0., 4.]], dtype=float32)

        Args:
            values: an array of `nse` numbers.

        Raises:
            TraceValueError: it has another shape.
        """
        parts = (np.asarray(x) for x in (self._checked(values, "to_scipy"), self.col, self._starts()))
        return scipy.sparse.csr_array(tuple(parts), shape=self.shape)


jax.tree_util.register_dataclass(Table, ["read", "written", "pairs"], ["may_miss", "repeats"])
jax.tree_util.register_dataclass(
    Sparsity,
    ["indptr", "indices", "block_rows", "mirror", "tables"],
    ["shape", "block", "argnum", "is_second", "avals"],
)
