"""`qd.append`: results whose number only the run tells, pushed by loops in the order of their iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.trace import markers
from qdtrace.trace.arguments import is_memory
from qdtrace.trace.buffers import Buffer, check_outside_loops
from qdtrace.trace.context import current, emit, new_uid
from qdtrace.trace.diagnosis.aliases import note_write
from qdtrace.trace.diagnosis.attributes import StrictAttributes
from qdtrace.trace.diagnosis.results import name_of_result
from qdtrace.trace.dtypes import default_dtype, element_type
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.indexing import as_array, cast_value, is_static_int, shown, whole

if TYPE_CHECKING:
    from typing import SupportsIndex

    from jax.typing import ArrayLike

T = TypeVar("T")


class Append(StrictAttributes, Generic[T]):
    """Room for elements that loops push, and how many there are, made by `qd.append`.

    It is a pytree: a `qd.jit` function may return it, and what it then holds are arrays.

    >>> @qd.jit
    ... def odd(x):
    ...     out = qd.append(4, like=0)
    ...     for i in qd.range(x.shape[0]):
    ...         with qd.when(x[i] % 2 == 1):
    ...             out.push(x[i])
    ...     return out
    >>> out = odd(jnp.array([5, 2, 7]))
    >>> isinstance(out, qd.Append), int(out.count), out.values.tolist()
    (True, 2, [5, 7, 0, 0])
    """

    __slots__ = ("_called", "_count", "_values", "capacity")
    _noun = "qd.append"

    capacity: int
    """The most elements that it holds."""

    def __init__(self, values: T, count: jax.Array, capacity: int, called: str) -> None:
        self._values = values
        self._count = count
        self.capacity = capacity
        self._called = called

    @property
    def values(self) -> T:
        """The elements, in the tree of `like`: arrays whose first axis is the capacity, with zeros behind the last."""
        return self._values

    @property
    def count(self) -> jax.Array:
        """The number of elements, an i32: `qd.range(out.count)` loops over them."""
        return self._count[()] if isinstance(self._count, Buffer) else self._count

    def __repr__(self) -> str:
        return f"Append(capacity={self.capacity}, count={self._count})"

    @boundary
    def push(self, value: object) -> jax.Array:
        """Appends an element and returns its place, an i32.

        Places are given in the order of iterations, and within one in the order of the pushes, whatever order the
        threads run in. It may stand in loops and conditions of this package. A parallel loop counts its pushes before
        it runs, so whether it pushes may not depend on what it stores itself; its bounds are constant, or a `count`.

        >>> @qd.jit
        ... def places(x):
        ...     out, at = qd.append(4, like=0.0), qd.full(x.shape[0], -1)
        ...     for i in qd.range(x.shape[0]):
        ...         with qd.when(x[i] > 0):
        ...             at[i] = out.push(x[i])
        ...     return at
        >>> places(jnp.array([5.0, -2.0, 7.0])).tolist()
        [0, -1, 1]

        Args:
            value: a tree as `like`, whose shapes it has, or numbers that fill those.

        Raises:
            TraceTypeError: the tree, a shape or a dtype is another one, or the object was not made in this function.
            UnsupportedError: pushes of a parallel loop cannot be counted before, or stand in control flow of `lax`.
            CheckError: when it runs: there is no room. The error tells how many elements there are.
        """
        current("push")
        if not isinstance(self._count, Buffer):
            raise TraceTypeError.here(
                "a push needs a qd.append that is made in this function",
                help="make one, and push what the old one holds in a loop: `for k in qd.range(old.count)`",
            )
        have = jax.tree.structure(value, is_leaf=is_memory)
        want = jax.tree.structure(self._values, is_leaf=is_memory)
        if have != want:
            raise TraceTypeError.here(
                f"a push needs a value of the tree that `like` has, got {have} for {want}",
                help="give `like` an element as it is pushed: `qd.append(100, like=(0, 0.0))`",
            )
        buffers: list[Buffer] = jax.tree.leaves(self._values, is_leaf=is_memory)
        values = jax.tree.leaves(value, is_leaf=is_memory)
        elements = [cast_value(v, b.dtype, b.shape[1:], "a push") for v, b in zip(values, buffers, strict=True)]
        note_write(self._count)
        place = emit(markers.push_p, self._count.handle, capacity=self.capacity, called=self._called)
        for buffer, element in zip(buffers, elements, strict=True):
            note_write(buffer)
            rest = whole(buffer.shape[1:]).slices
            emit(markers.store_p, buffer.handle, element, place, slices=(None, *rest))
        return place


@overload
def append(capacity: SupportsIndex, like: ArrayLike | jax.ShapeDtypeStruct) -> Append[jax.Array]: ...
@overload
def append(capacity: SupportsIndex, like: object) -> Append[Any]: ...
@boundary
def append(capacity: SupportsIndex, like: object) -> Append[Any]:
    """Returns room for elements that loops push: `k = out.push(value)`, then `out.count` and `out.values`.

    The order is that of a serial loop, so results have the same bits in every run. Derivatives go with the elements;
    under `jax.vmap` each lane has its own count.

    >>> @qd.jit
    ... def pairs(x, limit):
    ...     out = qd.append(10, like=(0, 0))
    ...     for i in qd.range(x.shape[0]):
    ...         for j in qd.range(i + 1, x.shape[0]):
    ...             with qd.when(jnp.abs(x[i] - x[j]) < limit):
    ...                 out.push((i, j))
    ...     return out
    >>> out = pairs(jnp.array([0.0, 5.0, 1.0, 5.5]), 2.0)
    >>> int(out.count), [v[:2].tolist() for v in out.values]
    (2, [[0, 1], [2, 3]])

    Args:
        capacity: the most elements, static.
        like: an element, or a tree of such: a number, an array, or a `jax.ShapeDtypeStruct`. Its values do not matter.

    Raises:
        TraceTypeError: the capacity is no static integer, `like` has no leaves, or one is no number or array.
        TraceValueError: the capacity is not from 1 to `2**31 - 1`, or the call stands in a loop or condition.
    """
    check_outside_loops("append")
    if not is_static_int(capacity):
        raise TraceTypeError.here(
            f"qd.append needs a static capacity, got {shown(capacity)}", help="give the most that there may be, an int"
        )
    room = int(capacity)
    if not 0 < room < 1 << 31:
        raise TraceValueError.here(
            f"qd.append needs a capacity from 1 to {2**31 - 1}, got {room}",
            help="give the most elements that may be pushed; what is not used costs memory only",
        )
    name = name_of_result() or "out"
    if not jax.tree.leaves(like, is_leaf=is_memory):
        raise TraceTypeError.here(
            "qd.append needs an element in `like`, got an empty tree", help="give a number or an array: `like=0.0`"
        )

    def allocated(leaf: ArrayLike) -> Buffer:
        if not isinstance(leaf, jax.ShapeDtypeStruct | MemoryHandle):
            leaf = as_array(leaf, "`like` of qd.append")
        is_struct = isinstance(leaf, jax.ShapeDtypeStruct)
        dtype = element_type(leaf.dtype, "qd.append") if is_struct else default_dtype(leaf, "qd.append")
        made = {"shape": (room, *jnp.shape(leaf)), "dtype": dtype, "uid": new_uid(), "called": name}
        return Buffer(emit(markers.alloc_p, dtype.type(0), **made))

    values = jax.tree.map(allocated, like, is_leaf=is_memory)
    count = {"shape": (), "dtype": np.dtype(np.int32), "uid": new_uid(), "called": f"{name}_count", "capacity": room}
    return Append(values, Buffer(emit(markers.alloc_p, np.int32(0), **count)), room, name)


def _unflattened(static: tuple[int, str], children: tuple[Any, Any]) -> Append[Any]:
    return Append(*children, *static)


jax.tree_util.register_pytree_node(
    Append,
    lambda a: ((a._values, a._count), (a.capacity, a._called)),  # pyright: ignore[reportPrivateUsage]
    _unflattened,
)
