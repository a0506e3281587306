"""A cell: memory of one iteration, to carry a value through its loops and conditions."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError
from qdtrace.trace import markers
from qdtrace.trace.arithmetic import as_scalar
from qdtrace.trace.context import emit, new_uid
from qdtrace.trace.diagnosis.aliases import note_write, refuse_swapped
from qdtrace.trace.dtypes import as_jax, default_dtype, element_type, is_key
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.indexing import ParsedIndex, as_array, as_value, cast_value, parse_index, whole
from qdtrace.trace.markers import sliced_shape
from qdtrace.trace.operators import INPLACE, of_content
from qdtrace.trace.several import several
from qdtrace.trace.spread import load_several, parts_to_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax.typing import DTypeLike


class Cell(MemoryHandle):
    """A mutable value of the running iteration, made by `qd.local`: a scalar or a private array.

    `c.value` is its value and `c.value = v` stores; `c += v` and the other in-place operators do, too. Elements of an
    array are `c[k]`. Operators and functions of JAX take a cell for its value. Of random keys, which are kept as the
    words that they are made of, `c.value` is the key.

    >>> @qd.jit
    ... def digits(n):
    ...     for i in qd.range(n.shape[0]):
    ...         rest, count = qd.local(n[i]), qd.local(0)
    ...         for _ in qd.while_(lambda: rest > 0):
    ...             rest //= 10
    ...             count.value = count + 1
    ...         n[i] = count
    ...     return n
    >>> digits(jnp.array([7, 42, 1234]))
    Array([1, 2, 4], dtype=int32)
    """

    __slots__ = ("_impl",)
    _noun = "qd.local"
    _how_to_set = "store with `c.value = v`"
    noun_of_names = "cell"
    how_to_keep = ".value"

    def __init__(self, handle: jax.Array, impl: str = "") -> None:
        super().__init__(handle)
        self._impl = impl
        """Names the kind of random keys; empty for numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes; words of keys are none."""
        return super().shape[:-1] if self._impl else super().shape

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return jax.random.key(0, impl=self._impl).dtype if self._impl else super().dtype

    @property
    def value(self) -> jax.Array:
        """The present value."""
        return self.__jax_array__()

    @value.setter
    def value(self, value: object) -> None:
        self._store(whole(self.shape), value)

    def __jax_array__(self) -> jax.Array:
        return self._load(whole(self.shape))

    def __getitem__(self, key: object, /) -> jax.Array:
        if (places := several(key, self.shape)) is None:
            return self._load(parse_index(key, self.shape))
        return load_several(self, key, places, self._load)

    def __setitem__(self, key: object, value: object, /) -> None:
        if (places := several(key, self.shape)) is None:
            self._store(parse_index(key, self.shape), value)
            return
        for access, part, change in parts_to_store(self, key, places, value):
            if change is not None and change.in_place:  # places that meet all count
                part = self._load(access) + change.delta
            self._store(access, part)

    def _load(self, access: ParsedIndex) -> jax.Array:
        loaded = emit(markers.lget_p, self._handle, *access.operands, slices=self._slices(access))
        return jax.random.wrap_key_data(loaded, impl=self._impl) if self._impl else as_scalar(loaded)

    def _store(self, access: ParsedIndex, value: object) -> None:
        if isinstance(value, MemoryHandle):
            refuse_swapped((value,))
        slices, value = self._slices(access), as_value(value)
        if self._impl:
            if not is_key(value):
                raise TraceTypeError.here(
                    "a qd.local of a random key needs a key",
                    help="store one: `k.value = jax.random.fold_in(k.value, j)`, or one of `jax.random.split(k.value)`",
                )
            value = jax.random.key_data(jnp.asarray(value))
        value = cast_value(value, self._handle.dtype, sliced_shape(slices), "a store")
        note_write(self)
        emit(markers.lset_p, self._handle, value, *access.operands, slices=slices)

    def _slices(self, access: ParsedIndex) -> markers.Slices:
        return (*access.slices, (0, self._handle.shape[-1], 1)) if self._impl else access.slices


def _inplace(function: Callable[[object, object], object]) -> Callable[[Cell, object], Cell]:
    def method(self: Cell, value: object) -> Cell:
        self.value = function(self.__jax_array__(), as_value(value))
        return self

    return method


for _name, _function in INPLACE.items():
    setattr(Cell, _name, _inplace(_function))
for _convert in (iter, bool, int, float, operator.index):
    setattr(Cell, f"__{_convert.__name__}__", of_content(_convert))


def new_cell(init: object, dtype: DTypeLike | None, called: str) -> Cell:
    """Returns a cell of the running iteration that starts with `init`; `called` is its name in messages."""
    first = as_array(init, "qd.local")
    if dtype is None and is_key(first):
        words = jax.random.key_data(first)
        handle = emit(markers.local_p, words, uid=new_uid(), dtype=words.dtype, called=called)
        return Cell(handle, str(jax.random.key_impl(first)))
    element = default_dtype(first, "qd.local") if dtype is None else element_type(dtype, "qd.local")
    value = cast_value(first, element, np.shape(first), "the initial value of qd.local")
    return Cell(emit(markers.local_p, as_jax(value), uid=new_uid(), dtype=element, called=called))


def _flattened(cell: Cell) -> tuple[tuple[jax.Array], str]:
    return (cell.handle,), cell._impl  # pyright: ignore[reportPrivateUsage]


jax.tree_util.register_pytree_node(Cell, _flattened, lambda impl, children: Cell(children[0], impl))
