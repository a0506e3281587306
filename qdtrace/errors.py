"""Errors a user can cause. Every message has the rule broken, the user's file and line, and the fix."""

from __future__ import annotations

import functools
import linecache
import warnings
from typing import TYPE_CHECKING, Literal, ParamSpec, Self, TypeVar

from qdtrace import tracebacks
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType

P = ParamSpec("P")
R = TypeVar("R")


@frozen(slots=True)
class Loc:
    """A place in the user's source."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        cell = tracebacks.cell_of(self.file)
        place = f"{cell}, line {self.line}" if cell else f"{self.file}:{self.line}"
        return place + (f" in {self.function}" if self.function not in ("", "<module>") else "")


def frame_loc(frame: FrameType | None) -> Loc | None:
    """Returns the line a frame is at."""
    return frame and Loc(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def user_loc() -> Loc | None:
    """Returns the user's line that is running now."""
    return frame_loc(tracebacks.user_frame(2))


class QdError(Exception):
    """Base of all errors of this package.

    `rule` says what was broken (needs X, got Y); `loc` is the user's source line, `notes` are facts used and
    `help` is one fix. `wants` is "array" or "buffer" if such an argument in place of the other mends it.

    >>> try:
    ...     qd.jit(lambda x: qd.range(1.5))(jnp.zeros(3))
    ... except qd.QdError as error:
    ...     print(error.rule, error.help, sep="; ")
    qd.range needs integer bounds, got stop of float; convert it: `.astype(jnp.int32)`, or use // in place of /
    """

    def __init__(
        self,
        rule: str,
        *,
        loc: Loc | None = None,
        notes: Sequence[str] = (),
        help: str = "",
        wants: Literal["array", "buffer", ""] = "",
    ) -> None:
        self.rule = rule
        self.loc = loc
        self.notes = tuple(notes)
        self.help = help
        self.wants = wants
        super().__init__(self._text())

    @classmethod
    def here(
        cls, rule: str, *, notes: Sequence[str] = (), help: str = "", wants: Literal["array", "buffer", ""] = ""
    ) -> Self:
        """Returns the error at the user's line that is running now."""
        return cls(rule, loc=user_loc(), notes=notes, help=help, wants=wants)

    def _text(self) -> str:
        lines = [self.rule]
        if self.loc is not None:
            lines.append(f"  at {self.loc}")
            source = linecache.getline(self.loc.file, self.loc.line).strip()
            if source:
                lines.append(f"      {source}")
        lines += [f"note: {n}" for n in self.notes]
        if self.help:
            lines.append(f"help: {self.help}")
        return "\n".join(lines)

    def with_traceback(self, tb: TracebackType | None) -> Self:
        """Sets the traceback, reduced to the user's frames (`tracebacks`)."""
        return super().with_traceback(tracebacks.shortened(tb))

    def add_note(self, note: str) -> None:
        """Adds a note, unless it is JAX's note on frames that it removed."""
        if tracebacks.is_wanted_note(note):
            super().add_note(note)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "__cause__" or tracebacks.is_wanted_cause(value):
            super().__setattr__(name, value)


def boundary(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function so that errors that leave it show the user's frames only."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            tracebacks.shorten(error)
            raise  # bare: this frame is not added to the traceback

    return call


class QdWarning(UserWarning):
    """Something in a program that has no effect, at the user's file and line.

    >>> import warnings
    >>> @qd.jit
    ... def f(x):
    ...     for i in qd.range(x.shape[0]):
    ...         x[i] = 0
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     f(jnp.zeros(3))
    >>> told[0].category
    <class 'qdtrace.errors.QdWarning'>
    """


def warn(text: str, loc: Loc | None) -> None:
    """Issues a `QdWarning` at the user's line, if that is known."""
    warnings.warn_explicit(text, QdWarning, loc.file if loc else "<unknown>", loc.line if loc else 0)


class TraceTypeError(QdError, TypeError):
    """An operand has the wrong type, dtype, rank or shape.

    >>> @qd.jit
    ... def f(x):
    ...     for i in qd.range(x.shape[0]):
    ...         x[i] = 0.5
    ...     return x
    >>> f(jnp.arange(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.TraceTypeError: a store of float32 into int32 would lose information
      at ...
    """


class TraceValueError(QdError, ValueError):
    """A value or a construct breaks a rule of tracing.

    >>> @qd.jit
    ... def f(x):
    ...     c = qd.local(0.0)
    ...     return x
    >>> f(jnp.arange(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.TraceValueError: a qd.local belongs to one iteration, it needs to be made inside a loop
      at ...
    """


class TraceIndexError(QdError, IndexError):
    """A static index is out of bounds.

    >>> @qd.jit
    ... def f(x):
    ...     for i in qd.range(x.shape[0]):
    ...         x[3] = 1
    ...     return x
    >>> f(jnp.arange(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.TraceIndexError: index 3 is out of bounds for axis 0 of shape (3,)
      at ...
    """


class TraceAttributeError(QdError, AttributeError):
    """A loop, buffer or cell has no attribute of this name, or it cannot be set.

    >>> @qd.jit
    ... def f(x):
    ...     return x.shpae
    >>> f(jnp.arange(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.TraceAttributeError: a buffer has no attribute `shpae`
      at ...
    """


class UnsupportedError(QdError, NotImplementedError):
    """Something that cannot be compiled, with what to write in its place.

    >>> qd.vmap(lambda x: jax.lax.psum(x, "lanes"), axis_name="lanes")(jnp.arange(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.UnsupportedError: `psum` over the axis 'lanes' of a qd.vmap: its elements run by themselves, ...
      at ...
    """


class GradientError(QdError):
    """A derivative that cannot be computed rightly and so is refused.

    >>> @qd.jit
    ... def f(x):
    ...     for i in qd.range(x.shape[0]):
    ...         x[i] = qd.atomic_add(x, i, 1.0)
    ...     return x.sum()
    >>> jax.grad(f)(jnp.ones(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.GradientError: needs accumulations without their old value, got `atomic` add to be differentiated
      at ...
    """


def old_value_refused(op: str, loc: Loc | None) -> GradientError:
    """Returns the error for an atomic in differentiated code: its old value differs between runs."""
    return GradientError(
        f"needs accumulations without their old value, got `atomic` {op} to be differentiated",
        loc=loc,
        help="push what the number is the place of: `out = qd.append(n, like=v)`, then `out.push(v)`; or split it: one "
        "qd.range that takes numbers (a function of its own), one that computes",
    )


class BackendError(QdError, RuntimeError):
    """A backend is missing or cannot do what was asked.

    >>> qd.jit(lambda x: x).lower(jnp.ones(3), target="sm_1")
    Traceback (most recent call last):
        ...
    qdtrace.errors.BackendError: needs a backend for 'sm_1', found ...
    """


class VerifyError(QdError):
    """A graph breaks an invariant: a defect of this package (or a hand-written graph).

    >>> from qdtrace.ir.parser import parse_program
    >>> from qdtrace.ir.verify import verify_program
    >>> graph = '''program p(x: ref[f32,4])
    ...   range_for i in 0:i32 : 4:i32
    ...     a: f32 = add 1.0:f32 2:i32
    ... '''
    >>> verify_program(parse_program(graph))
    Traceback (most recent call last):
        ...
    qdtrace.errors.VerifyError: typing: `add` needs operands of one dtype, got f32, i32
      at ...
    """


class CheckError(QdError, RuntimeError):
    """A condition of `qd.check` (or of a library's own check) did not hold when the program ran.

    >>> @qd.jit
    ... def f(x):
    ...     for i in qd.range(x.shape[0]):
    ...         qd.check(x[i] > 0, "needs positive numbers")
    ...         x[i] = 1 / x[i]
    ...     return x
    >>> f(jnp.arange(3.0))
    Traceback (most recent call last):
        ...
    qdtrace.errors.CheckError: check failed: needs positive numbers
      at ...
    """


class OutOfMemoryError(QdError, MemoryError):
    """There was no memory for the private arrays of a task when it ran.

    >>> issubclass(qd.OutOfMemoryError, MemoryError)  # so `except MemoryError` takes it
    True
    """


class InterpreterError(QdError):
    """A run did what has no meaning: an index out of range, a read of unset memory, a race.

    >>> @qd.jit(options={"debug": True})
    ... def f(x):
    ...     o = qd.empty(3)
    ...     for i in qd.range(3):
    ...         x[i] = o[i]
    ...     return x
    >>> f(jnp.zeros(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.InterpreterError: ... is read before anything is stored there; its shape is (3,)
      at ...
    """


class BoundsError(InterpreterError, IndexError):
    """An index was outside of its buffer when the program ran: compiled, or in the interpreter (`debug=True`).

    >>> @qd.jit
    ... def f(x):
    ...     out = qd.zeros_like(x)
    ...     for i in qd.range(x.shape[0]):
    ...         out[i] = x[i + 1]
    ...     return out
    >>> f(jnp.arange(3))
    Traceback (most recent call last):
        ...
    qdtrace.errors.BoundsError: index 3 is out of bounds for axis 0 of `x` with shape (3,)
      at ...
    """


def outside(what: str) -> TraceValueError:
    """Returns the error for an operation where no trace is running."""
    return TraceValueError.here(
        f"{what} is used outside of a function decorated with qd.jit",
        help="move it into a function and decorate that with @qd.jit",
    )
