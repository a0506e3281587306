"""Values of jaxpr variables while importing: small arrays of scalars, arrays in memory, handles.

A small array is a NumPy object array of graph atoms, so NumPy does all of its structure. PRNG keys and complex
numbers are pairs: an element is a tuple of two atoms.
"""

from __future__ import annotations

from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from qdtrace.frozen import mutable
from qdtrace.ir.program import Atom, Literal, Var, ref_type
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from qdtrace.ir.types import DType
    from qdtrace.trace import jaxprs
    from qdtrace.trace.jaxprs import Shaped

Pair: TypeAlias = tuple[Atom, ...]
"""Two atoms: words of a key, or the parts of a complex number."""
Element: TypeAlias = Atom | Pair


@mutable(eq=False, slots=True)
class RefValue:
    """A handle: a buffer or a cell that memory markers act on."""

    var: Var


class MemoryArray:
    """An array value whose elements are found by an index; never changes while something holds it."""

    shape: tuple[int, ...]
    dtype: DType
    pair: bool

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


def _logical(var: Var, pair: bool) -> tuple[int, ...]:
    shape = ref_type(var).shape
    return shape[:-1] if pair else shape


@mutable(eq=False)
class ArrayRef(MemoryArray):
    """An array whose content is in a global reference that nothing writes."""

    var: Var
    pair: bool = False
    shape: tuple[int, ...] = field(init=False)
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.shape, self.dtype = _logical(self.var, self.pair), self.var.dtype


@mutable(eq=False)
class PrivateArray(MemoryArray):
    """An array in private memory. `holders` counts who still needs this content; at 0 it may be updated in place."""

    var: Var
    pair: bool = False
    holders: int = 0
    shape: tuple[int, ...] = field(init=False)
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.shape, self.dtype = _logical(self.var, self.pair), self.var.dtype


@mutable(eq=False)
class Formula(MemoryArray):
    """An array whose elements are computed from the index and from other arrays, each time that they are read.

    It holds these until the last of those that held it lets go of it, or nothing refers to it any more: a rule may look
    through one that no variable ever names.
    """

    shape: tuple[int, ...]
    dtype: DType
    at: Callable[[Sequence[Atom]], Element]
    pair: bool = False
    operands: Sequence[Value] = ()
    """The arrays that it is computed from."""
    moves: bool = False
    """True if an element may be computed from operands' elements at another index."""
    work: int = 0
    """Operations of an element beside loads, those of operands that are formulas left out."""
    of_rows: bool = False
    """True if it stays one though its elements are few: each is made once for a row of a larger array."""
    holders: int = field(default=0, init=False)
    lets_go: bool = field(default=False, init=False)
    """True once nobody holds it any more, so that it does not hold what it reads."""

    def __post_init__(self) -> None:
        for operand in self.operands:
            hold(operand)

    def __del__(self) -> None:
        for operand in () if self.lets_go else self.operands:
            hold(operand, -1)


Value: TypeAlias = np.ndarray | MemoryArray
"""An array: elements in a NumPy object array, or in memory."""
EnvValue: TypeAlias = Value | RefValue
"""The value of a variable of a jaxpr: an array, or a reference to memory."""
Env: TypeAlias = "dict[jaxprs.Var, EnvValue]"


def made_from(value: Value) -> tuple[int, list[Value]]:
    """Returns the operations of an element of an array, and the arrays in memory, or of scalars, that it loads from."""
    if not isinstance(value, Formula):
        return 0, [value]
    found = list(map(made_from, value.operands))
    return value.work + sum(work for work, _ in found), [v for _, leaves in found for v in leaves]


def hold(value: Value, count: int = 1) -> None:
    """Notes that something more (or, negative, less) needs the content of a private array."""
    if isinstance(value, Formula):
        before, value.holders = value.holders, value.holders + count
        if before > 0 and value.holders == 0:
            value.lets_go = True
            for operand in value.operands:
                hold(operand, -1)
        elif value.lets_go and value.holders > 0:
            value.lets_go = False
            for operand in value.operands:
                hold(operand)
    elif isinstance(value, PrivateArray):
        value.holders += count


def storages_behind(value: Value) -> set[Var]:
    """Returns the private memory that elements of a value are read from."""
    if isinstance(value, Formula):
        return set().union(*map(storages_behind, value.operands))
    return {value.var} if isinstance(value, PrivateArray) else set()


def rank0(element: Element) -> np.ndarray:
    """Returns a scalar as an array of rank 0."""
    out = np.empty((), object)
    out[()] = element
    return out


def array_of(elements: Iterable[Element], shape: Sequence[int]) -> np.ndarray:
    """Returns a small array of the elements in row-major order."""
    out = np.empty(tuple(shape), object)
    flat = out.reshape(-1)
    for k, element in enumerate(elements):
        flat[k] = element
    return out


def elements_of(array: np.ndarray) -> list[Element]:
    """Elements in row-major order."""
    return array.ravel().tolist()


def atoms_of(array: np.ndarray) -> list[Atom]:
    """Returns all atoms of a small array, those of pairs one after the other."""
    return [atom for e in elements_of(array) for atom in parts_of(e)]


def array_from(atoms: Iterator[Atom], aval: Shaped) -> np.ndarray:
    """Returns the small array of this type whose atoms come next."""
    elements = zip(atoms, atoms, strict=False) if is_pair(aval) else atoms
    return array_of(islice(elements, int(np.prod(aval.shape, dtype=np.int64))), aval.shape)


def parts_of(element: Element) -> Pair:
    """Returns the atoms of an element."""
    return element if isinstance(element, tuple) else (element,)


def is_static(element: Element) -> bool:
    """Returns whether an atom is a constant."""
    if isinstance(element, tuple):
        return all(type(part) is Literal for part in element)
    return type(element) is Literal


def join_pairs(array: np.ndarray) -> np.ndarray:
    """Joins a trailing axis of 2 to pairs."""
    flat = array.reshape(-1, 2)
    return array_of(((a, b) for a, b in flat), array.shape[:-1])


def split_pairs(array: np.ndarray) -> np.ndarray:
    """Pairs to a trailing axis of 2."""
    return array_of((part for pair in array.ravel().tolist() for part in pair), (*array.shape, 2))
