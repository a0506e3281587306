"""Uses of a call's result, read from the caller's code: dropped, stored in a variable, or something else.

A trace cannot see a `qd.when(c)` that no `with` enters: it is refused where the statement drops it, and warned of where
a variable held it to its end.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import weakref
from dataclasses import field
from typing import TYPE_CHECKING, Any

from qdtrace.errors import TraceValueError, frame_loc, warn
from qdtrace.frozen import frozen, mutable
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.diagnosis.statement import running_in
from qdtrace.tracebacks import is_hidden, user_frame

if TYPE_CHECKING:
    from types import FrameType

    from qdtrace.errors import Loc

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_LOCAL = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")


@frozen
class Result:
    """The use of a call's result; a result that is returned counts as used where the caller puts it."""

    is_dropped: bool = False
    name: str | None = None
    """The variable that the result is stored in."""
    before: Any = None
    """Value of that variable before the store."""
    attribute: str | None = None
    """Attribute of the result that is read."""


USED = Result()


def result_of(frame: FrameType | None) -> Result:
    """Returns the use of the result of the call that a user's frame runs; `USED` if the frame's code does not tell."""
    with contextlib.suppress(Exception):
        while frame is not None and not is_hidden(frame.f_code.co_filename):
            codes = code_map(frame.f_code)
            position = codes.at(frame.f_lasti)
            if codes.opname(position) not in _CALLS:
                break
            following = codes.instructions[position + 1]
            name: Any = following.argval
            if following.opname == "POP_TOP":
                return Result(is_dropped=True)
            if following.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                return Result(attribute=name)
            if following.opname in _LOCAL:
                name = name[0] if isinstance(name, tuple) else name
                return Result(name == "_", name, frame.f_locals.get(name))
            if following.opname == "STORE_GLOBAL":
                return Result(False, name, frame.f_globals.get(name))
            if following.opname != "RETURN_VALUE" or frame.f_code.co_flags & inspect.CO_GENERATOR:
                break
            frame = frame.f_back
    return USED


def name_of_result() -> str:
    """Returns the user's variable for what a function of this package is about to return; empty if there is none."""
    frame = user_frame(2)
    result = result_of(frame)
    return "" if result.is_dropped else result.name or _name_in_tuple(frame)


def _name_in_tuple(frame: FrameType | None) -> str:
    """Returns the variable that gets the result of a frame's call in a statement like `a, b = f(), g()`."""
    if frame is None or is_hidden(frame.f_code.co_filename):
        return ""
    statement = running_in(frame)
    places: list[int] = []
    for node, inner in zip(statement.path[-2::-1], statement.path[::-1], strict=False) if statement else ():
        if isinstance(node, (ast.Tuple, ast.List)):
            places.append(next(k for k, item in enumerate(node.elts) if item is inner))
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            while places and isinstance(target, (ast.Tuple, ast.List)) and _is_plain(target):
                target = target.elts[places.pop()]
            return target.id if isinstance(target, ast.Name) and not places else ""
        else:
            return _name_in_tuple(frame.f_back) if isinstance(node, ast.Return) and not places else ""
    return ""


def _is_plain(target: ast.Tuple | ast.List) -> bool:
    return not any(isinstance(item, ast.Starred) for item in target.elts)


@mutable
class Use:
    """Record of whether a loop or a condition was entered."""

    is_made: bool = False


@mutable
class Unused:
    """The loops and conditions of a trace that nobody has entered so far."""

    made: list[tuple[Any, Use, str, Loc | None]] = field(default_factory=list[Any])

    def warn(self) -> None:
        """Warns, at the end of the trace, of loops and conditions that are gone without being entered."""
        for thing, use, text, loc in self.made:
            if thing() is None and not use.is_made:
                warn(text, loc)


def expect_use(thing: object, noun: str, statement: str, unused: Unused | None = None) -> Use:
    """Refuses a loop or condition that is dropped where a public function is called; the `unused` keep others in mind.

    `statement` is how it is written.

    Raises TraceValueError at the user's line.
    """
    frame = sys._getframe(3)  # pyright: ignore[reportPrivateUsage]  # that function has a `boundary`
    loc, does = frame_loc(frame), f"a {noun} does nothing unless a `{statement.partition(' ')[0]}` statement runs it"
    if result_of(frame) == Result(is_dropped=True):
        raise TraceValueError(does, loc=loc, help=f"write `{statement}` and indent what belongs to it")
    use = Use()
    if unused is not None:
        text = f"{does}, and this one was never used: write `{statement}`"
        unused.made.append((weakref.ref(thing), use, text, loc))
    return use
