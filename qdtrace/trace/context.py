"""State of the trace that is running: open regions, the first error, what `otherwise` may continue.

One `TraceContext` a trace, held in a context variable: threads trace at the same time, traces nest, and an exception
in the middle of one leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from qdtrace.errors import QdError, TraceValueError, outside, user_loc
from qdtrace.frozen import frozen, mutable
from qdtrace.trace import compat
from qdtrace.trace.diagnosis.lent import Loans
from qdtrace.trace.diagnosis.results import Unused
from qdtrace.trace.diagnosis.swaps import Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    import jax

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import Primitive
    from qdtrace.trace.inplace import Statement

T = TypeVar("T")
_uids = itertools.count()
LANE = "qd.vmap"
"""User-visible name of a loop whose body is a function of one element."""


def new_uid() -> int:
    """Returns a number no other marker of this process has."""
    return next(_uids)


@mutable(eq=False)
class OpenRegion:
    """A loop or a condition whose body is being traced."""

    kind: str
    """Kind of the region: `for`, `while` or `when`."""
    name: str
    """User-visible name: `qd.range`, `qd.when`, ..."""
    loc: Loc | None
    uid: int
    parallel: bool = False
    """True for a range inside no other: its iterations are threads."""
    key: Hashable = ()
    """Identity of the region in every trace of the function."""
    on_break: Callable[[jax.Array], None] | None = None
    """Called with the condition of a `qd.break_if`, if several loops are one to the user."""


@mutable(eq=False)
class WholeCalls:
    """Calls of `qd.jit` functions that can be no part of a lane, as they make buffers: all lanes make them at once."""

    depth: int
    """Regions that are open where a lane begins; in a loop or condition of a lane a call is a part of that."""
    functions: set[object] = field(default_factory=set[object])
    """The functions: of one that fails once all calls are left whole, as each trace may change Python state."""
    numbers: set[int] = field(default_factory=set[int])
    """Their numbers among all calls of such functions, in the order of the trace, which may make a function anew."""
    count: int = 0
    """Calls met so far in this trace."""

    def taken_in(self, function: object) -> AbstractContextManager[None] | None:
        """Returns a block that makes a call of a function a part of the lane; None if it is not to be one."""
        number, self.count = self.count, self.count + 1
        return None if function in self.functions or number in self.numbers else self._noted(function, number)

    @contextlib.contextmanager
    def _noted(self, function: object, number: int) -> Generator[None]:
        """Notes the function whose call fails in this block, unless one inside of it has."""
        known = len(self.numbers)
        try:
            yield
        except Exception:
            if len(self.numbers) == known:
                self.functions.add(function)
                self.numbers.add(number)
            raise


@mutable(eq=False)
class PendingSum:
    """`b[i] + v` made by `b[i] += v`, until it is stored: then it is an accumulation."""

    loaded: jax.Array
    value: object
    negate: bool
    statement: Statement | None
    """The statement that made it, if that has the form `place += value`."""


@frozen
class Loaded:
    """An array that one index loaded: the index as it was given, the keys of its accesses and their values."""

    key: object
    keys: tuple[tuple[object, ...], ...]
    values: tuple[jax.Array, ...]


@mutable(eq=False)
class TraceContext:
    """State of one trace."""

    name: str
    regions: list[OpenRegion] = field(default_factory=list)
    error: QdError | None = None
    """First error seen where raising it would be swallowed; every later operation raises it."""
    closed_when: tuple[Any, Loc | None] | None = None
    """Predicate of the `qd.when` that closed with the last operation."""
    sums: dict[int, PendingSum] = field(default_factory=dict)
    """Sums that in-place operators made and nobody stored yet, by identity, while they live."""
    loads: dict[int, Loaded] = field(default_factory=dict[int, Loaded])
    """Arrays that one index loaded from several places, by identity."""
    leftovers: dict[int, object] = field(default_factory=dict[int, object])
    """Values that loops, now closed, left in Python variables (by identity)."""
    borrowed: dict[int, object] = field(default_factory=dict[int, object])
    """Handles (by identity) of arguments of the functions that are inlined now: they may be read only."""
    inlined: str = ""
    """Name of the `qd.jit` function that is inlined now."""
    inlines: bool = False
    """True if functions of `qd.jit` that are called outside of loops become part of this one."""
    lanes: object = None
    """Mode of a `qd.vmap` that is called here: `Lane`, `Probe` or `REFERENCE` of `lanes/plan`, or None."""
    whole_calls: WholeCalls | None = None
    """Calls that are no part of the lane that is traced; None outside of one."""
    function: object = None
    """The function that is traced."""
    jax_trace: object = None
    """The JAX trace of the function's own code; that of `lax` and `jax.vmap` bodies is another one."""
    jax_traces: set[object] = field(default_factory=set)
    """JAX traces that markers were bound in; all of them end with this one."""
    active: bool = True
    has_returned: bool = False
    """True once the function has returned, while its results are looked at."""
    state: Any = None
    """Objects that bodies may change, once one was looked for (`state.State`)."""
    watching: bool = True
    """False while bodies run for a check: their actions were looked at before."""
    again: Any = None
    """The region whose body runs for a second time, with the changes of its first run; None outside of such a run."""
    suspects: list[Any] = field(default_factory=list)
    """Regions that set something which code after them may read (`lint.Suspect`)."""
    left_out: Mapping[Hashable, int] = field(default_factory=dict["Hashable", int])
    """Keys of the regions that do not run in this trace, with `lint.Suspect.depth`."""
    counts: dict[Hashable, int] = field(default_factory=dict["Hashable", int])
    uids: dict[Hashable, int] = field(default_factory=dict["Hashable", int])
    """Keys of the regions with their uids."""
    unused: Unused = field(default_factory=Unused)
    """Loops and conditions that nobody has entered."""
    forks: dict[int, list[Any]] = field(default_factory=dict)
    """Buffers that a call changed and returned as another object, as `aliases.Fork`, by identity."""
    loans: Loans = field(default_factory=Loans)
    """Buffers that functions of JAX may have got as arguments."""
    copies: dict[Hashable, set[Hashable]] = field(default_factory=dict["Hashable", "set[Hashable]"])
    """Static indices of stores outside of every `qd.range`, by instruction of the user's code."""
    told: set[Hashable] = field(default_factory=set["Hashable"])
    """Places that were warned of."""
    written: set[int] = field(default_factory=set)
    """Tracers, by identity, of the buffers that something was stored into."""
    stores: Stores = field(default_factory=Stores)
    """The last stores, as far as they may be those of one statement."""
    has_refs: bool = False
    """True once references of JAX in the function have become values."""
    arrays: frozenset[int] = frozenset()
    """Positions of the arguments that are no buffers, as nothing stores into them."""
    readable: frozenset[int] = frozenset()
    """Positions of the buffers among the arguments that nothing stored into before an error."""

    def new_key(self, loc: Loc | None) -> tuple[object, ...]:
        """Returns the key of a region that begins at this place."""
        place = (self.regions[-1].key if self.regions else (), loc and loc.file, loc and loc.line)
        self.counts[place] = count = self.counts.get(place, 0) + 1
        return (*place, count)

    def check(self) -> None:
        """Raises the recorded error, if any."""
        if self.error is not None:
            raise self.error

    def fail(self, error: QdError) -> None:
        """Records the first error."""
        if self.active and self.error is None:
            self.error = error

    @property
    def innermost_loop(self) -> OpenRegion | None:
        """The loop that `break_if` and `continue_if` act on."""
        return next((r for r in reversed(self.regions) if r.kind != "when"), None)

    @property
    def in_thread(self) -> bool:
        """True inside a `qd.range`: the code is that of one iteration."""
        return any(r.kind == "for" for r in self.regions)

    def inlining(self, function: object) -> AbstractContextManager[None] | None:
        """Returns a block that makes a call a part of this trace; None if a lane calls the function as it is."""
        whole = self.whole_calls
        return whole.taken_in(function) if whole and len(self.regions) == whole.depth else contextlib.nullcontext()

    def open(self, region: OpenRegion) -> None:
        """Enters a region."""
        self.closed_when = None
        self.uids[region.key] = region.uid
        self.regions.append(region)

    def close(self, region: OpenRegion) -> None:
        """Leaves a region, which must be the innermost."""
        self.check()
        top = self.regions[-1] if self.regions else None
        if top is not region:
            raise left_open(top or region, user_loc())
        self.closed_when = None
        self.regions.pop()

    def finish(self) -> None:
        """Checks that the traced function left nothing open."""
        self.check()
        if self.regions:
            raise left_open(self.regions[-1], None)
        self.has_returned = True
        self.unused.warn()
        if self.suspects:
            self.state.settle()
        else:
            self.state = None
        self.release()

    def watched(self) -> Unused | None:
        """Returns the notes of unused loops and conditions; None in a trace that only compares."""
        return self.unused if self.watching else None

    def note_sum(self, result: object, pending: PendingSum) -> None:
        """Remembers what a sum was made of, no longer than somebody holds it."""
        _note(self.sums, result, pending)

    def note_loads(self, result: object, loaded: Loaded) -> None:
        """Remembers what an array was loaded from, no longer than somebody holds it."""
        _note(self.loads, result, loaded)

    def release(self) -> None:
        """Drops every traced value."""
        self.leftovers.clear()
        self.sums.clear()
        self.loads.clear()
        self.closed_when = None


def _note(table: dict[int, T], result: object, what: T) -> None:
    key = id(result)
    table[key] = what
    weakref.finalize(result, table.pop, key, None).atexit = False


def left_open(region: OpenRegion, loc: Loc | None) -> TraceValueError:
    """Returns the error for a body that was not traced to its end."""
    return TraceValueError(
        f"the body of a {region.name} must run to its end, it was left early",
        loc=loc or region.loc,
        notes=(f"the {region.name} is at {region.loc}",),
        help="a traced body runs once for all iterations: leave a loop with qd.break_if(condition), or put the rest "
        "of the body under `with qd.when(condition):`",
    )


_STORES = {"qd_store", "qd_accum", "qd_update", "qd_assign", "qd_atomic", "qd_push"}
_current: ContextVar[TraceContext | None] = ContextVar("qdtrace_trace", default=None)
_finished: weakref.WeakSet[object] = weakref.WeakSet()


get_current: Callable[[], TraceContext | None] = _current.get
"""The running trace, or None. A built-in function: each direct call of a function asks."""


def current(what: str) -> TraceContext:
    """Returns the running trace; raises an error that names `what` when there is none."""
    context = _current.get()
    if context is None:
        raise outside(what)
    context.check()
    return context


@contextlib.contextmanager
def new_trace(name: str) -> Generator[TraceContext]:
    """Runs a block as one trace."""
    context = TraceContext(name)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
        context.active = False
        context.regions.clear()
        context.jax_traces.clear()
        context.suspects.clear()
        context.forks.clear()
        context.loans = Loans()
        context.state = context.again = None
        context.release()


def remember_finished(context: TraceContext) -> None:
    """Notes that the tracers of this trace are dead: a jaxpr that holds one was cached by an earlier trace."""
    for trace in context.jax_traces:
        _finished.add(trace)


def is_dead(tracer: object) -> bool:
    """Returns whether a value is a tracer of a trace of ours that has ended."""
    trace = compat.trace_of(tracer)
    return trace is not None and trace in _finished


def emit(primitive: Primitive, *operands: object, **params: object) -> Any:
    """Binds a marker in the running trace."""
    context = current(f"qd.{primitive.name[3:]}")
    if context.borrowed and primitive.name in _STORES and id(operands[0]) in context.borrowed:
        raise TraceValueError.here(
            "a qd.jit function called inside a loop cannot store into its arguments: they are values, not the "
            "caller's memory",
            help="return the new value, or remove @qd.jit from the function: a plain one is given the buffers",
        )
    context.closed_when = None
    folding = compat.folding  # on in `jax.ensure_compile_time_eval`, where JAX runs what has no tracer
    with contextlib.nullcontext() if folding is None or not folding.value else folding(False):
        result = primitive.bind(*operands, **params)
    trace = compat.trace_of(result)
    if trace is not None:
        context.jax_traces.add(trace)
    return result
