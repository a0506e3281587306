"""`qd.range`, `qd.ndrange`, `qd.while_`: loops whose body is traced once.

The iterator binds a begin marker, gives the index once, and binds an end marker when Python asks for the next item.
Where the body may have carried Python state it gives an index for a second trip, which is compared and dropped.
"""

from __future__ import annotations

import builtins
import functools
import math
import sys
from typing import TYPE_CHECKING, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import QdError, TraceTypeError, TraceValueError, boundary, frame_loc, user_loc
from qdtrace.frozen import frozen
from qdtrace.trace import markers
from qdtrace.trace.arithmetic import as_scalar
from qdtrace.trace.conditions import predicate
from qdtrace.trace.context import LANE, OpenRegion, TraceContext, current, emit, get_current, left_open, new_uid
from qdtrace.trace.diagnosis.advice import loop_over, shape_in
from qdtrace.trace.diagnosis.attributes import StrictAttributes
from qdtrace.trace.diagnosis.lint import FunctionWatch, LoopWatch, check_iteration, is_in_kernel
from qdtrace.trace.diagnosis.reports import carried
from qdtrace.trace.diagnosis.results import Use, expect_use
from qdtrace.trace.diagnosis.statement import running_in
from qdtrace.trace.indexing import as_value, is_static_int, shown
from qdtrace.trace.lengths import as_length
from qdtrace.trace.own_indices import LANES
from qdtrace.tracebacks import user_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn, SupportsIndex

    from jax.typing import ArrayLike

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import Primitive
    from qdtrace.trace.diagnosis.changes import StateChange

Hints = tuple[tuple[str, object], ...]
Bound = int | np.integer | jax.Array
Item = TypeVar("Item")


class Loop(StrictAttributes, Generic[Item]):
    """Iterable of a `for` statement; each pass of the statement traces the body once."""

    kind = ""
    _hints: Hints = ()

    use: Use
    """Record of whether a `for` statement runs the loop."""

    def __iter__(self) -> Iterator[Item]:
        current(self._noun)
        self.use.is_made = True
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        check_iteration(caller, self._noun)
        return self._trace_body(is_in_kernel(caller))

    def _trace_body(self, in_kernel: bool) -> Iterator[Item]:
        """Yields the index. A loop of a kernel of this package changes nothing of any frame: none is watched."""
        context = current(self._noun)
        frame = user_frame()
        loc = frame_loc(frame)
        key = context.new_key(loc)
        if key in context.left_out or self._is_empty():
            return
        region = OpenRegion(self.kind, self._noun, loc, new_uid(), self._is_parallel(context), key)
        watched = None if in_kernel else frame
        watch = LoopWatch(watched, region, getattr(self, "condition", None), context)  # which may change something
        value = self._begin(context, region)
        del frame, watched
        yield from self._trips(context, region, value, watch)

    def over(self, function: Callable[..., object]) -> Iterator[Item]:
        """Yields the index of a loop of this package whose body calls a user's function; watches that, and no frame."""
        self._hints = (*self._hints, (LANES, True))
        context = current(self._noun)
        loc = user_loc()
        region = OpenRegion(self.kind, LANE, loc, new_uid(), self._is_parallel(context), context.new_key(loc))
        value = self._begin(context, region)
        yield from self._trips(context, region, value, FunctionWatch(function, region, context))

    def _trips(self, context: TraceContext, region: OpenRegion, value: Item, watch: LoopWatch) -> Iterator[Item]:
        yield from self._trip(context, region, value)
        emit(self._end, uid=region.uid)
        watch.finish(context)
        if watch.carried:
            if watch.runs_helpers_again:
                context.state.forget_helpers()
            yield from self._second_trip(context, region, tuple(watch.carried))
            watch.keep_leftovers(context)

    def _trip(self, context: TraceContext, region: OpenRegion, value: Item) -> Iterator[Item]:
        try:
            yield value
        except GeneratorExit:
            # Raising here would be swallowed: the error waits for the next operation or the end of the trace.
            context.fail(self._left_early(context, region, frame_loc(user_frame())))
            raise
        if get_current() is not context:
            raise left_open(region, user_loc())
        context.close(region)

    def _left_early(self, context: TraceContext, region: OpenRegion, loc: Loc | None) -> QdError:
        if context.again is None or context.again[0] is not region:
            return left_open(region, loc)
        what, note = context.again[1][0], "traced for a second iteration, the body is left early"
        return carried(what, region.name, parallel=region.parallel, loc=loc, loop=region.loc, notes=[note])

    def _second_trip(
        self, context: TraceContext, region: OpenRegion, changes: tuple[StateChange, ...]
    ) -> Iterator[Item]:
        """Traces the body once more, for comparison (`second_trips`); what it changes is put back."""
        context.open(region)
        told = {"where": region.name, "loc": region.loc, "parallel": region.parallel, "changes": changes}
        index = emit(markers.again_p, self._first_index(), uid=region.uid, **told)
        context.watching, context.again = False, (region, changes)
        yield from self._trip(context, region, self._given(region, index))
        context.watching, context.again = True, None
        emit(markers.again_end_p, uid=region.uid, grown=context.state.restore())

    def _is_empty(self) -> bool:
        """Returns whether the trace knows that there are no iterations. As with Python's `range`, the body is not run:
        an element of an array without any, which it may read, is an error while tracing."""
        return False

    def _first_index(self) -> Bound:
        return np.int32(0)

    def __reversed__(self) -> NoReturn:
        raise self._refused(
            "cannot be reversed once it is made", "give the bounds the other way round: `qd.range(n - 1, -1, -1)`"
        )

    def __len__(self) -> int:
        raise self._refused(
            "has no len() and is neither true nor false: its bounds may be traced",
            "write `for _ in qd.while_(c):`" if self.kind == "while" else "use the bound that it was given",
        )

    def __enter__(self) -> NoReturn:
        raise self._refused("is no context of a `with` statement", "write `for i in qd.range(n):`")

    __exit__ = __enter__

    def __getitem__(self, _: object) -> NoReturn:
        raise self._refused("cannot be indexed", "compute the index from the bounds: `start + k * step`")

    _end: Primitive

    def _is_parallel(self, context: TraceContext) -> bool:
        return False

    def _begin(self, context: TraceContext, region: OpenRegion) -> Item:
        index = self._emit_begin(region)
        context.open(region)
        return self._given(region, index)

    def _emit_begin(self, region: OpenRegion) -> jax.Array:
        raise AssertionError(type(self))

    def _given(self, region: OpenRegion, index: jax.Array) -> Item:
        """Returns what the body is given in the iteration with this index."""
        raise AssertionError(type(self))


class Range(Loop[Item]):
    """A loop over integers."""

    kind = "for"
    _noun = "qd.range"
    _end = markers.loop_end_p

    def __init__(self, bounds: tuple[Bound, ...], hints: Hints) -> None:
        self._bounds = bounds
        self._hints = hints

    def _is_parallel(self, context: TraceContext) -> bool:
        return not context.in_thread and ("serial", True) not in self._hints

    def _emit_begin(self, region: OpenRegion) -> jax.Array:
        if region.parallel and "most" in dict(self._hints):
            raise TraceValueError(
                "the option most of qd.range needs a loop that one thread runs, got one whose iterations are threads",
                loc=region.loc,
                help="leave it out: nothing is kept from one iteration to the next, so it would bound nothing",
            )
        return emit(markers.loop_begin_p, *self._bounds, uid=region.uid, loc=region.loc, hints=self._hints)

    def _is_empty(self) -> bool:
        start, stop, step = self._bounds[:3]
        if not (isinstance(start, np.integer) and isinstance(stop, np.integer) and isinstance(step, np.integer)):
            return False
        return not builtins.range(int(start), int(stop), int(step))

    def _first_index(self) -> Bound:
        return self._bounds[0]

    def _given(self, region: OpenRegion, index: Any) -> Item:
        return as_scalar(index)


def _bound(value: Any, name: str, what: str) -> Any:
    if (length := as_length(value)) is not None and isinstance(value, int):
        return value if what != "step" else length.known()
    value = as_value(value)
    if is_static_int(value):
        return int(value)
    if isinstance(value, np.ndarray) and value.shape == ():
        return _bound(value[()], name, what)
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        raise TraceTypeError.here(
            f"{name} needs integer bounds, got {what} of {dtype or type(value).__name__}",
            help="give its length, `x.shape[0]`"
            if shape
            else "convert it: `.astype(jnp.int32)`, or use // in place of /",
        )
    if shape != ():
        raise TraceTypeError.here(
            f"{name} needs scalar bounds, got {what} of shape {shape}",
            help="use qd.ndrange for several indices, or `x.shape[0]` for the length of an array",
        )
    if dtype in (np.uint32, np.uint64):
        raise TraceTypeError.here(
            f"{name} needs signed bounds, got {what} of {dtype}",
            help=f"convert it: `.astype(jnp.int{32 if dtype == np.uint32 else 64})`",
        )
    return value


def _index_dtype(bounds: tuple[Bound, ...], name: str) -> np.dtype:
    """Returns int32, or int64 when a bound is int64 or too large."""
    wide = any(not isinstance(b, int) and b.dtype == np.int64 for b in bounds)
    known = [b for b in bounds if isinstance(b, int)]
    if (huge := next((b for b in known if not -(2**63) <= b < 2**63), None)) is not None:
        raise TraceValueError.here(f"{name} needs bounds that fit into int64, got {huge}")
    large = next((b for b in known if not -(2**31) <= b < 2**31), None)
    if large is not None and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TraceValueError.here(
            f"{name} needs bounds that fit into int32, got {large}",
            help="turn on 64-bit integers: jax.config.update('jax_enable_x64', True)",
        )
    return np.dtype(np.int64 if wide or large is not None else np.int32)


def _as_index(value: Bound, dtype: np.dtype) -> Bound:
    if (length := as_length(value)) is not None:
        return length.traced(dtype)
    if isinstance(value, int):
        return dtype.type(value)
    return value if value.dtype == dtype else lax.convert_element_type(value, dtype)


def _check_hints(loop: str, /, **hints: object) -> Hints:
    """Returns only the hints that were given, as a hashable tuple; refuses wrong ones."""
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "serial": ("True or False", lambda v: isinstance(v, bool)),
        "block_dim": ("a positive integer", lambda v: is_static_int(v) and v > 0),
        "name": ("a word", lambda v: isinstance(v, str) and v.isidentifier()),
        "unroll": ("True, False or a positive integer", lambda v: isinstance(v, bool) or (is_static_int(v) and v > 0)),
        "fuse": ("True or False", lambda v: isinstance(v, bool)),
        "refill": ("True or False", lambda v: isinstance(v, bool)),
        "most": ("an int from 0 to 2**30", lambda v: type(v) is int and 0 <= v <= 1 << 30),
    }
    given = {key: value for key, value in hints.items() if value is not None}
    for key, value in given.items():
        need, accepts = rules[key]
        if not accepts(value):
            got = shown(value) if isinstance(value, jax.Array) else repr(value)
            raise TraceTypeError.here(f"{loop} needs {key} to be {need}, got {got}")
    return tuple(sorted(given.items()))


@boundary
def range(
    *bounds: SupportsIndex,
    serial: bool | None = None,
    block_dim: int | None = None,
    name: str | None = None,
    unroll: bool | int | None = None,
    fuse: bool | None = None,
    refill: bool | None = None,
    most: int | None = None,
) -> Range[jax.Array]:
    """Loops over integers: `for i in qd.range(stop)`, `(start, stop)` or `(start, stop, step)`.

    Outermost: one thread an iteration, unordered. Inside another range: a serial loop of the thread. The index is an
    int32, or an int64 when a bound is. A traced step of 0 runs nothing. Only an outermost loop over int64 that goes
    beyond `2**63 - 2**32` ends the call with an error.

    >>> @qd.jit
    ... def powers(x, n):
    ...     for i in qd.range(x.shape[0]):
    ...         p = qd.local(1)
    ...         for _ in qd.range(n):
    ...             p *= x[i]
    ...         x[i] = p
    ...     return x
    >>> powers(jnp.array([2, 3]), 4)
    Array([16, 81], dtype=int32)

    Args:
        bounds: integers, static or traced.
        serial: run an outermost loop in one thread, in order.
        block_dim: threads of a GPU block; chosen per task when None.
        name: name of the task.
        unroll: True asks for a copy of the body for each iteration of a nested range with constant bounds, a number for
            that many at a time, False for none.
        fuse: False keeps the task apart from others.
        refill: for an outermost range whose iterations loop for different times. True: a lane of a vector that has left
            its loop takes the next iteration; False: it waits for the others. When None the trip counts of a few
            iterations decide, while the task runs. It changes no result, and nothing where the body has another form
            than values, one loop, stores; `Lowered.tasks` says what was made.
        most: for a loop that one thread runs: the most iterations that the bounds may give, an int. If they give more,
            the call ends with an error. Derivatives reserve memory for as many, not for any number.

    Raises:
        TraceTypeError: a bound is no signed integer, or an option of the wrong type.
        TraceValueError: a static step is 0, or a bound does not fit into int32 outside of the x64 mode; `most` is given
            for a range whose iterations are threads.
        BoundsError: when the function runs, if the loop has more than `most` iterations.
    """
    current("qd.range")
    hints = _check_hints(
        "qd.range", serial=serial, block_dim=block_dim, name=name, unroll=unroll, fuse=fuse, refill=refill, most=most
    )
    if not 1 <= len(bounds) <= 3:
        raise TraceTypeError.here(
            f"qd.range needs 1 to 3 bounds, got {len(bounds)}",
            help="write qd.range(stop), qd.range(start, stop) or qd.range(start, stop, step)",
        )
    if all(isinstance(b, (tuple, list)) and b for b in bounds):
        kinds = " and ".join(type(b).__name__ for b in bounds)
        fix = loop_over(running_in(user_frame()), bounds)
        raise TraceTypeError.here(f"qd.range needs integer bounds, got {kinds}", help=fix)
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    parts = tuple(_bound(b, "qd.range", w) for b, w in zip((start, stop, step), ("start", "stop", "step"), strict=True))
    if isinstance(parts[2], int) and parts[2] == 0:
        raise TraceValueError.here(
            "qd.range needs a step that is not zero", help="leave it out to count by 1, or write -1"
        )
    dtype = _index_dtype(parts, "qd.range")
    start, stop, step = (_as_index(p, dtype) for p in parts)
    made: Range[jax.Array] = Range((start, stop, step), hints)
    made.use = expect_use(made, "qd.range", "for i in qd.range(n):")
    return made


def too_many(dtype: np.dtype) -> str:
    """Returns the error text for a product of bounds that overflows the index dtype."""
    info = np.iinfo(dtype)
    wider = "" if info.bits == 64 else "; give a bound as int64 (jax_enable_x64), or nest two loops"
    return f"qd.ndrange needs at most {info.max} iterations, and as many along each axis{wider}"


class NdRange(Range[tuple[jax.Array, ...]]):
    """A loop over a product of ranges, as one flat loop: the last index runs fastest."""

    _noun = "qd.ndrange"

    def __init__(self, lows: list[Bound], lengths: list[_Length], dtype: np.dtype, hints: Hints) -> None:
        self._lows = lows
        self._lengths = [length.value for length in lengths]
        self._dtype = dtype
        total, fits = _product(lengths, dtype)
        super().__init__((dtype.type(0), total, dtype.type(1), *fits), hints)

    def _given(self, region: OpenRegion, index: jax.Array) -> tuple[jax.Array, ...]:
        indices: list[jax.Array] = []
        rest = index
        for axis in builtins.range(len(self._lengths) - 1, -1, -1):
            length, low = self._lengths[axis], self._lows[axis]
            part = rest
            if axis > 0:
                # An empty axis means no iteration at all; 1 keeps the division meaningful.
                divisor = _as_index(max(length, 1) if isinstance(length, int) else length, self._dtype)
                part = lax.rem(rest, divisor)
                rest = lax.div(rest, divisor)
            if not (isinstance(low, int) and low == 0):
                part = lax.add(part, _as_index(low, self._dtype))
            indices.append(as_scalar(part))
        return tuple(reversed(indices))


@boundary
def ndrange(
    *dims: SupportsIndex | Sequence[SupportsIndex],
    serial: bool | None = None,
    block_dim: int | None = None,
    name: str | None = None,
    unroll: bool | int | None = None,
    fuse: bool | None = None,
    refill: bool | None = None,
) -> NdRange:
    """Loops over a product, `for i, j in qd.ndrange(n, m)`; outermost: one task over the product.

    The product must be a number of the index's dtype, else the call ends with an error.

    >>> @qd.jit
    ... def transposed(x):
    ...     out = qd.empty(x.shape[::-1], x.dtype)
    ...     for i, j in qd.ndrange(x.shape[0], x.shape[1]):
    ...         out[j, i] = x[i, j]
    ...     return out
    >>> transposed(jnp.array([[1, 2, 3]])).tolist()
    [[1], [2], [3]]

    Args:
        dims: for each index a bound `n` or a pair `(low, high)`, static or traced.
        serial, block_dim, name, unroll, fuse, refill: as in `qd.range`.

    Raises:
        TraceTypeError: a bound is no signed integer, or an option of the wrong type.
        TraceValueError: a bound does not fit into int32 outside of the x64 mode.
    """
    current("qd.ndrange")
    hints = _check_hints(
        "qd.ndrange", serial=serial, block_dim=block_dim, name=name, unroll=unroll, fuse=fuse, refill=refill
    )
    if not dims:
        raise TraceTypeError.here("qd.ndrange needs at least one length", help="write qd.ndrange(n, m)")
    pairs = []
    shape = shape_in(running_in(user_frame())) if len(dims) == 1 and isinstance(dims[0], tuple) else ""
    for dim in dims:
        pair = dim if isinstance(dim, (tuple, list)) else (0, dim)
        if len(pair) != 2 or shape:
            raise TraceTypeError.here(
                f"qd.ndrange needs n or (low, high) for each index, got {'a shape' if shape else dim}",
                help=f"give a length for each index: `qd.ndrange(*{shape or dim})`"
                if len(dims) == 1
                else "of a range with a step give the number of its steps, and compute the index: `low + step * k`",
            )
        pairs.append(tuple(_bound(b, "qd.ndrange", w) for b, w in zip(pair, ("start", "stop"), strict=True)))
    static = [h - low for low, h in pairs if isinstance(low, int) and isinstance(h, int)]
    product = math.prod(max(n, 0) for n in static)
    dtype = _index_dtype((*(b for pair in pairs for b in pair), product), "qd.ndrange")
    lows = [low for low, _ in pairs]
    lengths = [_length(low, high, dtype) for low, high in pairs]
    known = tuple(n.value if type(n.value) is int else None for n in lengths)
    made = NdRange(lows, lengths, dtype, (*hints, ("dims", known)))
    made.use = expect_use(made, "qd.ndrange", "for i, j in qd.ndrange(n, m):")
    return made


@frozen
class _Length:
    """The length of an axis: an int or a traced value, and whether the dtype holds it (None: surely)."""

    value: int | jax.Array
    fits: jax.Array | None = None


def _length(low: Bound, high: Bound, dtype: np.dtype) -> _Length:
    if isinstance(low, int) and isinstance(high, int):
        return _Length(max(high - low, 0))
    if isinstance(low, int) and low == 0:
        return _Length(lax.max(jnp.asarray(_as_index(high, dtype)), jnp.asarray(dtype.type(0))))
    first, last = (jnp.asarray(_as_index(b, dtype)) for b in (low, high))
    zero, difference = jnp.asarray(dtype.type(0)), lax.sub(last, first)
    if isinstance(low, int) and low > 0:
        return _Length(lax.max(difference, zero))
    # of a pair in order, a difference that the dtype does not hold is negative; out of order it may be anything
    rises = lax.gt(last, first)
    length = lax.select(rises, lax.max(difference, jnp.asarray(dtype.type(1))), zero)
    return _Length(length, lax.bitwise_or(lax.bitwise_not(rises), lax.gt(difference, zero)))


def _product(lengths: list[_Length], dtype: np.dtype) -> tuple[Bound, list[jax.Array]]:
    """Returns the product, and whether the dtype holds it, where that is known only later; an empty axis makes it 0."""
    static = math.prod(n.value for n in lengths if isinstance(n.value, int))
    traced = [n for n in lengths if not isinstance(n.value, int)]
    total = _as_index(static, dtype)
    if not traced or not static:
        return total, []
    total, rest = (total, traced) if static > 1 else (traced[0].value, traced[1:])
    fits = [n.fits for n in traced if n.fits is not None]
    one, largest = jnp.asarray(dtype.type(1)), jnp.asarray(np.iinfo(dtype).max, dtype)
    for n in rest:
        total = jnp.asarray(total)
        fits.append(lax.le(n.value, lax.div(largest, lax.max(total, one))))
        total = lax.mul(total, n.value)
    if not fits:
        return total, []
    empty = functools.reduce(lax.bitwise_or, [lax.le(n.value, jnp.asarray(dtype.type(0))) for n in traced])
    return total, [lax.bitwise_or(functools.reduce(lax.bitwise_and, fits), empty)]


class While(Loop[None]):
    """A loop that runs while a function of cells and buffers returns True."""

    kind = "while"
    _noun = "qd.while_"
    _end = markers.while_end_p

    def __init__(self, condition: Callable[[], ArrayLike], hints: Hints) -> None:
        self.condition = condition
        self._hints = hints

    def _emit_begin(self, region: OpenRegion) -> jax.Array:
        return emit(markers.while_begin_p, uid=region.uid, loc=region.loc, hints=self._hints)

    def _given(self, region: OpenRegion, index: object) -> None:
        emit(markers.while_test_p, predicate(self.condition(), self._noun), uid=region.uid)


@boundary
def while_(condition: Callable[[], ArrayLike], *, most: int | None = None) -> While:
    """Runs the body of `for _ in qd.while_(lambda: c.value > 0):` while the condition, evaluated anew, holds.

    >>> @qd.jit
    ... def halvings(x):
    ...     count = qd.zeros(x.shape, jnp.int32)
    ...     for i in qd.range(x.shape[0]):
    ...         s = qd.local(x[i])
    ...         for _ in qd.while_(lambda: s > 1):
    ...             s /= 2
    ...             count[i] += 1
    ...     return count
    >>> halvings(jnp.array([1.0, 2.0, 1000.0]))
    Array([ 0,  1, 10], dtype=int32)

    Args:
        condition: a function of no arguments that gives a scalar bool from cells and buffers.
        most: the most iterations of a loop that one thread runs, an int. If the condition holds after as many, the call
            ends with an error. Derivatives reserve memory for as many, not for any number.

    Raises:
        TraceTypeError: it is no function, or gives no scalar bool; `most` is no int.
        UnsupportedError: `most` is given for a loop around parallel loops.
        BoundsError: when the function runs, if the condition holds after `most` iterations.
    """
    context = current("qd.while_")
    if not callable(condition):
        raise TraceTypeError.here(
            f"qd.while_ needs a function of no arguments, got {shown(condition)}",
            help="write `qd.while_(lambda: c.value > 0)`: the condition is evaluated anew before each iteration",
        )
    made = While(condition, _check_hints("qd.while_", most=most))
    made.use = expect_use(made, "qd.while_", "for _ in qd.while_(condition):", context.watched())
    return made
