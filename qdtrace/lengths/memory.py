"""The memory of a call that XLA does not make: arrays in which a program finds its operands and leaves its results."""

from __future__ import annotations

import ctypes
import functools
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding

from qdtrace.frozen import frozen
from qdtrace.lengths.traced import Known, Made
from qdtrace.trace import compat
from qdtrace.trace.dtypes import as_weak

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from qdtrace.backend import Given
    from qdtrace.lengths.traced import Source

    Held: TypeAlias = tuple[np.ndarray | memoryview, int]
    """Memory that code can read, by what holds it, with its address."""

CACHE_LINE = 64
"""Bytes; XLA's arrays begin at a multiple of it."""


def on_host(value: Any, dtype: np.dtype) -> Held:
    """Returns memory of an operand that code can read, and its address; of a copy if its own memory cannot be read.

    What holds the memory of an array of JAX, when that is there, is its view as a buffer of Python: it keeps the memory
    from calls that the array is donated to; its pointer alone does not.
    """
    if isinstance(value, jax.Array) and value.dtype == dtype:
        try:
            view = memoryview(value)
        except (BufferError, RuntimeError):  # of a dtype that buffers do not have, or deleted
            pass
        else:
            address = value.unsafe_buffer_pointer()
            if view.c_contiguous and (address % CACHE_LINE == 0 or not view.ndim):
                return view, address
    array = np.array(value, dtype) if type(value) in (bool, int, float) else np.asarray(value)
    address = array.ctypes.data
    if array.dtype == dtype and array.flags.c_contiguous and (address % CACHE_LINE == 0 or not array.ndim):
        return array, address
    made, address = Place(array.shape, dtype).empty()
    made[...] = array
    return made, address


@frozen(eq=False)
class Place:
    """An array that a call makes."""

    shape: tuple[int, ...]
    dtype: np.dtype
    before: int | None = None
    """The operand whose content it begins with, if one."""
    initial: Any = None
    """The value that its elements begin with, if one."""

    def empty(self) -> tuple[np.ndarray, int]:
        """Returns an array of undefined content, whose memory JAX takes over without a copy, and its address."""
        memory = np.empty(self._room, np.uint8)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory.data))  # NumPy's ways make a dictionary
        first = -address % CACHE_LINE
        return np.ndarray(self.shape, self.dtype, memory, first), address + first

    def to_jax(self, array: np.ndarray, *, is_weak: bool) -> Any:
        """Returns an array of JAX in the memory of one that was made here."""
        if compat.batched_device_put is None:
            return as_weak(jax.device_put(array)) if is_weak else jax.device_put(array)
        device = jax.local_devices(backend="cpu")[0]  # `jax.device_put` ends in the same, at ten times the price
        kind = self._aval.update(weak_type=True) if is_weak else self._aval
        return compat.batched_device_put(kind, _sharding_on(device), [array], [device], False)

    @functools.cached_property
    def _room(self) -> int:
        return prod(self.shape) * self.dtype.itemsize + CACHE_LINE

    @functools.cached_property
    def _aval(self) -> ShapedArray:
        return ShapedArray(self.shape, self.dtype)


@functools.lru_cache(maxsize=1)
def _sharding_on(device: Any) -> SingleDeviceSharding:
    return SingleDeviceSharding(device)


def _own(value: Any) -> Any:
    """Returns an argument that is a result, which may not change when an array of NumPy does."""
    return jax.device_put(np.array(value) if isinstance(value, np.ndarray) else value)


@frozen(eq=False)
class Form:
    """A call at some lengths, but for its arguments."""

    given: Given
    operands: tuple[tuple[int | Held, np.dtype], ...]
    """The leaf, or the constant that it is, and the dtype of each parameter of the program; see `traced.Trace`."""
    numbers: tuple[Held, ...]
    """Further parameters, which depend on the lengths alone."""
    places: tuple[Place, ...]
    """The arrays of the program behind its parameters, and those that are results as they were given."""
    results: tuple[Source, ...]
    """The source of each leaf of the result; of one that is made, its number is that of its place."""
    tree: Any

    def run(self, leaves: Sequence[Any]) -> Any:
        """Returns the results for leaves of arguments. Raises XLA's error if the program fails."""
        operands = [on_host(leaves[x], dtype) if isinstance(x, int) else x for x, dtype in self.operands]
        made = [place.empty() for place in self.places]
        for place, (array, _) in zip(self.places, made, strict=True):
            if place.before is not None:
                array[...] = operands[place.before][0]
            elif place.initial is not None:
                array.fill(place.initial)
        addresses = [address for _, address in (*operands, *self.numbers, *made)]
        self.given.run(addresses[: len(self.given.memory)])
        results = [
            self.places[s.number].to_jax(made[s.number][0], is_weak=s.is_weak)
            if isinstance(s, Made)
            else _own(s.value if isinstance(s, Known) else leaves[s])
            for s in self.results
        ]
        return jax.tree.unflatten(self.tree, results)
