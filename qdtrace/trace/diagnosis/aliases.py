"""Two names of one buffer, where JAX would have two arrays.

`y = x.at[k].set(v)` gives the buffer that it has changed: who goes on with both x and y wants two. What it gives is
another object for the same memory, and the use of both is refused. `old = x` is no call, and NumPy has it the same
way: a store through x while `old` is read later is a warning.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from qdtrace.errors import TraceValueError, frame_loc, user_loc, warn
from qdtrace.frozen import mutable
from qdtrace.trace.context import get_current
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.diagnosis.results import result_of
from qdtrace.trace.own_files import is_own_package
from qdtrace.trace.source import expression_at
from qdtrace.tracebacks import is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any

    from qdtrace.errors import Loc
    from qdtrace.trace.context import TraceContext
    from qdtrace.trace.diagnosis.swaps import Memory

M = TypeVar("M", bound="Memory")


@mutable(eq=False)
class Fork:
    """A buffer that a call changed and returned as another object."""

    method: str
    loc: Loc | None
    old: object
    new: object
    used: set[int] = field(default_factory=set[int])
    """Identities of the old and the new object, of those that were used since."""


def given_back(buffer: Any, method: str, depth: int = 2) -> Any:
    """Returns the result of `b.at[k].set(v)`: the buffer, or a new object for its memory if both may be used later.

    `depth` leads to the frame that called the method.
    """
    context = get_current()
    frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    result = result_of(frame)
    goes_on = result.attribute == "at"  # then the last call of the chain decides
    if context is not None and not result.is_dropped:
        context.loans.changes.append((method, buffer))
    if context is None or result.is_dropped or result.before is buffer or goes_on:
        return buffer
    made = type(buffer)(buffer.handle)
    fork = _forked(context, method, buffer, made)
    if result.name is not None:
        fork.used.add(id(made))
    return made


def _forked(context: TraceContext, method: str, old: object, new: object) -> Fork:
    """Returns the record of two objects for one buffer, whose use is refused where both are used."""
    fork = Fork(method, user_loc(), old, new)
    for one in (old, new):
        context.forks.setdefault(id(one), []).append(fork)
    return fork


def note_flattened(buffer: Memory) -> None:
    """Notes a buffer that a function of JAX may get as an argument."""
    if (context := get_current()) is not None:
        context.loans.lend(buffer)


def note_unflattened(made: M) -> M:
    """Returns the object that JAX makes for a buffer; a second array to the user where its function changed it."""
    context = get_current()
    found = None if context is None else context.loans.returned(made)
    if context is not None and found is not None:
        loan, method = found
        fork = _forked(context, method, loan.buffer, made)
        if loan.is_used:
            fork.used.add(id(loan.buffer))
    return made


def note_use(buffer: Memory) -> None:
    """Refuses the use of a buffer where that and what a call gave for it are used.

    Raises TraceValueError at the line of the call.
    """
    context = get_current()
    if context is None:
        return
    context.loans.use(buffer)
    for fork in context.forks.get(id(buffer), ()):
        fork.used.add(id(buffer))
        if len(fork.used) == 2:
            raise TraceValueError(
                f"`y = x.at[k].{fork.method}(v)` changes x itself, and both x and y are used after it",
                loc=fork.loc,
                notes=["both are returned" if context.has_returned else f"the second use is at {user_loc()}"],
                help=f"go on with x alone: `x.at[k].{fork.method}(v)` as a statement; or make two of it in front of "
                f"the loops: `y = x.copy()`, then `y.at[k].{fork.method}(v)`",
            )


def note_write(memory: Any) -> None:
    """Warns where a store changes what another name of the buffer or cell was meant to keep."""
    context = get_current()
    if context is None:
        return
    context.written.add(id(memory.tracer))
    context.loans.write(memory)
    if context.watching:
        context.stores.add(memory)
    note_names(memory, depth=3)


def refuse_swapped(values: Iterable[Memory]) -> None:
    """Refuses the store of cells and buffers that their assignment has changed, as in `a.value, b.value = b, a`."""
    context = get_current()
    if context is not None and context.watching:
        context.stores.refuse(values)


def note_names(memory: Any, depth: int = 2) -> None:
    """Warns where a store into memory that has two names changes what one of them was meant to keep."""
    context = get_current()
    if context is None or not context.watching:
        return
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    inside = True
    while frame is not None and (inside or not is_own_package(frame.f_code.co_filename)):
        if not is_hidden(frame.f_code.co_filename):
            inside = False
            names = [name for name, value in frame.f_locals.items() if value is memory]
            if len(names) > 1:
                with contextlib.suppress(SyntaxError, ValueError):
                    _warn_of_copies(frame, names, memory, context)
        frame = frame.f_back


def _warn_of_copies(frame: FrameType, names: list[str], memory: Any, context: TraceContext) -> None:
    code, at = frame.f_code, frame.f_lasti
    codes = code_map(code)
    position = codes.at(at)
    written: set[str] | None = None
    for old in names:
        x = next((name for name in names if (old, name) in codes.copies), None)
        if x is None or codes.first_read(old, position + 1) is None:
            continue
        if written is None:
            tree = expression_at(code, codes.instructions[position].offset)
            written = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} if tree else set()
        if x in written and old not in written and (code, position) not in context.told:
            context.told.add((code, position))
            noun, keep = memory.noun_of_names, f"{old} = {x}{memory.how_to_keep}"
            text = f"`{old} = {x}` gives one {noun} two names, so this store changes `{old}` too, which is read later"
            warn(f"{text}: write `{keep}` to keep its content, or go on with one name", frame_loc(frame))
