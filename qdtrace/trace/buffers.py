"""Buffers: arrays that a traced function may store into, shared by all iterations of all its loops."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import QdError, TraceTypeError, TraceValueError, boundary, user_loc
from qdtrace.trace import indexing, markers
from qdtrace.trace.compat import Tracer
from qdtrace.trace.context import current, emit, new_uid
from qdtrace.trace.diagnosis.access import element_in
from qdtrace.trace.diagnosis.aliases import (
    given_back,
    note_flattened,
    note_unflattened,
    note_use,
    note_write,
    refuse_swapped,
)
from qdtrace.trace.diagnosis.attributes import StrictAttributes
from qdtrace.trace.diagnosis.results import name_of_result
from qdtrace.trace.diagnosis.unrolled import note_element_store
from qdtrace.trace.dtypes import default_dtype
from qdtrace.trace.elements import as_element
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.indexing import ParsedIndex, as_array, as_value, cast_value, parse_index, too_many_indices
from qdtrace.trace.lengths import known, recording
from qdtrace.trace.operators import INPLACE
from qdtrace.trace.placement import too_large
from qdtrace.trace.several import several
from qdtrace.trace.spread import load_several, parts_to_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from jax.typing import ArrayLike

    from qdtrace.trace.several import Several


class Buffer(MemoryHandle):
    """A handle to memory local to the call.

    `b[k]` loads, `b[k] = v` stores; `b[k] += v`, `b[k] -= v` and the methods of `b.at[k]` accumulate, however many
    iterations meet in an element. Every other in-place operator (`b[k] *= v`) is a load and a store: a race where two
    meet.
    Outside loops a buffer may be used as an array: that means its content at this point.

    >>> @qd.jit
    ... def histogram(k):
    ...     counts = qd.zeros(3, jnp.int32)
    ...     for i in qd.range(k.shape[0]):
    ...         counts[k[i]] += 1
    ...     assert isinstance(k, qd.Buffer) and isinstance(counts, qd.Buffer)
    ...     return counts, counts.max()
    >>> histogram(jnp.array([0, 2, 2]))
    (Array([1, 0, 2], dtype=int32), Array(2, dtype=int32))

    Loads and stores raise TraceTypeError for an index or value of a wrong kind and TraceIndexError for a static index
    out of bounds; when the function runs, an index that is out of bounds is a BoundsError.
    """

    __slots__ = ()
    _noun = "buffer"
    _how_to_set = "store with `b[i] = v`"
    noun_of_names = "buffer"
    how_to_keep = ".copy()"

    @property
    def handle(self) -> jax.Array:
        """The tracer that stands for the memory in markers."""
        note_use(self)
        return self._handle

    @property
    def at(self) -> At:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`b.at[k].add(v)`, `subtract`, `mul`, `min`, `max`: accumulations; `set(v)` stores, `get()` loads."""
        return At(self)

    def copy(self) -> Buffer:
        """Returns a new buffer with the present content."""
        return _copied(self)

    def __copy__(self) -> Buffer:
        return self.copy()

    def __deepcopy__(self, _: object) -> Buffer:
        return self.copy()

    def __jax_array__(self) -> jax.Array:
        """Returns the whole content now; inside a loop only when it is small."""
        known(self.shape)
        return content_of(self)

    def _is_array(self, what: str = "an array operation") -> bool:
        """Returns whether a use as an array means one operation on the whole."""
        context = current(what)
        return not context.in_thread and (not context.regions or self.size > indexing.WHOLE_LIMIT)

    def __getitem__(self, key: object, /) -> jax.Array:
        if key is Ellipsis and self.shape and not self._is_array("b[i]"):
            return as_element(self.__jax_array__())
        if (places := _several(self, key)) is not None:
            return load_several(self, key, places, functools.partial(_load, self))
        access = _marked_access(self, key, "b[i]")
        return _load(self, access) if access else self.__jax_array__()[_jax_key(key, self.shape)]

    def __setitem__(self, key: object, value: object, /) -> None:
        context = current("b[i] = v")
        if isinstance(value, MemoryHandle):
            refuse_swapped((value,))
        note_write(self)
        if (places := _several(self, key)) is not None:
            for access, part, change in parts_to_store(self, key, places, value):
                if change is None:
                    _store(self, access, part)
                else:
                    _update(self, access, change.loaded, part, change.delta, in_place=change.in_place)
            return
        access = _marked_access(self, key)
        if access is None:
            _assign_part(self, key, value, "set")
            return
        note_element_store(access.operands)
        pending = context.sums.pop(id(value), None)
        if pending is None:
            _store(self, access, cast_value(value, self.dtype, access.shape, "a store"))
            return
        in_place = pending.statement is not None and pending.statement.is_storing()
        delta = cast_value(pending.value, self.dtype, access.shape, "an accumulation")
        if pending.negate:
            delta = lax.neg(jnp.asarray(delta))
        total = cast_value(value, self.dtype, access.shape, "an accumulation")
        _update(self, access, pending.loaded, total, delta, in_place=in_place)

    def __iter__(self) -> NoReturn:
        raise TraceTypeError.here(
            "a buffer cannot be iterated over",
            help=f"write `for {'i, j in qd.ndrange(*x.shape)' if self.ndim > 1 else 'i in qd.range(x.shape[0])'}:` and "
            "use its elements, or a function of jnp on all of it: `jnp.sum(x[...])`",
        )

    __reversed__ = __iter__

    def __contains__(self, _: object) -> bool:
        raise TraceTypeError.here("`in` needs a concrete array", help="write `jnp.any(x == value)`")

    def __bool__(self) -> bool:
        raise _not_a_number(self, "bool", "with qd.when({} > 0):")

    def __int__(self) -> int:
        raise _not_a_number(self, "int", "{}.astype(jnp.int32)")

    def __float__(self) -> float:
        raise _not_a_number(self, "float", "{}.astype(jnp.float32)")

    def __complex__(self) -> complex:
        raise _not_a_number(self, "complex", "{}.astype(jnp.complex64)")

    def __index__(self) -> int:
        raise _not_a_number(self, "int", "{}")


def content_of(buffer: Buffer) -> jax.Array:
    """Returns the whole content of a buffer now, as an array whose shape nobody looks at before the function ends."""
    if buffer._is_array():  # pyright: ignore[reportPrivateUsage]
        return emit(markers.read_p, buffer.handle)
    if buffer.size > indexing.WHOLE_LIMIT:
        raise too_large(buffer.shape, user_loc())
    return _load(buffer, indexing.whole(buffer.shape))


def _not_a_number(buffer: Buffer, kind: str, instead: str) -> QdError:
    return TraceTypeError.here(
        f"{kind}() needs one concrete number, got a buffer of shape {buffer.shape}",
        help=f"use an element of it: `{instead.format(element_in(buffer.ndim))}`",
    )


def _inplace(name: str, function: Callable[[object, object], object]) -> Callable[[Buffer, object], Buffer]:
    def method(self: Buffer, value: object) -> Buffer:
        if current(f"Buffer.{name}").in_thread:
            raise TraceValueError.here(
                "a whole buffer cannot be changed inside a loop",
                help="change its element: `x[()] += v`" if self.shape == () else "change one element: `x[i] += v`",
            )
        note_write(self)
        _assign(self, function(self.__jax_array__(), as_value(value)))
        return self

    return method


for _name, _function in INPLACE.items():
    setattr(Buffer, _name, _inplace(_name, _function))


def _marked_access(buffer: Buffer, key: object, what: str = "an array operation") -> ParsedIndex | None:
    """Returns a marker's access. None between loops, if it has no traced index to check and whole-array code is better,
    or where no marker can express it."""
    if not buffer._is_array(what):  # pyright: ignore[reportPrivateUsage]
        return parse_index(key, buffer.shape)
    if not indexing.is_simple(key):
        return None
    access = parse_index(key, buffer.shape)
    one_place = bool(access.operands) or access.shape == ()
    is_traced = not all(map(indexing.is_static_int, access.operands))
    return access if is_traced or (one_place and access.size <= indexing.WHOLE_LIMIT) else None


def _jax_key(key: object, shape: tuple[int, ...]) -> tuple[object, ...]:
    """Returns the index with cells and buffers read; static ones are checked, as JAX would clamp them."""
    parts = tuple(as_value(k) for k in (key if isinstance(key, tuple) else (key,)))
    if sum(k is not None and k is not Ellipsis for k in parts) > len(shape):
        raise too_many_indices(len(parts), shape)
    return parts


def _load(buffer: Buffer, access: ParsedIndex) -> jax.Array:
    return as_element(emit(markers.load_p, buffer.handle, *access.operands, slices=access.slices))


def _several(buffer: Buffer, key: object) -> Several | None:
    """Returns the accesses of an index that is not one; None for one, and where whole-array code takes any index."""
    return None if buffer._is_array("b[i]") else several(key, buffer.shape)  # pyright: ignore[reportPrivateUsage]


def _store(buffer: Buffer, access: ParsedIndex, value: object) -> None:
    emit(markers.store_p, buffer.handle, value, *access.operands, slices=access.slices)


def _update(
    buffer: Buffer, access: ParsedIndex, loaded: jax.Array, total: object, delta: object, *, in_place: bool
) -> None:
    """Records `b[k] += v`; `in_place` where one statement loads, adds and stores."""
    if in_place and buffer.dtype == jnp.bool_:
        raise TraceTypeError.here(
            "`b[k] += v` needs a buffer of numbers, got bool",
            help="use qd.atomic_or(b, k, v), or write `b[k] = b[k] | v` where each iteration has its own k",
        )
    known = {"slices": access.slices, "op": "add", "in_place": in_place}
    emit(markers.update_p, buffer.handle, loaded, total, delta, *access.operands, **known)


def _assign(buffer: Buffer, value: object) -> None:
    emit(markers.assign_p, buffer.handle, cast_value(value, buffer.dtype, buffer.shape, "a store"))


def _assign_part(buffer: Buffer, key: object, value: Any, method: str) -> None:
    """Stores, outside loops, what is not one element, by whole-array code."""
    value = as_value(value)
    if method == "set" and (key is Ellipsis or key == slice(None)):
        _assign(buffer, value)
        return
    cast = cast_value(value, buffer.dtype, jnp.shape(value), "a store", method)
    if hasattr(value, "dtype"):
        value = cast
    place = buffer.__jax_array__().at[_jax_key(key, buffer.shape)]
    _assign(buffer, getattr(place, method)(value))


class At(StrictAttributes):
    """`b.at`: waits for an index."""

    __slots__ = ("_buffer",)
    _noun = "`b.at`"

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def __getitem__(self, key: object) -> AtIndex:
        return AtIndex(self._buffer, key)


class AtIndex(StrictAttributes):
    """`b.at[i]`: a place in a buffer. Methods change it there and give the buffer back."""

    __slots__ = ("_buffer", "_key")
    _noun = "`b.at[i]`"

    def __init__(self, buffer: Buffer, key: object) -> None:
        self._buffer = buffer
        self._key = key

    def get(self) -> jax.Array:
        """Returns the value at the place."""
        return self._buffer[self._key]

    def set(self, value: object) -> Buffer:
        """Stores a value."""
        self._buffer[self._key] = value
        return given_back(self._buffer, "set")

    def add(self, value: object) -> Buffer:
        """Accumulates a sum; never a race."""
        return self._accumulate("add", value, "add")

    def subtract(self, value: object) -> Buffer:
        """Accumulates a difference; never a race."""
        return self._accumulate("add", value, "subtract")

    def mul(self, value: object) -> Buffer:
        """Accumulates a product of real numbers; never a race."""
        return self._accumulate("mul", value, "mul")

    multiply = mul

    def min(self, value: object) -> Buffer:
        """Accumulates a minimum of real numbers; never a race. Integers are limited to what the dtype holds."""
        return self._accumulate("min", value, "min")

    def max(self, value: object) -> Buffer:
        """Accumulates a maximum of real numbers; never a race. Integers are limited to what the dtype holds."""
        return self._accumulate("max", value, "max")

    def _accumulate(self, op: str, value: Any, method: str) -> Buffer:
        buffer, key = self._buffer, self._key
        note_write(buffer)
        if buffer.dtype == jnp.bool_:
            raise TraceTypeError.here(
                f"`.at[].{op}` needs a buffer of numbers, got bool", help="use qd.atomic_or or atomic_and"
            )
        places = _several(buffer, key)
        access = _marked_access(buffer, key) if places is None else places
        if access is None:
            _assign_part(buffer, key, value, method)
            return given_back(buffer, method, 3)
        if op != "add" and jnp.issubdtype(buffer.dtype, jnp.complexfloating):
            raise TraceTypeError.here(
                f"`.at[].{op}` needs a buffer of real numbers in a loop, got {buffer.dtype}",
                help="store the new value, `b[i] = f(b[i], v)`, where each iteration has its own element",
            )
        value = cast_value(value, buffer.dtype, access.shape, "an accumulation", op)
        if method == "subtract":
            value = lax.neg(jnp.asarray(value))
        if isinstance(access, ParsedIndex):
            note_element_store(access.operands)
            parts = [(access, value)]
        else:
            keys = (parse_index(k, buffer.shape) for k in access.keys)
            parts = [*zip(keys, access.split(value), strict=True)]
        for one, part in parts:
            emit(markers.accum_p, buffer.handle, part, *one.operands, slices=one.slices, op=op)
        return given_back(buffer, method, 3)


def new_buffer(array: ArrayLike, called: str = "") -> Buffer:
    """Returns a buffer with the content of an array; `called` is the variable that it becomes."""
    return Buffer(emit(markers.buffer_p, array, uid=new_uid(), called=called))


def check_outside_loops(name: str) -> None:
    """Raises TraceValueError where a function that makes a buffer is called in a loop or condition."""
    context = current(f"qd.{name}")
    if context.regions:
        advice = "move it in front of the loop; for memory of one iteration use qd.local(jnp.zeros(n))"
        if context.inlined:
            advice = (
                f"here `{context.inlined}` is called in a loop or lane, and is part of it: call it for all elements at "
                f"once, jax.vmap({context.inlined})(rows), outside of the loop; for memory of one iteration use "
                "qd.local(jnp.zeros(n))"
            )
        raise TraceValueError.here(
            f"qd.{name} makes a buffer, which needs to be done outside of loops and conditions", help=advice
        )


@boundary
def copy(x: ArrayLike) -> jax.Array:
    """Returns a new buffer with the present content, shape and dtype of an array or buffer.

    >>> @qd.jit
    ... def neighbours(x):
    ...     old = qd.copy(x)
    ...     for i in qd.range(1, x.shape[0]):
    ...         x[i] = old[i - 1] + old[i]
    ...     return x
    >>> neighbours(jnp.array([1, 2, 3]))
    Array([1, 3, 5], dtype=int32)

    Args:
        x: an array, buffer or number.

    Raises:
        TraceTypeError: `x` is no array of numbers or bools.
        TraceValueError: the call stands in a loop or condition.
    """
    return _copied(x)


def _copied(x: object) -> Buffer:
    check_outside_loops("copy")
    content = as_array(content_of(x) if isinstance(x, Buffer) else x, "qd.copy")
    default_dtype(content, "qd.copy")
    made = new_buffer(jnp.asarray(content), name_of_result())
    if isinstance(x, Buffer) and (running := recording()):
        running.know(made.tracer, x.shape)
    return made


def _unflattened(_: None, children: tuple[Any]) -> Any:
    """Returns the buffer of a tracer; an array, which a callback is given when it runs, as it is."""
    (child,) = children
    is_content = isinstance(child, (np.ndarray, jax.Array)) and not isinstance(child, Tracer)
    return child if is_content else note_unflattened(Buffer(child))  # type: ignore[arg-type]


def _flattened(buffer: Buffer) -> tuple[tuple[Any], None]:
    known(buffer.shape)
    handle = buffer.handle
    note_flattened(buffer)
    return (handle,), None


jax.tree_util.register_pytree_node(Buffer, _flattened, _unflattened)
