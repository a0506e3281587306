"""Diagnosis of Python that a trace cannot see: state carried from one iteration to the next or set under a condition,
`continue` under a condition, a loop given to `enumerate`.

A body is traced once for all iterations, so each of these would give a wrong result without an error. What is plain is
refused at once: a variable that is read before it is set again, by the compiled code. What may be wrong is a suspicion:
then the body is traced again (`loops`), or the function without it (`replay`), and the equations decide. If a diagnosis
itself fails, the trace goes on. See docs/design/0007-carried-state.md.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from qdtrace.errors import TraceValueError, frame_loc
from qdtrace.frozen import frozen
from qdtrace.trace.compat import Tracer
from qdtrace.trace.diagnosis import reports
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.diagnosis.changes import StateChange, kind_of, rebound
from qdtrace.trace.diagnosis.frames import Variables, body_frames, is_data, is_static, is_whole, leaves
from qdtrace.trace.diagnosis.state import State
from qdtrace.trace.own_files import is_own_package
from qdtrace.tracebacks import is_hidden

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from qdtrace.trace.context import OpenRegion, TraceContext
    from qdtrace.trace.diagnosis.bytecode import CodeMap

_CONSUMERS = ("CALL", "PRECALL", "LIST_EXTEND", "SET_UPDATE", "UNPACK", "CONTAINS_OP")
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


@frozen(eq=False)
class Suspect:
    """A region that changed something which code after it may read."""

    region: OpenRegion
    changes: tuple[StateChange, ...]
    depth: int = 0
    """Index into `frames.body_frames` of the frame that runs the block of a condition."""


def check_iteration(frame: FrameType, name: str) -> None:
    """Refuses a loop that is consumed by anything but a `for` statement."""
    if is_hidden(frame.f_code.co_filename):
        return
    found = ""
    with contextlib.suppress(Exception):
        codes = code_map(frame.f_code)
        found = codes.opname(codes.at(frame.f_lasti))
    if found.startswith(_CONSUMERS):
        raise _not_a_for(frame, name)


def is_in_kernel(frame: FrameType) -> bool:
    """Returns whether a frame is of this package, and not of one of its programs."""
    file = frame.f_code.co_filename
    return is_hidden(file) and is_own_package(file)


def _not_a_for(frame: FrameType, name: str) -> TraceValueError:
    return TraceValueError(
        f"a {name} needs to stand in a `for` statement of its own, not in enumerate, zip, list or a comprehension",
        loc=frame_loc(frame),
        help=f"write `for i in {name}(...):`; the body is traced once, and i is the index of every iteration",
    )


class _Watch:
    """Compares variables and objects before and after a traced body."""

    def __init__(self, frame: FrameType | None, opname: str, region: OpenRegion, context: TraceContext) -> None:
        self._region = region
        self._scopes: list[Variables] = []
        self._mark: int | None = None
        if not context.watching:
            return
        state = context.state = context.state or State()
        with contextlib.suppress(Exception):
            self._scopes = [Variables(f, opname) for f in body_frames(frame)]
            self._mark = state.begin([(s.frame, s.before) for s in self._scopes], self._roots())

    def _roots(self) -> dict[str, object]:
        """Returns further objects to look at, by name."""
        return {}

    def _changes(self, context: TraceContext) -> list[StateChange]:
        """Returns changes of objects by the body, including one that cannot be looked into."""
        if self._mark is None:
            return [StateChange("", "unknown")]
        changes, blind = context.state.end(self._mark)
        return changes if blind is None else [*changes, StateChange(blind, "blind")]

    def keep_leftovers(self, context: TraceContext) -> None:
        """Notes values made in this body: if a later body reads one, `regions` refuses that exactly."""
        found: dict[int, object] = {}
        for scope in self._scopes:
            for name, value in scope.frame.f_locals.items():
                if scope.before.get(name) is not value or isinstance(value, (tuple, list)):
                    found.update((id(leaf), leaf) for leaf in leaves(value) if isinstance(leaf, Tracer))
        if found:
            known: set[int] = context.state.identities()
            for scope in self._scopes:
                known.update(id(leaf) for value in scope.before.values() for leaf in leaves(value))
            context.leftovers.update((k, v) for k, v in found.items() if k not in known)

    def _suspect(self, changes: list[StateChange], context: TraceContext) -> None:
        """Notes what has to be decided by the equations."""
        if changes:
            ran = (k for k, s in enumerate(self._scopes) if s.has_moved())
            context.suspects.append(Suspect(self._region, tuple(changes), max(ran, default=0)))

    def _diagnose(self, context: TraceContext) -> TraceValueError | None:
        """Returns the error for what is plain; notes what may be wrong."""
        raise AssertionError(type(self))

    def finish(self, context: TraceContext) -> None:
        """Compares after the body was traced; raises TraceValueError for what is plain."""
        if not context.watching:
            return
        try:
            error = self._diagnose(context)
        except Exception:
            error = None
            self._suspect([StateChange("", "unknown")], context)
        if error is not None:
            context.fail(error)
            raise error


class LoopWatch(_Watch):
    """Watches the body of a `for` statement over a traced loop."""

    runs_helpers_again = True
    """True if the second trip runs the user's `jax.jit` functions again."""

    def __init__(
        self, frame: FrameType | None, region: OpenRegion, condition: Callable[[], object] | None, context: TraceContext
    ) -> None:
        self._condition = condition
        super().__init__(frame, "FOR_ITER", region, context)
        self.carried: list[StateChange] = []
        """Changes that the body may carry to its next iteration."""
        self._after: list[StateChange] = []
        for scope in self._scopes:
            comprehension = scope.frame.f_code.co_name in _COMPREHENSIONS
            with contextlib.suppress(Exception):
                comprehension = comprehension or (scope.is_placed and scope.codes.is_comprehension(scope.position))
            if comprehension:
                raise _not_a_for(scope.frame, region.name)

    def _roots(self) -> dict[str, object]:
        return {} if self._condition is None else {"condition": self._condition}

    def _diagnose(self, context: TraceContext) -> TraceValueError | None:
        changes = self._changes(context)
        for scope in self._scopes:
            error = self._variables(scope, context) if scope.is_placed else self._unplaced(scope)
            if error is not None:
                return error
        self.carried += [*changes, *self._wrapped()]
        super()._suspect([*self._after, *changes], context)
        self.keep_leftovers(context)
        return None

    def _suspect(self, changes: list[StateChange], context: TraceContext) -> None:
        self.carried += changes

    def _variables(self, scope: Variables, context: TraceContext) -> TraceValueError | None:
        codes, loop, region = scope.codes, scope.position, self._region
        exit_ = codes.target(loop)
        for name, old, new in scope.rebound():
            change = rebound(name, old, new)
            plain = is_data(old) and is_data(new)
            if not (isinstance(old, Tracer) and id(old) in context.leftovers):
                read = codes.always_read(name, loop + 1, barrier=loop)
                if read is not None and is_whole(old) and is_whole(new):
                    return reports.carried(
                        change, region.name, parallel=region.parallel, loc=scope.loc(read), loop=scope.loc(loop)
                    )
                elsewhere = exit_ is not None and not codes.is_written(name, loop, exit_)
                if elsewhere or _may_be_read(codes, name, loop + 1):
                    self.carried.append(change)
            if exit_ is None or (plain and not any(map(is_static, leaves(new)))):
                continue
            read = codes.always_read(name, exit_)
            if read is not None and is_whole(new):
                return reports.read_after(change, region.name, loc=scope.loc(read), region=scope.loc(loop))
            if _may_be_read(codes, name, exit_):
                self._after.append(change)
        for name, new in scope.new():
            if codes.caught_read(name, loop + 1):
                self.carried.append(StateChange(name, kind_of(new)))
        return None

    def _unplaced(self, scope: Variables) -> None:
        """Notes all rebound variables of a frame whose code does not show how it fetches the next index."""
        changes = [StateChange(name, kind_of(new)) for name, _, new in scope.rebound()]
        self.carried += changes
        self._after += changes

    def _wrapped(self) -> list[StateChange]:
        """Returns a change for a loop in a generator of the user: something like `enumerate` may count it."""
        drivers = self._scopes[1:]
        return [StateChange("", "static")] if any(s.codes.opname(s.position) != "SEND" for s in drivers) else []


class FunctionWatch(LoopWatch):
    """Watches the body of a loop that this package writes, which calls a function of the user and nothing else."""

    runs_helpers_again = (
        False  # `qd.vmap` has run them for shapes before, where a `qd.vmap` inside leaves other equations
    )

    def __init__(self, function: object, region: OpenRegion, context: TraceContext) -> None:
        self._function = function
        super().__init__(None, region, None, context)

    def _roots(self) -> dict[str, object]:
        return {getattr(self._function, "__name__", "f"): self._function}

    def _diagnose(self, context: TraceContext) -> TraceValueError | None:
        # Nothing of the function is left to run after it.
        self.carried += self._changes(context)
        return None


def _may_be_read(codes: CodeMap, name: str, start: int) -> bool:
    """Returns whether code from `start` on, or a function that it may call, may read a variable before it is set."""
    return codes.is_captured(name, start) or codes.first_read(name, start) is not None


class ConditionWatch(_Watch):
    """Watches the body of a `with qd.when(...)`."""

    def __init__(self, frame: FrameType, region: OpenRegion, context: TraceContext) -> None:
        super().__init__(frame, "BEFORE_WITH", region, context)

    def _diagnose(self, context: TraceContext) -> TraceValueError | None:
        changes = self._changes(context)
        for scope in self._scopes:
            if not scope.has_moved():  # it opens another block, by a context manager that is not done with its own
                continue
            set_here = [(name, old, new) for name, old, new in scope.rebound()]
            set_here += [(name, None, value) for name, value in scope.new()]
            if not scope.is_placed:
                changes += [StateChange(name, kind_of(new)) for name, _, new in set_here]
                continue
            codes = scope.codes
            call = codes.at(scope.frame.f_lasti)
            here, after_block = codes.after_exit(call), codes.after_with(scope.position)
            if here is None:
                continue
            if after_block is not None and not codes.same_code(here, after_block):
                return self._left(scope, call)
            for name, old, new in set_here:
                change = rebound(name, old, new)
                read = codes.always_read(name, here)
                if read is not None and is_data(old) and is_data(new):
                    begin = scope.loc(scope.position)
                    return reports.read_after(change, self._region.name, loc=scope.loc(read), region=begin)
                if _may_be_read(codes, name, here):
                    changes.append(change)
        self._suspect(changes, context)
        self.keep_leftovers(context)
        return None

    def _left(self, scope: Variables, call: int) -> TraceValueError:
        codes, begin, name = scope.codes, scope.position, self._region.name
        position = call
        while position > begin and codes.opname(position) in ("CALL", "PRECALL", "LOAD_CONST", "SWAP"):
            position -= 1
        return TraceValueError(
            f"a statement that leaves a {name} would do so whatever the condition is",
            loc=scope.loc(position),
            notes=(f"the {name} is at {scope.loc(begin)}", "the code after it would never be traced"),
            help="write qd.continue_if(condition) for `continue`, qd.break_if(condition) for `break`; for `return` put "
            "the rest of the function under `with qd.otherwise():`",
        )
