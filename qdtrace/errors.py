"""Errors a user can cause. Every message has the rule broken, the user's file and line, and the fix."""

from __future__ import annotations

import linecache
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's source."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


class QdError(Exception):
    """Base of all errors of this package.

    `rule` says what was broken (needs X, got Y); `loc` is the user's source line, `notes` are facts used and
    `help` is one fix.
    """

    def __init__(
        self,
        rule: str,
        *,
        loc: Loc | None = None,
        notes: Sequence[str] = (),
        help: str = "",
    ) -> None:
        self.rule = rule
        self.loc = loc
        self.notes = tuple(notes)
        self.help = help
        super().__init__(self._text())

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


class QdWarning(UserWarning):
    """Something in a program that has no effect, at the user's file and line."""


def warn(text: str, loc: Loc | None) -> None:
    """A `QdWarning` at the user's line, where it is known."""
    warnings.warn_explicit(text, QdWarning, loc.file if loc else "<unknown>", loc.line if loc else 0)


class TraceTypeError(QdError, TypeError):
    """An operand has the wrong type, dtype, rank or shape."""


class TraceValueError(QdError, ValueError):
    """A value or a construct breaks a rule of tracing."""


class TraceIndexError(QdError, IndexError):
    """A static index is out of bounds."""


class TraceAttributeError(QdError, AttributeError):
    """A loop, buffer or cell has no attribute of this name, or it cannot be set."""


class UnsupportedError(QdError, NotImplementedError):
    """Something that cannot be compiled, with what to write in its place."""


class GradientError(QdError):
    """A derivative that cannot be computed rightly and so is refused."""


def old_value_refused(op: str, loc: Loc | None) -> GradientError:
    """The error for an atomic in what is differentiated: its old value is another one each time that it runs."""
    return GradientError(
        f"needs accumulations without their old value, got `atomic` {op} to be differentiated",
        loc=loc,
        help="split it: one qd.range that takes numbers (a function of its own), one that computes",
    )


class BackendError(QdError, RuntimeError):
    """A backend is missing or cannot do what was asked."""


class VerifyError(QdError):
    """A graph breaks an invariant: a defect of this package (or a hand-written graph)."""


class CheckError(QdError, RuntimeError):
    """A condition of `qd.check` (or of a library's own check) did not hold when the program ran."""


class OutOfMemoryError(QdError, MemoryError):
    """There was no memory for the private arrays of a task when it ran."""


class InterpreterError(QdError):
    """A run did what has no meaning: an index out of range, a read of unset memory, a race."""


class BoundsError(InterpreterError, IndexError):
    """An index was outside of its buffer when the program ran: compiled, or in the interpreter (`debug=True`)."""
