"""The marker primitives: memory, loops and conditions as equations of a flat jaxpr.

A marker carries `QdEffect`, so JAX keeps it and its order. Markers have no implementation: they only mean something
inside a trace, where `regions.restructure` gives each region the jaxpr of its body. Memory travels as array-typed
tracers ("handles") that only markers may use.

A marker with indices has `slices`, one entry an axis: None takes the next index operand, (start, stop, step) is a
static slice. The shape of the value is the lengths of the sliced axes.
"""

from __future__ import annotations

import functools
from builtins import range as builtin_range
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.interpreters import ad, batching

from qdtrace.errors import GradientError, UnsupportedError, outside
from qdtrace.trace.compat import QD, Maker, Primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn


    Axes = Sequence[int | None]

Slices = tuple[tuple[int, int, int] | None, ...]
_EFFECTS = {QD}
_VMAP_LIMIT = 256
_refusals: dict[Primitive, tuple[Callable[..., NoReturn], Callable[..., NoReturn]]] = {}


def sliced_shape(slices: Slices) -> tuple[int, ...]:
    """Returns the shape of the value that an access with these slices moves."""
    return tuple(len(builtin_range(*s)) for s in slices if s is not None)


def _marker(name: str, rule: Callable[..., object], *, results: int, shown: str = "") -> Primitive:
    shown = shown or f"qd.{name}"
    makes = name in ("alloc", "buffer", "local")
    primitive = (Maker if makes else Primitive)(f"qd_{name}")
    primitive.multiple_results = results == 0

    def implementation(*_: object, **__: object) -> NoReturn:
        raise outside(shown)

    def abstract(*avals: object, **params: object) -> object:
        return rule(*avals, **params), _EFFECTS

    takes_handle = not makes and "_" not in name

    def batch(_: object = (), axes: Axes = (), **__: object) -> NoReturn:
        if takes_handle and axes and axes[0] is not None:
            raise _given_a_buffer("jax.vmap")
        raise UnsupportedError.here(
            f"{shown} inside jax.vmap needs operands without a batch axis",
            help="write the batch as a loop: `for k in qd.range(n):`, or apply jax.vmap to the whole qd.jit function",
        )

    def differentiate(_: object = (), tangents: Sequence[object] = (), **__: object) -> NoReturn:
        if takes_handle and tangents and type(tangents[0]) is not ad.Zero:
            raise _given_a_buffer("jax.grad")
        raise GradientError.here(
            f"{shown} cannot be differentiated by jax.grad or jax.jvp inside a traced function",
            help="differentiate a pure function there (values in, values out), or apply jax.grad to the whole qd.jit "
            "function",
        )

    _refusals[primitive] = batch, differentiate
    primitive.def_impl(implementation)
    primitive.def_effectful_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = differentiate
    return primitive


def _given_a_buffer(transformation: str) -> UnsupportedError:
    return UnsupportedError.here(
        f"{transformation} needs values, got a buffer",
        help=f"give it the content: `{transformation}(f)(x[...])`",
        wants="array",
    )


def _allocated(*_: object, shape: tuple[int, ...], dtype: object, **__: object) -> ShapedArray:
    return ShapedArray(shape, dtype)


def _like(aval: ShapedArray, *_: object, **__: object) -> ShapedArray:
    return ShapedArray(aval.shape, aval.dtype)


def _content(aval: ShapedArray, *_: object, **__: object) -> ShapedArray:
    return ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)  # as JAX's arrays, which other dtypes decide


def _nothing(*_: object, **__: object) -> list[object]:
    return []


def _accessed(handle: ShapedArray, *_: object, slices: Slices, **__: object) -> ShapedArray:
    return ShapedArray(sliced_shape(slices), handle.dtype, weak_type=handle.weak_type)


alloc_p = _marker("alloc", _allocated, results=1, shown="allocating a buffer")
"""A buffer; no operand: undefined content; one: the value it is filled with. `called`: the user's variable."""
buffer_p = _marker("buffer", _content, results=1, shown="making a buffer")
"""A buffer with the content of an array."""
read_p = _marker("read", _content, results=1, shown="reading a buffer")
"""The whole content of a buffer at this point."""
assign_p = _marker("assign", _nothing, results=0, shown="`b[...] = v`")
"""Replaces the whole content of a buffer."""
load_p = _marker("load", _accessed, results=1, shown="`b[i]`")
reach_p = _marker("reach", _nothing, results=0, shown="`b[i]`")
"""Checks of the indices of a load, of a buffer or a cell, whose value nobody uses."""
store_p = _marker("store", _nothing, results=0, shown="`b[i] = v`")
"""Stores a value at indices. Operands: handle, value, indices."""
accum_p = _marker("accum", _nothing, results=0, shown="`b.at[i].add(v)`")
"""Accumulates by `op`, one of add mul min max. Operands: handle, value, indices."""
accum_along_p = _marker("accum_along", _nothing, results=0, shown="`b.at[i].max(v)`")
"""An accumulation with its tangents along `directions`: a handle and a value for each set of directions, whose bits
count them, then indices."""
update_p = _marker("update", _nothing, results=0, shown="`b[i] += v`")
"""`b[i] += v`: handle, value loaded before, sum, v, indices; `in_place` when one statement of this form is known to
have made and stored the sum. Restructuring makes it an accum or a store."""
atomic_p = _marker("atomic", _accessed, results=1, shown="an atomic")
"""Updates an element atomically and returns the old value. Operands: handle, `nvalues` values, indices."""
push_p = _marker("push", lambda handle, **_: ShapedArray((), handle.dtype), results=1, shown="a push")
"""The next free place of a `qd.append`, whose number of elements is the operand; `pushes` replaces it."""
local_p = _marker("local", _like, results=1)
"""A cell of the running thread."""
lget_p = _marker("lget", _accessed, results=1, shown="reading a qd.local")
lset_p = _marker("lset", _nothing, results=0, shown="storing into a qd.local")

again_p = _marker("again_begin", _like, results=1, shown="qd.range")
"""Begins a second trip through the body that just ended, for comparison, and returns the index. `uid`: the loop's."""
again_end_p = _marker("again_end", _nothing, results=0, shown="qd.range")
"""Ends a second trip; `grown` says that it added a traced value to a collection, as the first one did."""

loop_begin_p = _marker("loop_begin", _like, results=1, shown="qd.range")
loop_end_p = _marker("loop_end", _nothing, results=0, shown="qd.range")
when_begin_p = _marker("when_begin", _nothing, results=0, shown="qd.when")
when_end_p = _marker("when_end", _nothing, results=0, shown="qd.when")
while_begin_p = _marker("while_begin", _nothing, results=0, shown="qd.while_")
while_test_p = _marker("while_test", _nothing, results=0, shown="qd.while_")
while_end_p = _marker("while_end", _nothing, results=0, shown="qd.while_")
check_p = _marker("check", _nothing, results=0, shown="qd.check")
"""Checks its operand, the condition; `message` is the text of the failure."""
break_p = _marker("break", _nothing, results=0, shown="qd.break_if")
continue_p = _marker("continue", _nothing, results=0, shown="qd.continue_if")

for_p = _marker("for", _nothing, results=0, shown="qd.range")
while_p = _marker("while", _nothing, results=0, shown="qd.while_")
when_p = _marker("when", _nothing, results=0, shown="qd.when")
REGIONS = {for_p: "for", while_p: "while", when_p: "when"}
"""Equations that own the jaxpr of their body, which `regions.restructure` makes of what stands between markers."""
BEGINS = {loop_begin_p: for_p, when_begin_p: when_p, while_begin_p: while_p}
ENDS = {loop_end_p: for_p, when_end_p: when_p, while_end_p: while_p}
CELL_ACCESSES = {lget_p, lset_p}
BUFFER_ACCESSES = {read_p, assign_p, load_p, store_p, accum_p, accum_along_p, update_p, atomic_p, push_p}
ACCESSES = CELL_ACCESSES | BUFFER_ACCESSES | {reach_p}
MAKERS = {alloc_p, buffer_p, local_p}
READS = {read_p, load_p, lget_p}
MARKERS = ACCESSES | MAKERS | {*REGIONS, *BEGINS, *ENDS, while_test_p, break_p, continue_p, check_p}


def _batched_read(primitive: Primitive) -> Callable[..., tuple[object, int | None]]:
    """Returns the rule of `jax.vmap` over the index of a load: one load an element, stacked."""
    refuse, _ = _refusals[primitive]

    def rule(operands: Sequence[jax.Array], axes: Axes, **params: object) -> tuple[object, int | None]:
        handle, *indices = operands
        handle_axis, *index_axes = axes
        size = next((x.shape[a] for x, a in zip(indices, index_axes, strict=True) if a is not None), None)
        if handle_axis is not None or size is None or size > _VMAP_LIMIT:
            return refuse(operands, axes)
        pairs = [*zip(indices, index_axes, strict=True)]
        rows = [[x if a is None else x[k] for x, a in pairs] for k in builtin_range(size)]
        return jnp.stack([primitive.bind(handle, *row, **params) for row in rows]), 0

    return rule


def _constant_jvp(primitive: Primitive) -> Callable[..., tuple[object, object]]:
    """Returns a rule of forward mode with zero tangents: memory is a constant to `jax.grad` of a pure function."""
    _, refuse = _refusals[primitive]

    def rule(primals: Sequence[jax.Array], tangents: Sequence[object], **params: object) -> tuple[object, object]:
        if type(tangents[0]) is not ad.Zero:
            return refuse(primals, tangents)
        out = primitive.bind(*primals, **params)
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())

    return rule


def _through(primitive: Primitive) -> None:
    """Lets a buffer under `jax.vmap` or `jax.grad` stand for its content: the axis or the tangent goes with it.

    Only for making and reading a whole buffer; a store into one under a transformation is refused.
    """

    def batch(operands: Sequence[jax.Array], axes: Axes, **params: object) -> tuple[object, int | None]:
        return primitive.bind(*operands, **params), axes[0]

    def differentiate(
        primals: Sequence[jax.Array], tangents: Sequence[object], **params: object
    ) -> tuple[object, object]:
        return primitive.bind(*primals, **params), tangents[0]

    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = differentiate


def _batched_check(operands: Sequence[jax.Array], axes: object, *, message: str) -> tuple[object, object]:
    """Batches a check: it holds when it holds for all."""
    return check_p.bind(jnp.all(operands[0]), message=message), []


def _checked_jvp(primals: Sequence[jax.Array], tangents: object, *, message: str) -> tuple[object, object]:
    """Checks in a derivative what the value checks."""
    return check_p.bind(*primals, message=message), []


batching.primitive_batchers[check_p] = _batched_check
ad.primitive_jvps[check_p] = _checked_jvp

_through(read_p)
_through(buffer_p)


def _through_load() -> None:
    """Defines rules of a load: from the content of a buffer that has a batch axis, or a tangent."""
    batch_indices, constant = _batched_read(load_p), _constant_jvp(load_p)

    def element(slices: Slices, content: jax.Array, *indices: jax.Array) -> jax.Array:
        dynamic = iter(indices)
        return content[tuple(next(dynamic) if s is None else slice(*s) for s in slices)]

    def batch(operands: Sequence[jax.Array], axes: Axes, *, slices: Slices) -> tuple[object, int | None]:
        if axes[0] is None:
            return batch_indices(operands, axes, slices=slices)
        content = read_p.bind(operands[0])
        return jax.vmap(functools.partial(element, slices), in_axes=tuple(axes))(content, *operands[1:]), 0

    def differentiate(
        primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], *, slices: Slices
    ) -> tuple[object, object]:
        first = tangents[0]
        if isinstance(first, ad.Zero):
            return constant(primals, tangents, slices=slices)
        return load_p.bind(*primals, slices=slices), element(slices, first, *primals[1:])

    batching.primitive_batchers[load_p] = batch
    ad.primitive_jvps[load_p] = differentiate


_through_load()
batching.primitive_batchers[lget_p] = _batched_read(lget_p)
ad.primitive_jvps[lget_p] = _constant_jvp(lget_p)
