"""The memory of a call that XLA does not make: arrays in which a program finds its operands and leaves its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.frozen import frozen
from qdtrace.lengths.traced import Known, Made

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.backend import Given
    from qdtrace.ir.program import Program, Var
    from qdtrace.lengths.traced import Source

CACHE_LINE = 64
"""Bytes; XLA's arrays begin at a multiple of it."""


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array of undefined content, whose memory JAX takes over without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    first = -address_of(memory) % CACHE_LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def address_of(array: np.ndarray) -> int:
    """Returns the address of an array."""
    return array.__array_interface__["data"][0]


def on_host(value: Any, dtype: np.dtype) -> np.ndarray:
    """Returns an operand as an array in memory that code can read; a copy if that of NumPy is not."""
    array = np.asarray(value)
    if array.dtype == dtype and array.flags.c_contiguous and (address_of(array) % CACHE_LINE == 0 or not array.ndim):
        return array
    made = empty(array.shape, dtype)
    made[...] = array
    return made


def _found(source: Source, leaves: Sequence[Any]) -> Any:
    if isinstance(source, Known):
        return source.value
    assert isinstance(source, int)
    return leaves[source]


def _own(value: Any) -> Any:
    """Returns an argument that is a result, which may not change when an array of NumPy does."""
    return np.array(value) if isinstance(value, np.ndarray) else value


@frozen(eq=False)
class Form:
    """A call at some lengths, but for its arguments."""

    operands: tuple[Source, ...]
    results: tuple[Source, ...]
    tree: Any
    """See `traced.Trace`."""
    numbers: tuple[np.ndarray, ...]
    """Operands that depend on the lengths alone."""
    shapes: Mapping[Var, tuple[int, ...]]
    """The shape of each reference in the memory of the program."""

    def run(self, leaves: Sequence[Any], program: Program, given: Given) -> Any:
        """Returns the results for leaves of arguments. Raises XLA's error if the program fails."""
        values = [_found(source, leaves) for source in self.operands]
        params = program.params
        operands = [on_host(x, v.dtype.numpy) for v, x in zip(params, (*values, *self.numbers), strict=True)]
        of = dict(zip(params, operands, strict=True))
        memory = list(operands)
        for var, before in given.memory[len(params) :]:
            memory.append(empty(self.shapes[var], var.dtype.numpy))
            if before is not None:
                memory[-1][...] = of[before]
            elif (value := program.initial.get(var)) is not None:
                memory[-1].fill(value.value)
        given.run([address_of(x) for x in memory])
        last = {var: x for (var, _), x in zip(given.memory, memory, strict=True)}
        made = [last[var] for var in program.results]
        results = [made[s.number] if isinstance(s, Made) else _own(_found(s, leaves)) for s in self.results]
        return jax.tree.unflatten(self.tree, jax.device_put(results))
