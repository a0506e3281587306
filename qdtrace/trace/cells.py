"""`qd.local`: memory of one iteration, to carry values through its loops and conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceValueError
from qdtrace.trace import markers
from qdtrace.trace.arithmetic import as_scalar
from qdtrace.trace.context import current, emit, new_uid
from qdtrace.trace.dtypes import default_dtype, element_type
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.indexing import ParsedIndex, as_array, as_value, cast_value, parse_index, whole
from qdtrace.trace.operators import INPLACE
from qdtrace.trace.source import user_loc

if TYPE_CHECKING:
    from jax.typing import DTypeLike


class Cell(MemoryHandle):
    """A mutable value of the running iteration: a scalar or a private array."""

    __slots__ = ()
    _noun = "qd.local"
    _how_to_set = "store with `c.value = v`"

    @property
    def value(self) -> jax.Array:
        """The present value."""
        return self.__jax_array__()

    @value.setter
    def value(self, value: Any) -> None:
        self._store(whole(self.shape), value)

    def __jax_array__(self) -> jax.Array:
        return self._load(whole(self.shape))

    def __getitem__(self, key: Any, /) -> jax.Array:
        return self._load(parse_index(key, self.shape))

    def __setitem__(self, key: Any, value: Any, /) -> None:
        self._store(parse_index(key, self.shape), value)

    def _load(self, access: ParsedIndex) -> Any:
        return as_scalar(emit(markers.lget_p, self._handle, *access.operands, slices=access.slices))

    def _store(self, access: ParsedIndex, value: Any) -> None:
        value = cast_value(value, self.dtype, access.shape, "a store")
        emit(markers.lset_p, self._handle, value, *access.operands, slices=access.slices)

    def __iter__(self) -> Any:
        return iter(self.__jax_array__())

    def __bool__(self) -> bool:
        return bool(self.__jax_array__())

    def __int__(self) -> int:
        return int(self.__jax_array__())

    def __float__(self) -> float:
        return float(self.__jax_array__())

    def __index__(self) -> int:
        return self.__jax_array__().__index__()


def _inplace(function: Any) -> Any:
    def method(self: Cell, value: Any) -> Cell:
        self.value = function(self.__jax_array__(), as_value(value))
        return self

    return method


for _name, _function in INPLACE.items():
    setattr(Cell, _name, _inplace(_function))


def local(init: Any, dtype: DTypeLike | None = None) -> Cell:
    """A cell that starts with `init`, made inside a loop, and gone with its iteration.

    dtype is that of `init`; for a Python number JAX's default: f32, i32 or c64, in x64 mode f64, i64 or c128. What is
    stored later is converted to it; refused where it would lose its fraction or imaginary part.
    """
    context = current("qd.local")
    loc = user_loc()
    if not context.regions:
        raise TraceValueError(
            "a qd.local belongs to one iteration, it needs to be made inside a loop",
            loc=loc,
            help="outside of loops use a buffer: `s = qd.zeros(())`, then `s[()] += v` in the loop",
        )
    init = as_array(init, "qd.local")
    element = default_dtype(init, "qd.local") if dtype is None else element_type(dtype, "qd.local")
    value = cast_value(init, element, np.shape(init), "the initial value of qd.local")
    return Cell(emit(markers.local_p, jnp.asarray(value), uid=new_uid(), dtype=element))


jax.tree_util.register_pytree_node(Cell, lambda c: ((c.handle,), None), lambda _, children: Cell(children[0]))
