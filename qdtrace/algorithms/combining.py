"""`qd.scan` and `qd.reduce_by_key`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from qdtrace.algorithms.arguments import count_of, keys_of, leaves_of
from qdtrace.algorithms.digits import ordered_bits
from qdtrace.algorithms.packing import compact
from qdtrace.algorithms.scanned import scanned
from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.trace.arguments import as_values

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@boundary
def scan(f: Callable[[T, T], T], x: T) -> T:
    """Returns running combinations of elements by an associative function: `x[0]`, `f(x[0], x[1])`, and so on.

    `f` takes two elements: where `x` is a tree, two trees with an element of each array. Elements are combined in
    their order, in groups that depend on the length of `x` alone, so results are the same in each run. Where `f` is not
    associative but for roundings (`a - b`), results mean nothing. Derivatives, also by what `f` captures, and
    `jax.vmap` are JAX's. It may stand wherever JAX functions may. On a CPU arrays of 4096 or more elements are two
    passes of tasks.

    >>> qd.scan(jnp.maximum, jnp.array([1, 3, 2, 5]))
    Array([1, 3, 3, 5], dtype=int32)
    >>> qd.scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (jnp.array([2.0, 3.0]), jnp.array([1.0, 4.0])))
    (Array([2., 6.], dtype=float32), Array([1., 7.], dtype=float32))

    Args:
        f: a traced function of two elements that returns one with their structure, shapes and dtypes.
        x: an array, or a tree of arrays, with first axes of one length.

    Returns a tree like `x`.

    Raises:
        TraceTypeError: `f` is no function, or returns something else than an element.
        TraceValueError: there is no array, or first axes differ.
    """
    first = jax.tree.leaves(as_values(x))[:1]
    if not first or jnp.ndim(first[0]) == 0:
        got = "a number" if first else "none"
        help = "scan an array of one axis or more: `qd.scan(jnp.add, x)`"
        raise TraceValueError.here(f"qd.scan needs arrays with a first axis, got {got}", help=help)
    leaves, structure = leaves_of(x, "qd.scan", jnp.shape(first[0])[0], "that of the first one")
    _require_element(f, leaves, structure, "qd.scan")

    return jax.tree.unflatten(structure, scanned(_of_leaves(f, structure), leaves, _key_of(f, structure)))


@boundary
def reduce_by_key(
    keys: Any, values: T, f: Callable[[T, T], T] | None = None, size: int | None = None
) -> tuple[jax.Array, T, jax.Array]:
    """Returns the key of each run of equal neighbours, its values combined, and the number of runs.

    Sort by the keys first (`qd.sort`) to have one run a key. Values are added up, or combined by an associative
    function in their order. What is behind the last run is zeros; of more runs than `size` the first ones are kept.

    >>> qd.reduce_by_key(jnp.array([4, 4, 7]), jnp.array([1.0, 2.0, 3.0]))
    (Array([4, 7, 0], dtype=int32), Array([3., 3., 0.], dtype=float32), Array(2, dtype=int32))

    Args:
        keys: bools, integers or floats with one axis; NaNs are equal.
        values: an array, or a tree of arrays, whose first axes are as long as `keys`.
        f: a function of two elements as `qd.scan` takes it; None adds.
        size: elements of the results, static; as many as there are keys if None.

    Returns the keys, the values, and the number of runs as i32.

    Raises:
        TraceTypeError: keys have no order, `f` returns something else than an element, or `size` is no static integer.
        TraceValueError: keys have not one axis, an array has another length, or `size` is negative.
    """
    row = keys_of(keys, "qd.reduce_by_key")
    leaves, structure = leaves_of(values, "qd.reduce_by_key", row.shape[0], "the keys")
    if f is not None:
        _require_element(f, leaves, structure, "qd.reduce_by_key")
    room = row.shape[0] if size is None else count_of(size, "size= of qd.reduce_by_key")
    numbers = ordered_bits(row) if jnp.issubdtype(row.dtype, jnp.floating) else row  # XLA takes small ones for zeros
    differ = numbers[1:] != numbers[:-1]
    edge = jnp.ones(min(row.shape[0], 1), jnp.bool_)
    begins, ends = jnp.concatenate([edge, differ]), jnp.concatenate([differ, edge])

    combined = _added if f is None else _of_leaves(f, structure)

    def in_run(a: Any, b: Any) -> Any:
        """Starts again where the second element begins a run."""
        made = combined(a[1:], b[1:])
        return [a[0] | b[0], *(jnp.where(b[0], y, x) for x, y in zip(made, b[1:], strict=True))]

    _, *totals = scanned(in_run, [begins, *leaves], _key_of(f, structure, "run"))
    (kept, sums), count = compact(ends, (row, totals), room)
    return kept, jax.tree.unflatten(structure, sums), count


def _of_leaves(f: Callable[[Any, Any], Any], structure: Any) -> Callable[[Any, Any], list[Any]]:
    """Returns the function of two lists of leaves."""
    return lambda a, b: jax.tree.leaves(f(jax.tree.unflatten(structure, a), jax.tree.unflatten(structure, b)))


def _added(a: Any, b: Any) -> list[Any]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _key_of(f: Any, *how: Any) -> tuple[Any, ...] | None:
    """Returns a key of a function that is the same in each call: none, or one of JAX's or of `operator`."""
    name = getattr(f, "__name__", "")
    is_library = f is None or any(getattr(module, name, None) is f for module in (jnp, lax, operator))
    return (f, *how) if is_library else None


def _require_element(f: Any, leaves: list[jax.Array], structure: Any, what: str) -> None:
    """Refuses a function of two elements that does not return one."""
    if not callable(f):
        raise TraceTypeError.here(
            f"{what} needs a function of two elements, got {type(f).__name__}", help="give one as `jnp.add`"
        )
    types = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in leaves]
    element = jax.tree.unflatten(structure, types)
    returned = jax.eval_shape(f, element, element)
    got = [(x.shape, x.dtype) for x in jax.tree.leaves(returned)]
    if jax.tree.structure(returned) != structure or got != [(x.shape, x.dtype) for x in types]:
        raise TraceTypeError.here(
            f"the function of {what} needs to return an element as it takes, {_told(element)}, got {_told(returned)}",
            help="convert its results: `.astype(a.dtype)`",
        )


def _told(element: Any) -> str:
    """Returns the types of an element, in its structure."""
    return str(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape) or ''}", element)).replace("'", "")
