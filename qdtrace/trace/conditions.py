"""`qd.when`, `qd.otherwise`, `qd.break_if`, `qd.continue_if`: control flow that depends on traced values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import TraceTypeError, TraceValueError, boundary, user_loc
from qdtrace.trace import markers
from qdtrace.trace.context import LANE, OpenRegion, TraceContext, current, emit, new_uid
from qdtrace.trace.diagnosis.frames import body_frames
from qdtrace.trace.diagnosis.leave_out import LeftOut, leave_out
from qdtrace.trace.diagnosis.left_loop import check_left
from qdtrace.trace.diagnosis.lint import ConditionWatch
from qdtrace.trace.diagnosis.raised import note_raise
from qdtrace.trace.diagnosis.results import Use, expect_use
from qdtrace.trace.indexing import as_value
from qdtrace.trace.placement import leaves_threads
from qdtrace.tracebacks import user_frame

if TYPE_CHECKING:
    from typing import Any

    from jax.typing import ArrayLike

    from qdtrace.trace.compat import Primitive


def predicate(value: Any, what: str) -> Any:
    """Returns a condition as a scalar bool, static or traced."""
    value = as_value(value)
    if isinstance(value, (bool, np.bool_)):
        return np.bool_(value)
    if isinstance(value, (jax.Array, np.ndarray)) and value.shape == () and value.dtype == jnp.bool_:
        return value
    shape = getattr(value, "shape", None)
    got = type(value).__name__ if shape is None else f"{value.dtype} of shape {shape}"
    how = "reduce it: `jnp.all(...)` or `jnp.any(...)`" if shape else "compare it with something: `x[i] > 0`"
    raise TraceTypeError.here(f"{what} needs a scalar bool, got {got}", help=how)


class When:
    """The context manager of `qd.when`."""

    name = "qd.when"
    use: Use
    """Record of whether a `with` statement enters it."""

    def __init__(self, condition: Any) -> None:
        self._condition = condition
        self._context: TraceContext | None = None
        self._region: OpenRegion | None = None
        self._watch: ConditionWatch | None = None
        self._is_left_out = False

    _may_have_other = True
    """True if a `qd.otherwise` may follow."""

    def _decided(self, context: TraceContext) -> Any:
        """Returns the condition as a scalar bool."""
        return predicate(self._condition, self.name)

    def __bool__(self) -> bool:
        raise TraceTypeError.here(f"a {self.name} is neither true nor false", help="write `with` in place of `if`")

    def __enter__(self) -> None:
        context = current(self.name)
        self.use.is_made = True
        if self._region is not None:
            raise TraceValueError.here(
                f"a {self.name} can be entered once", help="write the call in the with statement"
            )
        self._condition = condition = self._decided(context)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        loc = user_loc()
        region = OpenRegion("when", self.name, loc, new_uid(), key=context.new_key(loc))
        self._context, self._region = context, region
        if region.key in context.left_out and (frames := body_frames(frame)):
            self._is_left_out = True
            leave_out(frames[context.left_out[region.key]])
            return
        emit(markers.when_begin_p, condition, uid=region.uid, loc=region.loc)
        context.open(region)
        self._watch = ConditionWatch(frame, region, context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> bool:
        context, region, watch = self._context, self._region, self._watch
        self._context = self._watch = None
        if (kind is not None and not self._is_left_out) or context is None or region is None:
            if error is not None:
                note_raise(error, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            return False
        if not self._is_left_out:
            context.close(region)
            emit(markers.when_end_p, uid=region.uid)
        if watch is not None:
            watch.finish(context)
        context.closed_when = (self._condition, region.loc) if self._may_have_other else None
        if isinstance(error, LeftOut):
            error.resume()
            return True
        return False


class Otherwise(When):
    """The context manager of `qd.otherwise`."""

    name = "qd.otherwise"
    _may_have_other = False

    def _decided(self, context: TraceContext) -> Any:
        if context.closed_when is None:
            raise TraceValueError.here(
                "qd.otherwise needs to stand directly after a qd.when",
                help="move it behind the qd.when, with no loop or array operation between them",
            )
        held = context.closed_when[0]
        return ~held if isinstance(held, np.bool_) else lax.bitwise_not(held)


@boundary
def when(condition: ArrayLike) -> When:
    """Begins a block, `with qd.when(condition):`, that has effect only if the condition holds.

    `a & b` evaluates both sides: nest two, where the second needs the first. Values leave through a `qd.local` or a
    buffer.

    >>> @qd.jit
    ... def positive(x):
    ...     for i in qd.range(x.shape[0]):
    ...         with qd.when(x[i] < 0):
    ...             x[i] = 0
    ...     return x
    >>> positive(jnp.array([-1, 2]))
    Array([0, 2], dtype=int32)

    Args:
        condition: a scalar bool, static or traced.

    Raises:
        TraceTypeError: the condition is no scalar bool.
    """
    made = When(condition)
    context = current(made.name)
    made.use = expect_use(made, made.name, "with qd.when(condition):", context.watched())
    return made


@boundary
def otherwise() -> When:
    """Begins a block, `with qd.otherwise():`, directly after a `qd.when`, for when its condition did not hold.

    >>> @qd.jit
    ... def sign(x):
    ...     for i in qd.range(x.shape[0]):
    ...         with qd.when(x[i] < 0):
    ...             x[i] = -1
    ...         with qd.otherwise():
    ...             x[i] = 1
    ...     return x
    >>> sign(jnp.array([-5, 2]))
    Array([-1,  1], dtype=int32)

    Raises:
        TraceValueError: there is no `qd.when` directly before it.
    """
    made = Otherwise(None)
    context = current(made.name)
    made.use = expect_use(made, made.name, "with qd.otherwise():", context.watched())
    return made


def _jump(name: str, primitive: Primitive, condition: Any, *, in_threads: bool) -> None:
    context = current(name)
    loop = context.innermost_loop
    if loop is None:
        raise TraceValueError.here(f"{name} needs to be inside a loop")
    if loop.name == LANE:
        raise TraceValueError.here(
            f"{name} cannot leave a lane of qd.vmap, which has to give its result",
            help="put the rest of the function under `with qd.when(condition):`, and the result into a qd.local",
        )
    check_left(name, loop, user_frame())
    if loop.parallel and not in_threads:
        raise leaves_threads(name, user_loc(), loop.loc)
    condition = predicate(condition, name)
    if primitive is markers.break_p and loop.on_break is not None:
        loop.on_break(condition)
    emit(primitive, condition, loc=user_loc())


@boundary
def break_if(condition: ArrayLike) -> None:
    """Leaves the innermost serial loop when the condition holds.

    >>> @qd.jit
    ... def first(rows, value):
    ...     at = qd.full(rows.shape[0], -1)
    ...     for i in qd.range(rows.shape[0]):
    ...         for j in qd.range(rows.shape[1]):
    ...             with qd.when(rows[i, j] == value):
    ...                 at[i] = j
    ...             qd.break_if(at[i] >= 0)
    ...     return at
    >>> first(jnp.array([[1, 7, 7], [2, 3, 4]]), 7)
    Array([ 1, -1], dtype=int32)

    Args:
        condition: a scalar bool, static or traced.

    Raises:
        TraceValueError: outside of loops, in an outermost `qd.range`, whose iterations run in parallel, where it would
            leave a lane of `qd.vmap`, in a loop of Python around it, and in a loop with an `else`.
        TraceTypeError: the condition is no scalar bool.
    """
    _jump("qd.break_if", markers.break_p, condition, in_threads=False)


@boundary
def continue_if(condition: ArrayLike) -> None:
    """Goes on with the next iteration of the innermost loop when the condition holds.

    >>> @qd.jit
    ... def halve_even(x):
    ...     for i in qd.range(x.shape[0]):
    ...         qd.continue_if(x[i] % 2 == 1)
    ...         x[i] //= 2
    ...     return x
    >>> halve_even(jnp.array([3, 4]))
    Array([3, 2], dtype=int32)

    Args:
        condition: a scalar bool, static or traced.

    Raises:
        TraceValueError: outside of loops, where it would leave a lane of `qd.vmap`, and in a loop of Python around it.
        TraceTypeError: the condition is no scalar bool.
    """
    _jump("qd.continue_if", markers.continue_p, condition, in_threads=True)
