"""Diagnosis of Python that a trace cannot see: variables carried from one iteration to the next, values read after
a loop or condition, `continue` under a condition, a loop given to `enumerate`.

A body is traced once for all iterations, so each of these would give a wrong result without an error. The local
variables of the user's frame are compared before and after the body; whether a change matters is read off the
compiled code. If a diagnosis itself fails, the trace goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.errors import TraceValueError
from qdtrace.ir.program import Loc
from qdtrace.trace.bytecode import CodeMap, code_map
from qdtrace.trace.compat import Tracer
from qdtrace.trace.operators import ArrayOperators
from qdtrace.trace.source import frame_loc, is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from qdtrace.trace.context import OpenRegion, TraceContext

_CONSUMERS = ("CALL", "PRECALL", "LIST_EXTEND", "SET_UPDATE", "UNPACK", "CONTAINS_OP")
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_LARGE = 256
"""Containers with more items are not looked into."""


def check_iteration(frame: FrameType, name: str) -> None:
    """Refuses a loop that is consumed by anything but a `for` statement."""
    if not is_user_file(frame.f_code.co_filename):
        return
    found = ""
    with contextlib.suppress(Exception):
        codes = code_map(frame.f_code)
        found = codes.opname(codes.at(frame.f_lasti))
    if found.startswith(_CONSUMERS):
        raise _not_a_for(frame, name)


def _not_a_for(frame: FrameType, name: str) -> TraceValueError:
    return TraceValueError(
        f"a {name} needs to stand in a `for` statement of its own, not in enumerate, zip, list or a comprehension",
        loc=frame_loc(frame),
        help=f"write `for i in {name}(...):`; the body is traced once, and i is the index of every iteration",
    )


class _Variables:
    """The variables of a frame at one moment, and what its containers and objects hold."""

    def __init__(self, frame: FrameType, codes: CodeMap) -> None:
        self.values: dict[str, Any] = dict(frame.f_locals)
        for name in codes.global_writes:
            if name in frame.f_globals:
                self.values.setdefault(name, frame.f_globals[name])
        # A function of many loops has many variables, and each loop comes here: nothing is called for a plain value.
        self.contents: dict[str, dict[Any, Any]] = {}
        for name, value in self.values.items():
            if type(value) not in _PLAIN and (held := _content(value)) is not None:
                self.contents[name] = held

    def identities(self) -> set[int]:
        """Of all values, and of the items of containers."""
        found: set[int] = set()
        for value in (*self.values.values(), *(v for held in self.contents.values() for v in held.values())):
            if isinstance(value, (tuple, list)):
                found.update(map(id, _leaves(value)))
            else:
                found.add(id(value))
        return found


_PLAIN: set[type] = {type(None), bool, int, float, complex, str, tuple, type, FunctionType, ModuleType}
"""Types whose values hold nothing that a body may replace, as far as they were met."""


def _content(value: Any) -> dict[Any, Any] | None:
    """The items of a mutable container or the attributes of a user's object."""
    if type(value) is list and len(value) <= _LARGE:
        return dict(enumerate(value))
    if type(value) is dict and len(value) <= _LARGE:
        return dict(value)
    module = type(value).__module__.partition(".")[0]
    if isinstance(value, type) or module in ("builtins", "jax", "jaxlib", "numpy", "qdtrace", "functools"):
        if module != "builtins" and not isinstance(value, type):
            _PLAIN.add(type(value))
        return None
    attributes = getattr(value, "__dict__", None)
    return dict(attributes) if type(attributes) is dict and len(attributes) <= _LARGE else None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)) and len(value) <= _LARGE:
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_static(value: Any) -> bool:
    return value is None or isinstance(value, (numbers.Number, np.generic, str, np.ndarray))


def _is_data(value: Any) -> bool:
    """Something that takes part in the computation, as opposed to a function, a module or a class."""
    return all(_is_static(v) or isinstance(v, (jax.Array, ArrayOperators)) for v in _leaves(value))


def _differs(old: Any, new: Any) -> bool:
    if old is new or not (_is_data(old) and _is_data(new)):
        return False
    if isinstance(old, (tuple, list)) and type(old) is type(new) and len(old) == len(new):
        return any(_differs(a, b) for a, b in zip(old, new, strict=True))
    same_kind = type(old) is type(new)
    return not (same_kind and isinstance(old, (numbers.Number, np.generic, str)) and old == new)


def _changed_content(before: dict[Any, Any], after: dict[Any, Any], counts: bool) -> Any | None:
    """The first key whose item was replaced by a traced value (or any, if it `counts`), or came new with one."""
    for key, new in after.items():
        traced = _is_data(new) and not all(map(_is_static, _leaves(new)))
        if key in before and _differs(before[key], new) and (counts or traced):
            return key
        if key not in before and traced:
            return key
    return None


class _Watch:
    """Compares the variables of a frame before and after a traced body."""

    def __init__(self, frame: FrameType | None, opname: str) -> None:
        self._frame = None
        if frame is None or not is_user_file(frame.f_code.co_filename):
            return
        with contextlib.suppress(Exception):
            self._codes = code_map(frame.f_code)
            self._begin = self._codes.at(frame.f_lasti)
            self._loc = frame_loc(frame)
            self._before = _Variables(frame, self._codes)
            if self._codes.opname(self._begin) == opname:
                self._frame = frame

    def _loc_of(self, position: int) -> Loc | None:
        if self._frame is None:
            return None
        code = self._frame.f_code
        return Loc(code.co_filename, self._codes.line(position) or self._frame.f_lineno, code.co_name)

    def _rebound(self, after: _Variables) -> list[str]:
        before = self._before.values
        changed = [n for n, new in after.values.items() if n in before and before[n] is not new]
        return [n for n in changed if _differs(before[n], after.values[n])]

    def _changed_part(self, after: _Variables) -> str | None:
        """The item or attribute that the body replaced in a container or object made before it."""
        for name, old in self._before.contents.items():
            value = after.values.get(name)
            if value is self._before.values[name]:
                counts = isinstance(value, (list, dict)) or dataclasses.is_dataclass(value)
                key = _changed_content(old, after.contents.get(name, old), counts)
                if key is not None:
                    return f"`{name}[{key!r}]`" if isinstance(value, (list, dict)) else f"`{name}.{key}`"
        return None

    def _keep_leftovers(self, after: _Variables, context: TraceContext) -> None:
        """Values made in this body: if a later body reads one, `regions` refuses that exactly."""
        before = self._before.values
        made = [v for n, v in after.values.items() if before.get(n) is not v or isinstance(v, (tuple, list))]
        found = {id(leaf): leaf for value in made for leaf in _leaves(value) if isinstance(leaf, Tracer)}
        if found:
            for known in self._before.identities():
                found.pop(known, None)
            context.leftovers.update(found)

    def _report(self, context: TraceContext, diagnose: Callable[[], TraceValueError | None]) -> None:
        error = None
        with contextlib.suppress(Exception):
            error = diagnose()
        self._frame = None
        if error is not None:
            context.fail(error)
            raise error


class LoopWatch(_Watch):
    """Watches the body of a `for` statement over a traced loop."""

    def __init__(self, frame: FrameType | None, region: OpenRegion, condition: Callable[[], Any] | None) -> None:
        super().__init__(frame, "FOR_ITER")
        self._region = region
        self._condition = condition
        if frame is None or self._frame is None:
            return
        name = frame.f_code.co_name
        self._captured = _captured(condition)
        comprehension = name in _COMPREHENSIONS
        with contextlib.suppress(Exception):
            comprehension = comprehension or self._codes.is_comprehension(self._begin)
        if comprehension:
            raise _not_a_for(frame, region.name)

    def finish(self, context: TraceContext) -> None:
        """To be called when the body has been traced."""
        if self._frame is not None:
            self._report(context, lambda: self._diagnose(context))

    def _diagnose(self, context: TraceContext) -> TraceValueError | None:
        if self._frame is None:
            return None
        after = _Variables(self._frame, self._codes)
        codes, loop = self._codes, self._begin
        for name, old in self._captured.items():
            new = _captured(self._condition).get(name)
            if _differs(old, new):
                return self._condition_carried(name)
        exit_ = codes.target(loop)
        for name in self._rebound(after):
            old = self._before.values[name]
            if not (isinstance(old, Tracer) and id(old) in context.leftovers):
                read = codes.first_read(name, loop + 1, barrier=loop)
                if read is None and exit_ is not None and not codes.is_written(name, loop, exit_):
                    read = loop  # set by a function that the body calls
                if read is not None:
                    return self._carried(f"`{name}`", read)
            if exit_ is not None and _is_static(after.values[name]):
                read = codes.first_read(name, exit_)
                if read is not None:
                    return self._read_after(name, read)
        part = self._changed_part(after)
        if part is not None:
            return self._carried(part, loop)
        self._keep_leftovers(after, context)
        return None

    def _carried(self, what: str, position: int) -> TraceValueError:
        where = self._region.name
        if self._region.parallel:
            help_ = "iterations run in parallel: to sum over them, accumulate into a buffer made before the loop: "
            help_ += "`s = qd.zeros(())` and `s[()] += v`"
        else:
            help_ = "keep it in a cell made before the loop: `c = qd.local(start)`, then `c.value` and `c.value = v`"
        return TraceValueError(
            f"{what} would carry a value from one iteration of the {where} to the next",
            loc=self._loc_of(position),
            notes=(f"the {where} is at {self._loc}", "its body is traced once for all iterations"),
            help=help_,
        )

    def _condition_carried(self, name: str) -> TraceValueError:
        return TraceValueError(
            f"the condition of the qd.while_ reads `{name}`, which the body sets as a Python variable",
            loc=self._loc,
            notes=("the condition and the body are traced once for all iterations",),
            help="keep it in a cell made before the loop: `c = qd.local(start)`, then `c.value` and `c.value = v`",
        )

    def _read_after(self, name: str, position: int) -> TraceValueError:
        where = self._region.name
        return TraceValueError(
            f"`{name}` is set inside the {where} and read after it",
            loc=self._loc_of(position),
            notes=(f"the {where} is at {self._loc}", "its body is traced once, also when it would not run at all"),
            help="set it outside of the loop, or keep it in a buffer or a qd.local",
        )


def _captured(function: Callable[[], Any] | None) -> dict[str, Any]:
    """Variables that a Python function closes over, with their present values."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    held = {}
    for name, cell in zip(names, cells, strict=False):
        with contextlib.suppress(ValueError):
            held[name] = cell.cell_contents
    return held


class ConditionWatch(_Watch):
    """Watches the body of a `with qd.when(...)`."""

    def __init__(self, frame: FrameType, name: str) -> None:
        super().__init__(frame, "BEFORE_WITH")
        self._name = name

    def finish(self, frame: FrameType, context: TraceContext) -> None:
        """To be called when the block has been traced; `frame` is the caller of `__exit__`."""
        if self._frame is frame:
            self._report(context, lambda: self._diagnose(frame, context))

    def _diagnose(self, frame: FrameType, context: TraceContext) -> TraceValueError | None:
        codes = self._codes
        call = codes.at(frame.f_lasti)
        here, after_block = codes.after_exit(call), codes.after_with(self._begin)
        if here is None:
            return None
        if after_block is not None and not codes.same_code(here, after_block):
            return self._left(here, call)
        after = _Variables(frame, codes)
        new = [n for n, v in after.values.items() if n not in self._before.values and _is_data(v)]
        for name in (*self._rebound(after), *new):
            read = codes.first_read(name, here)
            if read is not None:
                return self._read_after(name, read)
        part = self._changed_part(after)
        if part is not None:
            return self._changed(part)
        self._keep_leftovers(after, context)
        return None

    def _left(self, here: int, call: int) -> TraceValueError:
        codes = self._codes
        here = codes.skip_exits(here)
        if here <= self._begin:
            word, instead = "continue", "qd.continue_if(condition)"
        elif codes.leads_to_return(here) and codes.opname(here) != "POP_TOP":
            word, instead = "return", "`with qd.otherwise():` around the rest of the function"
        else:
            word, instead = "break", "qd.break_if(condition)"
        position = call
        while position > self._begin and codes.opname(position) in ("CALL", "PRECALL", "LOAD_CONST", "SWAP"):
            position -= 1
        return TraceValueError(
            f"a `{word}` under {self._name} would hold whatever the condition is",
            loc=self._loc_of(position),
            notes=(f"the {self._name} is at {self._loc}", "the code after it would never be traced"),
            help=f"use {instead}",
        )

    def _read_after(self, name: str, position: int) -> TraceValueError:
        return TraceValueError(
            f"`{name}` is set under {self._name} and read after it",
            loc=self._loc_of(position),
            notes=(f"the {self._name} is at {self._loc}", "Python sets it whatever the condition is"),
            help="use jnp.where(condition, a, b), or keep it in a cell: `c = qd.local(start)` and `c.value = v`",
        )

    def _changed(self, what: str) -> TraceValueError:
        return TraceValueError(
            f"{what} is set under {self._name}",
            loc=self._loc,
            notes=("Python sets it whatever the condition is",),
            help="use jnp.where(condition, a, b), or keep it in a cell: `c = qd.local(start)` and `c.value = v`",
        )
