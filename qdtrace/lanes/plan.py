"""The plan of a `qd.vmap`: batch sizes, nested ones that join its loop, and the places of results."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import TraceTypeError, TraceValueError, UnsupportedError, user_loc
from qdtrace.frozen import frozen, mutable
from qdtrace.lanes.sources import of_caller, of_element, of_mapped
from qdtrace.lanes.stages import calls_programs
from qdtrace.trace import compat
from qdtrace.trace.arguments import as_values
from qdtrace.trace.buffers import Buffer, content_of
from qdtrace.trace.cells import Cell
from qdtrace.trace.context import LANE, OpenRegion, WholeCalls, new_uid
from qdtrace.trace.diagnosis.explain import explained
from qdtrace.trace.dtypes import as_weak, is_key, is_weak
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.indexing import as_value
from qdtrace.trace.lengths import known
from qdtrace.trace.refs import is_ref, refusal
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from qdtrace.lanes.sources import Source
    from qdtrace.trace.context import TraceContext

IN_PLACE = 256
"""The most elements of an argument that a lane copies; it reads larger ones in place, element by element."""
REFERENCE = "reference"
"""Mode of a trace in which every `qd.vmap` is `jax.vmap`."""
_MARK = "qd_lanes"
_MOVES = {"iota", "broadcast_in_dim", "reshape", "squeeze", "slice", "transpose", "copy"}


@frozen
class Lane:
    """Mode of a trace in the body of a joined loop: indices for the `qd.vmap` that is called next."""

    indices: tuple[Any, ...]


@frozen
class Mapping:
    """A function of one element, and the axes of its batch."""

    f: Callable[..., Any]
    in_axes: Any
    out_axes: Any
    given: tuple[int | None, ...] | None = None
    """Axes of all leaves of the arguments, instead of `in_axes`."""
    axis_name: Any = None
    axis_size: int | None = None
    spmd_axis_name: Any = None
    """JAX's name for sharding the axis, used if JAX does the mapping."""
    pure: bool | None = None
    """Value of the option `pure`, if the user gave one."""

    @staticmethod
    def flatten(args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        """Flattens the arguments; a buffer is a leaf."""
        return jax.tree.flatten((args, kwargs), is_leaf=_is_buffer)

    def leaf_axes(self, args: Any, kwargs: Any) -> list[int | None]:
        """Returns the mapped axis of each leaf of the arguments."""
        if self.given is not None:
            return list(self.given)
        spec = tuple(self.in_axes) if isinstance(self.in_axes, list) else self.in_axes
        return [*_flat_axes(spec, args, "in_axes", "arguments"), *_flat_axes(0, kwargs, "in_axes", "arguments")]

    def by_jax(self, args: Any, kwargs: Any, keep: Sequence[int] | None = None) -> Any:
        """Runs the mapping by `jax.vmap`; `keep` selects leaves of the result, as a list."""
        leaves, tree = jax.tree.flatten((args, kwargs))

        def flat(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            out = self.f(*args, **kwargs)
            return out if keep is None else [jax.tree.leaves(out)[k] for k in keep]

        out_axes = self.out_axes
        if keep is not None:
            with self.named(leaves, self.leaf_axes(args, kwargs)):
                shapes = jax.eval_shape(lambda args, kwargs: self._element(args, kwargs), args, kwargs)
            spread = _flat_axes(self.out_axes, shapes, "out_axes", "results")
            out_axes = [spread[k] for k in keep]
        in_axes = tuple(self.leaf_axes(args, kwargs))
        named = {"axis_name": self.axis_name, "axis_size": self.axis_size, "spmd_axis_name": self.spmd_axis_name}
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        return jax.vmap(flat, in_axes=in_axes, out_axes=out_axes, **given)(*leaves)

    def named(self, leaves: Sequence[Any], axes: Sequence[int | None]) -> AbstractContextManager[Any]:
        """Returns a block in which JAX knows the axis by its name, for the trace of one element."""
        if self.axis_name is None:
            return nullcontext()
        return compat.named_axis(self.axis_name, known(self.size_of(leaves, axes)))

    def size_of(self, leaves: Sequence[Any], axes: Sequence[int | None]) -> int:
        """Returns the batch size of these arguments."""
        return _batch_size(leaves, axes, self.axis_size)

    def _element(self, args: Any, kwargs: Any) -> Any:
        """Returns the function's result for one element, only for its shapes."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        axes = self.leaf_axes(args, kwargs)
        one = [
            x if a is None else jnp.zeros(_without(x.shape, a), x.dtype) if not is_key(x) else _first_key(x, a)
            for x, a in zip(leaves, axes, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(tree, one)
        return self.f(*args, **kwargs)


class Mapped:
    """Base of the results of `qd.vmap`, which functions that only copy its attributes (`functools.wraps`) lack."""

    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping


@frozen
class Bound:
    """A function of the leaves of its arguments, some of which are objects that stay as they are."""

    f: Callable[..., Any]
    tree: Any
    """Tree structure of the arguments."""
    objects: tuple[tuple[int, Any], ...]
    """Leaves that are no arrays, with their positions."""

    def __call__(self, *leaves: Any) -> Any:
        left, objects = iter(leaves), dict(self.objects)
        args, kwargs = jax.tree.unflatten(
            self.tree, [objects[k] if k in objects else next(left) for k in range(self.tree.num_leaves)]
        )
        return self.f(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return getattr(self.f, "__name__", type(self.f).__name__)


_VALUES = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, jax.ShapeDtypeStruct, MemoryHandle)


def with_objects(mapping: Mapping, args: Any, kwargs: Any) -> tuple[Mapping, list[Any]]:
    """Returns the mapping with arguments that are no arrays bound into its function, and the remaining arguments.

    Raises TraceTypeError for such an object that has an axis, UnsupportedError for a reference of JAX.
    """
    leaves, tree = Mapping.flatten(args, kwargs)
    axes = mapping.leaf_axes(args, kwargs)
    objects = tuple((k, x) for k, x in enumerate(leaves) if not is_value(x))
    for k, x in objects:
        if is_ref(x):
            raise refusal(user_loc())
        if axes[k] is not None:
            raise TraceTypeError.here(
                f"qd.vmap needs an array, a number or a pytree of them where it maps, got {type(x).__name__}",
                help="give it the entry None in in_axes, or to the function beforehand: functools.partial",
            )
    rest = [k for k, x in enumerate(leaves) if is_value(x)]
    bound = Bound(mapping.f, tree, objects)
    return replace(mapping, f=bound, given=tuple(axes[k] for k in rest)), [leaves[k] for k in rest]


def is_value(x: Any) -> bool:
    """Returns whether a leaf is an array or a number, of JAX or of others, or memory of this package."""
    if isinstance(x, _VALUES):
        return True
    known = ("__dlpack__", "__jax_array__", "__array__")
    return not isinstance(x, type) and any(hasattr(x, name) for name in known)


@mutable
class Part:
    """The part of an argument that a lane selects, by an index for some of its axes."""

    base: Any
    at: tuple[Any, ...] = ()
    """Index per axis; None keeps the axis."""
    whole: Any = None
    """Content of a buffer, read before the loop."""

    def __post_init__(self) -> None:
        if not self.at:
            self.at = (None,) * getattr(self.base, "ndim", 0)
        if self.whole is None:
            self.whole = content_of(self.base) if isinstance(self.base, Buffer) else self.base

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected elements."""
        return tuple(n for n, k in zip(_shape_of(self.base), self.at, strict=True) if k is None)

    def select(self, axis: int, index: Any) -> Part:
        """Returns one element along one of the axes that are kept."""
        free = [k for k, taken in enumerate(self.at) if taken is None]
        place = free[axis % len(free)]
        return Part(self.base, (*self.at[:place], index, *self.at[place + 1 :]), self.whole)

    def value(self, *, lazy: bool, most: int = IN_PLACE) -> Any:
        """Returns the value; if `lazy`, as a slice of the whole, of which later only an element may be read.

        So is one of more than `most` elements.
        """
        if all(k is None for k in self.at):
            known(self.shape)
            return self.whole
        if lazy or not isinstance(self.base, Buffer) or prod(self.shape) > most:
            known(self.shape)
            out = jnp.asarray(self.whole)
            for axis in range(len(self.at) - 1, -1, -1):
                if self.at[axis] is not None:
                    out = lax.dynamic_index_in_dim(out, self.at[axis], axis, keepdims=False)
            return out
        return jnp.asarray(self.base[tuple(slice(None) if k is None else k for k in self.at)])


@frozen
class Slot:
    """The place of a leaf of the results: shape and dtype of the whole, and the axis of each loop index."""

    shape: tuple[int, ...]
    dtype: Any
    order: tuple[int | None, ...]
    """Loop per axis; None for an axis of the element."""
    impl: Any = None
    """Implementation of random keys, whose words are stored."""
    weak: bool = False
    """True if other operands decide the type of what is computed of the result (`weak_type` of JAX)."""

    @property
    def is_float0(self) -> bool:
        """True if elements are derivatives of integers, which hold nothing."""
        return self.dtype == jax.dtypes.float0

    def index(self, indices: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the index of an element in the whole."""
        return tuple(slice(None) if k is None else indices[k] for k in self.order)

    def store(self, whole: Any, indices: tuple[Any, ...], element: Any) -> None:
        """Stores an element in the buffer of the whole."""
        whole[self.index(indices)] = jax.random.key_data(element) if is_key(element) else element

    def content(self, whole: Any, *, is_last: bool) -> Any:
        """Returns the buffer of the whole, or the array that the results are, if that is no buffer of their type.

        If it is the last that a function does, nobody looks at the shape of that array.
        """
        if self.is_float0:
            return np.zeros(self.shape, self.dtype)
        if self.impl is not None:
            return jax.random.wrap_key_data(whole[...], impl=self.impl)
        return as_weak(content_of(whole) if is_last else whole) if self.weak else whole


@frozen
class Plan:
    """The sizes of one loop, from the outermost `qd.vmap` to the innermost, and the results."""

    sizes: tuple[int, ...]
    slots: tuple[Slot | None, ...]
    """Places of the results; None for one that some level does not map."""
    tree: Any
    element: Any = None
    """The function of one element as a jaxpr."""
    sources: Sequence[Source | None] = ()
    """Origins of its arguments and constants; None for those that functions around it compute."""


@mutable
class _Levels:
    sizes: list[int]
    axes: list[list[int | None]]
    """Axes of all leaves of the results, for each level."""
    elements: list[Any]
    """Shapes of the leaves for one element."""
    tree: Any
    element: Any = None
    """The innermost function as a jaxpr."""
    sources: Sequence[Source | None] = ()
    """Origins of its arguments and constants."""

    @property
    def calls_programs(self) -> bool:
        """True if the innermost function calls functions of `qd.jit` as they are."""
        return calls_programs(compat.open_jaxpr(self.element).eqns)


def plan_of(mapping: Mapping, args: Any, kwargs: Any, context: TraceContext) -> Plan:
    """Returns the plan of a `qd.vmap` on these arguments."""
    levels = _levels(mapping, args, kwargs, context)
    slots = [
        _slot(element, [axes[k] for axes in levels.axes], levels.sizes) for k, element in enumerate(levels.elements)
    ]
    return Plan(tuple(levels.sizes), tuple(slots), levels.tree, levels.element, levels.sources)


def _slot(element: Any, axes: list[int | None], sizes: list[int]) -> Slot | None:
    return None if None in axes else slot_of(element, axes, sizes)


def slot_of(element: Any, axes: Sequence[int | None], sizes: Sequence[int]) -> Slot:
    """Returns the place of a result of one element in the whole; each level has an axis."""
    shape: list[int] = list(element.shape)
    order: list[int | None] = [None] * len(shape)
    for level in range(len(sizes) - 1, -1, -1):
        axis = axes[level]
        assert axis is not None
        if not -len(shape) - 1 <= axis <= len(shape):
            raise TraceTypeError.here(
                f"qd.vmap needs an axis within the rank of the result, got out_axes={axis} for shape "
                f"{(sizes[level], *shape)}",
                help=f"with the mapped axis the result has rank {len(shape) + 1}: write an axis below that",
            )
        axis %= len(shape) + 1
        shape.insert(axis, sizes[level])
        order.insert(axis, level)
    if is_key(element):
        words, impl = _words(element)
        return Slot((*shape, *words), jnp.uint32, tuple(order), impl)
    return Slot(tuple(shape), element.dtype, tuple(order), weak=is_weak(element))


def _levels(mapping: Mapping, args: Any, kwargs: Any, context: TraceContext, names: tuple[Any, ...] = ()) -> _Levels:
    """Returns the levels of a mapping; `names` are those of the axes around it."""
    leaves, tree = Mapping.flatten(args, kwargs)
    axes = mapping.leaf_axes(args, kwargs)
    size = mapping.size_of(leaves, axes)
    names = names if mapping.axis_name is None else (*names, mapping.axis_name)
    element = [
        jax.ShapeDtypeStruct(
            known(_shape_of(x) if a is None else _without(x.shape, a)),
            jnp.result_type(x) if not hasattr(x, "dtype") else x.dtype,
            weak_type=is_weak(x.tracer if isinstance(x, Buffer) else x),
        )
        for x, a in zip(leaves, axes, strict=True)
    ]
    one_args, one_kwargs = jax.tree.unflatten(tree, element)
    with mapping.named(leaves, axes):
        if isinstance(mapping.f, Mapped):
            inner = mapping.f.mapping
            found = _levels(inner, one_args, one_kwargs, context, names)
            if found.calls_programs:  # which no loop has inside: this level alone is one
                found = _probe(lambda *args, **kwargs: inner.by_jax(args, kwargs), one_args, one_kwargs, context, names)
        else:
            found = _probe(mapping.f, one_args, one_kwargs, context, names)
    results = jax.tree.unflatten(found.tree, found.elements)
    found.axes.insert(0, _flat_axes(mapping.out_axes, results, "out_axes", "results"))
    found.sizes.insert(0, size)
    return replace(found, sources=of_mapped(found.sources, axes))


def _probe(f: Callable[..., Any], args: Any, kwargs: Any, context: TraceContext, names: tuple[Any, ...]) -> _Levels:
    """Traces a function of one element; returns its shapes, or the levels of the only `qd.vmap` that it calls.

    It runs as in the later loop, so objects of one iteration (`qd.local`) may be made in it. It runs again for
    each function of `qd.jit` that it calls and that can be no part of a loop.
    """
    whole = WholeCalls(len(context.regions) + 1)
    while True:
        known, whole.count = len(whole.numbers), 0
        try:
            return _probed(f, args, kwargs, context, names, whole)
        except Exception:
            if len(whole.numbers) == known:
                raise
            context.error = None


def _probed(
    f: Callable[..., Any], args: Any, kwargs: Any, context: TraceContext, names: tuple[Any, ...], whole: WholeCalls
) -> _Levels:
    probe = Probe(context, names)
    is_tail = False
    sources: Sequence[Source | None] = ()

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_tail, sources
        out = without_cells(f(*args, **kwargs))
        leaves, tree = jax.tree.flatten(out)
        _check_results(leaves)
        is_tail = len(probe.calls) == 1 and probe.calls[0].gave(leaves, tree)
        if is_tail:
            call = probe.calls[0]
            sources = of_caller(call.levels.sources, call.given, jax.tree.leaves((args, kwargs)))
        return out

    before, regions = (context.lanes, context.watching, context.whole_calls), list(context.regions)
    context.lanes, context.watching, context.whole_calls = probe, False, whole
    loc = user_loc()
    context.regions.append(OpenRegion("for", LANE, loc, new_uid(), parallel=True, key=context.new_key(loc)))
    try:
        with explained():
            closed, shapes = jax.make_jaxpr(run, return_shape=True)(*args, **kwargs)
    finally:
        (context.lanes, context.watching, context.whole_calls), context.regions[:] = before, regions
    for eqn in compat.all_eqns(compat.open_jaxpr(closed).eqns) if names else ():
        if not set(names).isdisjoint(compat.axes_of(eqn)):
            raise _collective(eqn, names)
    is_joined = is_tail and not probe.calls[0].levels.calls_programs
    if is_joined and all(map(_is_free, compat.open_jaxpr(closed).eqns)):
        return replace(probe.calls[0].levels, sources=sources)
    elements, tree = jax.tree.flatten(shapes)
    given = of_element(jax.tree.leaves((args, kwargs)), compat.constants_of(closed))
    return _Levels([], [], elements, tree, closed, given)


def without_cells(results: Any) -> Any:
    """Replaces each `qd.local` among results by its value."""
    return jax.tree.map(as_value, results, is_leaf=lambda x: isinstance(x, Cell))


def _collective(eqn: Any, names: tuple[Any, ...]) -> UnsupportedError:
    name = next(name for name in names if name in compat.axes_of(eqn))
    instead = (
        "map over `jnp.arange(n)` as well"
        if eqn.primitive is lax.axis_index_p
        else ("end the function here, combine the elements' results by jnp, and map a second function; or use jax.vmap")
    )
    return UnsupportedError(
        f"`{eqn.primitive.name}` over the axis {name!r} of a qd.vmap: its elements run by themselves, in no order",
        loc=eqn_loc(eqn),
        help=instead,
    )


def _check_results(leaves: list[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)):
            raise TraceTypeError.here(
                f"qd.vmap needs a function that gives arrays, numbers or pytrees of them, got {type(leaf).__name__}",
                help="return the parts that are arrays",
            )


@mutable
class _Call:
    levels: _Levels
    given: list[Any]
    """Leaves of the arguments."""
    leaves: list[Any]
    tree: Any

    def gave(self, leaves: list[Any], tree: Any) -> bool:
        """Returns whether these are the call's results, unchanged."""
        return tree == self.tree and all(a is b for a, b in zip(leaves, self.leaves, strict=True))


@mutable
class Probe:
    """Mode of a trace that looks for shapes, and for a `qd.vmap` that could join the loop."""

    context: TraceContext
    names: tuple[Any, ...] = ()
    calls: list[_Call] = field(default_factory=list)

    def called(self, mapping: Mapping, args: Any, kwargs: Any) -> Any:
        """Runs a called `qd.vmap` by JAX, in one equation, and records its levels."""
        given, _ = Mapping.flatten(args, kwargs)
        args, kwargs = as_values((args, kwargs))
        levels = _levels(mapping, args, kwargs, self.context, self.names)

        def qd_lanes(args: Any, kwargs: Any) -> Any:
            return mapping.by_jax(args, kwargs)

        self.context.lanes = REFERENCE
        try:
            out = jax.jit(qd_lanes)(args, kwargs)
        finally:
            self.context.lanes = self
        leaves, tree = jax.tree.flatten(out)
        self.calls.append(_Call(levels, given, leaves, tree))
        return out


def _is_free(eqn: Any) -> bool:
    """Returns whether an equation is the joined call, or may be repeated for each of its elements."""
    if eqn.params.get("name") == _MARK:
        return True
    is_small = all(v.aval.size <= 1 for v in eqn.outvars)
    is_plain = not eqn.effects and not compat.holds_jaxpr(eqn)
    return is_plain and (is_small or eqn.primitive.name in _MOVES)


def _flat_axes(axes: Any, tree: Any, what: str, of: str) -> list[int | None]:
    """Returns the axes of a prefix pytree, one per leaf."""
    try:
        spread = jax.tree.map(
            lambda a, t: jax.tree.map(lambda _: _Axis(a), t, is_leaf=_is_buffer),
            axes,
            tree,
            is_leaf=lambda a: a is None,
        )
        flat = [axis.value for axis in jax.tree.leaves(spread)]
    except ValueError:
        flat = [axes]
    if all(a is None or (isinstance(a, int) and not isinstance(a, bool)) for a in flat):
        return flat
    raise TraceTypeError.here(
        f"qd.vmap needs {what} to be an int, None or a prefix of the {of}' pytree, got {axes!r}",
        help=f"give one entry for each of the {of}: `{what}=(0, None)` for two",
    )


def _words(keys: Any) -> tuple[tuple[int, ...], Any]:
    """Returns the shape of the words of one key, and JAX's implementation of the keys."""
    found: list[Any] = []

    def data(keys: Any) -> Any:
        found.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    return jax.eval_shape(data, keys).shape[len(keys.shape) :], found[0]


def _first_key(x: Any, axis: int) -> Any:
    return lax.index_in_dim(x, 0, axis, keepdims=False)


def _is_buffer(x: Any) -> bool:
    return isinstance(x, Buffer)


class _Axis:
    """An axis as a leaf, so that None counts as one."""

    def __init__(self, value: int | None) -> None:
        self.value = value


def _batch_size(leaves: Sequence[Any], axes: Sequence[int | None], given: int | None) -> int:
    sizes = [] if given is None else [given]
    for x, a in zip(leaves, axes, strict=True):
        if a is None:
            continue
        shape = _shape_of(x)
        if not -len(shape) <= a < len(shape):
            raise TraceTypeError.here(
                f"qd.vmap needs an axis within the rank of the argument, got axis {a} of shape {shape}",
                help="give in_axes an entry for each argument, None for one that all elements share; make an array of "
                "a list: `jnp.array(values)`",
            )
        if shape[a] not in sizes:
            sizes.append(shape[a])
    if not sizes:
        raise TraceValueError.here(
            "qd.vmap needs at least one mapped argument, got in_axes=None for all",
            help="give an axis to one argument, or the size by axis_size=n, or call the function without qd.vmap",
        )
    if len(sizes) > 1:
        raise TraceValueError.here(
            f"qd.vmap needs one batch size, got {', '.join(map(str, sizes))}",
            notes=() if given is None else (f"axis_size={given} says one of them",),
            help="give arguments of equal length along the mapped axes, or in_axes=None for one that all share",
        )
    return sizes[0]


def _shape_of(x: Any) -> tuple[int, ...]:
    """Returns the shape of a leaf; that of a buffer may have lengths that nobody asked for yet."""
    return x.shape if hasattr(x, "shape") else jnp.shape(x)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])
