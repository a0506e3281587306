"""`qd.local`: a cell, or the cells of a structure."""

from __future__ import annotations

import dataclasses
import inspect
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import jax

from qdtrace.errors import TraceTypeError, boundary, user_loc
from qdtrace.trace.cells import Cell, new_cell
from qdtrace.trace.context import current
from qdtrace.trace.diagnosis.aliases import note_names, refuse_swapped
from qdtrace.trace.diagnosis.attributes import StrictAttributes
from qdtrace.trace.diagnosis.results import name_of_result
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.indexing import as_value
from qdtrace.trace.placement import cell_without_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jax.typing import ArrayLike, DTypeLike

T = TypeVar("T")


class CellTree(StrictAttributes, Generic[T]):
    """The cells of a structure, made by `qd.local`: each array of it is a private one of the running iteration.

    Fields are read and set as those of the structure: `ray.origin` is the present value, `ray.origin = v` and
    `ray.t += v` store, and so do `state["x"] = v` of a dict and methods of its class that set fields. `c.value` is the
    structure of present values; `c.value = other` stores all of another one of its form, whose values are read first.
    A field that is a structure is a `CellTree`: it is refused after a store of a whole one in its place, and
    `old = c.field.value` keeps it. A field that is called `value` is `c.value.value`.

    >>> @qd.dataclass
    ... class Hit:
    ...     t: jax.Array
    ...     item: jax.Array
    >>> @qd.jit
    ... def nearest(x, y):
    ...     out = qd.zeros(x.shape[0], jnp.int32)
    ...     for i in qd.range(x.shape[0]):
    ...         best = qd.local(Hit(jnp.inf, -1))
    ...         for j in qd.range(y.shape[0]):
    ...             hit = Hit(jnp.abs(x[i] - y[j]), j)
    ...             with qd.when(hit.t < best.t):
    ...                 best.value = hit
    ...         out[i] = best.item
    ...     return out
    >>> nearest(jnp.array([0.0, 7.0]), jnp.array([5.0, 1.0]))
    Array([1, 0], dtype=int32)
    """

    __slots__ = ("_cells", "_first", "_stored")
    _cells: T
    _stored: list[object]
    """The structures in whose place a whole one was stored, in order, of all structures of one `qd.local`."""
    _first: int | None
    """The number of these when this field was read; None for all that `qd.local` made."""
    _noun = "structure of qd.local"
    noun_of_names = "structure"
    how_to_keep = ".value"

    def __init__(self, tree: T, stored: list[object] | None = None) -> None:
        object.__setattr__(self, "_cells", tree)
        object.__setattr__(self, "_first", None if stored is None else len(stored))
        object.__setattr__(self, "_stored", [] if stored is None else stored)

    @property
    def _tree(self) -> T:
        """The cells, if no whole structure was stored into them since this field was read.

        In Python such a name stays with what was there before, as in `a.p, a.q = a.q, a.p`.
        """
        later = () if self._first is None else self._stored[self._first :]
        if any(_is_in(self._cells, other) for other in later):
            raise TraceTypeError.here(
                "a field of a qd.local was read as a structure, then another one was stored in its place",
                help="keep its values where it is read, `old = c.field.value`, as in "
                "`a.p, a.q = a.q.value, a.p.value`; or read the field again after the store",
            )
        return self._cells

    def _store_part(self, target: object, value: object) -> None:
        _store(target, value)
        if not isinstance(target, Cell):
            self._stored.append(target)

    @property
    def value(self) -> T:
        """The structure of the present values."""
        return jax.tree.map(as_value, self._tree, is_leaf=_is_memory)

    @value.setter
    def value(self, value: object) -> None:
        note_names(self)
        self._store_part(self._tree, value)
        if self._first is not None:
            object.__setattr__(self, "_first", len(self._stored))

    @property
    def _methods(self) -> frozenset[str]:
        tree = self._tree
        fields = [f.name for f in dataclasses.fields(tree)] if dataclasses.is_dataclass(tree) else ()
        builtin = {name for kind in (dict, list, tuple) if isinstance(tree, kind) for name in dir(kind)}
        mine = {name for name in dir(tree) if not name.startswith("_")} - builtin  # `update` would replace cells
        return frozenset({*fields, *getattr(tree, "_fields", ()), *mine} - {"value"})

    def _delegated(self, name: str) -> object:
        found = inspect.getattr_static(type(self._tree), name, None)
        if isinstance(found, property) and found.fget:
            return found.fget(self)
        if isinstance(found, FunctionType):
            return MethodType(found, self)  # not of the structure: the fields that it sets are cells
        return _part(getattr(self._tree, name), self._stored)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "value":
            object.__setattr__(self, name, value)
        elif name in self._methods:
            note_names(self)
            self._store_part(getattr(self._tree, name), value)
        else:
            self._assigned(name, value)

    def __getitem__(self, key: object, /) -> Any:
        return _part(self._tree[key], self._stored)  # type: ignore[index]

    def __setitem__(self, key: object, value: object, /) -> None:
        note_names(self)
        self._store_part(self._tree[key], value)  # type: ignore[index]

    def __iter__(self) -> Iterator[object]:
        return iter(self.value)  # type: ignore[call-overload]

    def __repr__(self) -> str:
        return f"CellTree({self._cells!r})"


def _is_memory(leaf: object) -> bool:
    return isinstance(leaf, MemoryHandle)


def _is_structure(value: object) -> bool:
    """Returns whether a value has named parts: lists and tuples without names are arrays, as in jnp."""
    if value is None or _is_memory(value) or hasattr(type(value), "__jax_array__"):
        return False
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return False
    return not jax.tree_util.treedef_is_leaf(jax.tree.structure(value))


def _is_in(part: object, whole: object) -> bool:
    """Returns whether a structure is part of another one, or this itself."""
    return any(leaf is part for leaf in jax.tree.leaves(whole, is_leaf=lambda leaf: leaf is part or _is_memory(leaf)))


def _present(value: object) -> object:
    """Returns the value with the present values of all structures of cells in it."""
    trees = (CellTree, MemoryHandle)
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, CellTree) else leaf, value, is_leaf=lambda v: isinstance(v, trees)
    )


def _part(part: object, stored: list[object]) -> object:
    return CellTree(part, stored) if isinstance(part, (list, tuple)) or _is_structure(part) else as_value(part)


def _store(target: object, value: object) -> None:
    """Stores a structure into cells, or a value into one of them."""
    refuse_swapped(leaf for leaf in jax.tree.leaves(value, is_leaf=_is_memory) if isinstance(leaf, MemoryHandle))
    value = _present(value)
    if isinstance(target, Cell):
        target.value = value
        return
    cells, form = jax.tree.flatten(target, is_leaf=_is_memory)
    values, given = jax.tree.flatten(value, is_leaf=_is_memory)
    if given != form or not all(isinstance(cell, Cell) for cell in cells):
        ours, its = type(target).__name__, type(value).__name__
        raise TraceTypeError.here(
            f"a store into a structure of qd.local needs {ours}, got {its}"
            + (f" with other parts: {form} and {given}" if ours == its else ""),
            help="store one of the same class and fields, or single fields: `c.field = v`, `c['key'] = v`",
        )
    for cell, one in zip(cells, [as_value(v) for v in values], strict=True):
        cell.value = one


@overload
def local(init: ArrayLike, dtype: DTypeLike | None = None) -> Cell: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def local(init: T) -> CellTree[T]: ...
@boundary
def local(init: object, dtype: DTypeLike | None = None) -> object:
    """Returns a cell that starts with `init`, made inside a loop, and gone with its iteration.

    Of a structure (a `qd.dataclass`, a named tuple, a dict) each array is a cell; the result is a `CellTree`.
    What is stored later is converted to its dtype; refused where it would lose its fraction or imaginary part.

    >>> @qd.jit
    ... def row_sums(x):
    ...     out = qd.zeros(x.shape[0])
    ...     for i in qd.range(x.shape[0]):
    ...         s = qd.local(0.0)
    ...         for j in qd.range(x.shape[1]):
    ...             s += x[i, j]
    ...         out[i] = s
    ...     return out
    >>> row_sums(jnp.ones((2, 3)))
    Array([3., 3.], dtype=float32)

    Args:
        init: a number or a random key, an array for a private array of its shape, or a structure of these.
        dtype: that of `init` when None; for a Python number JAX's default: f32, i32 or c64, in x64 mode f64, i64 or
            c128. A structure has that of each part.

    Raises:
        TraceTypeError: `init` is no number, array or structure of them, or does not fit into `dtype`.
        TraceValueError: the call stands outside of loops.
    """
    context = current("qd.local")
    if not context.regions:
        raise cell_without_loop(user_loc())
    name = name_of_result()
    init = _present(init)
    if not _is_structure(init):
        return new_cell(init, dtype, name)
    if dtype is not None:
        raise TraceTypeError.here(
            "a qd.local of a structure takes no dtype", help="convert its parts: `jnp.float32(0)`, `x.astype(dtype)`"
        )

    def cell(path: tuple[object, ...], part: object) -> Cell:
        return new_cell(part, None, f"{name}{jax.tree_util.keystr(path)}" if name else "")

    return CellTree(jax.tree_util.tree_map_with_path(cell, init, is_leaf=_is_memory))


def _flattened(tree: CellTree[Any]) -> tuple[tuple[object], None]:
    return (tree._tree,), None  # pyright: ignore[reportPrivateUsage]


jax.tree_util.register_pytree_node(CellTree, _flattened, lambda _, children: CellTree(children[0]))
