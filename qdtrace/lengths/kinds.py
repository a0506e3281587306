"""Calls whose arguments differ in lengths alone: the graphs that they are traced to, and a program for each graph."""

from __future__ import annotations

import contextlib
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.backend import backend
from qdtrace.compose.pass_cache import pipelines
from qdtrace.errors import QdError, user_loc, warn
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.program import ref_type
from qdtrace.lengths.memory import Form, Place, on_host
from qdtrace.lengths.opened import PinnedError, UnseenError, opened, with_sizes
from qdtrace.lengths.paths import At, Path
from qdtrace.lengths.skeleton import first_difference
from qdtrace.lengths.traced import Known, Made
from qdtrace.trace.asked_types import told_of_types
from qdtrace.trace.lengths import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from qdtrace.backend import Given
    from qdtrace.ir.program import Program, Var
    from qdtrace.lengths.memory import Held
    from qdtrace.lengths.opened import Opened
    from qdtrace.lengths.skeleton import Skeleton
    from qdtrace.lengths.traced import Source, Trace

    Lengths = tuple[int, ...]
    Dims = tuple[int, ...]

FIRST = 3
"""Lengths that a function is compiled for, before one program is made for all."""
MOST_OTHERS = 16
"""The most further lengths that a function is compiled for, as they have other graphs. With more it is for each."""
MOST_PATHS = 16
"""The most ways through its decisions by lengths that are remembered of a function."""
LEAST = 3
"""The least length of a program that is another one for arrays of one element."""
MOST_SKELETONS = 6
"""The most lengths that a program is made of."""


@frozen(eq=False)
class _Made:
    """The program of all lengths at which a function is traced to one graph."""

    opened: Opened
    dims: Sequence[Dims]
    """Shapes of the parameters and buffers that the program had before passes; `-1 - k` in place of length `k`."""
    before: Program
    """The program before passes."""
    program: Program
    given: Given


@mutable(eq=False)
class _Graph:
    """A graph that a function is traced to at some lengths."""

    skeletons: list[Skeleton] = field(default_factory=list["Skeleton"])
    """The graphs that its program is made of."""
    made: _Made | None = None
    """The program, once there are two lengths."""


class Kind:
    """Calls whose arguments differ in lengths of first axes alone."""

    def __init__(self, name: str, trace: Callable[[Sequence[Any], Recording | None], Sequence[Trace]]) -> None:
        self.name, self._trace_with = name, trace
        self.compiled: dict[Lengths, Sequence[Any]] = {}
        """Lengths that the function is compiled for, with the types of the first ones' arguments."""
        self.is_pinned = False
        self.graphs: dict[Hashable, _Graph] = {}
        """Graphs by texts and options: arithmetic with lengths is done while tracing, and some may give another one."""
        self.paths: dict[Hashable, Path] = {}
        """The ways that the function took through its decisions by lengths."""
        self._records = True
        """False once a function could not be traced with lengths that are recorded."""

    def forms(self, lengths: Lengths, leaves: Sequence[Any]) -> list[Form] | None:
        """Returns what each program of a call at these lengths needs, or None if it is to be compiled for them."""
        if self.is_pinned or lengths in self.compiled or 0 in lengths:
            return None
        if len(self.compiled) < FIRST:
            self.compiled[lengths] = [_like(x) for x in leaves]
            return None
        if (known := self._known(lengths)) is not None:
            return known
        try:
            found = self._found(leaves)
        except PinnedError as error:
            self._pin(str(error))
            return None
        if found is None:
            self.compiled[lengths] = ()
            if len(self.compiled) > FIRST + MOST_OTHERS:
                one, other, *_ = [graph.skeletons[0].program for graph in self.graphs.values()]
                self._pin(f"its graph differs from length to length, first at\n  {first_difference(one, other)}")
        return found

    def _pin(self, why: str) -> None:
        self.is_pinned = True
        warn(f"`{self.name}` is compiled for each length, in spite of sizes='any': {why}", user_loc())

    def _known(self, lengths: Lengths) -> list[Form] | None:
        """Returns what each program of a call needs, without a trace; None if the function is to be traced."""
        for path in self.paths.values():
            made = [self.graphs[key].made for key in path.keys]
            ready = [m for m in made if m is not None]
            if len(ready) == len(made) and (calls := path.at(lengths, [m.opened for m in ready])):
                return [_form(call, m) for call, m in zip(calls, ready, strict=True)]
        return None

    def _trace(self, leaves: Sequence[Any]) -> Sequence[Trace]:
        """Traces a call, and keeps what it does with lengths."""
        if self._records:
            try:
                watched = all(path.recording.knows_lengths for path in self.paths.values())
                key, traces = self._trace_recorded(leaves, watched=watched)
                if not watched and key not in self.paths:  # another way may go through code that nobody has watched
                    key, traces = self._trace_recorded(leaves, watched=True)
            except UnseenError:  # another length may be none that is on disk
                pass
            except Exception:  # as code may ask for the type of a length; what is wrong without it is an error, too
                self._records = False
            else:
                path = self.paths.pop(key, None) or Path(traces)
                path.add(traces)
                self.paths[key] = path
                if len(self.paths) == FIRST and all(p.recording.knows_lengths for p in self.paths.values()):
                    raise PinnedError("each length is a way of its own, which no other one takes")
                if len(self.paths) > MOST_PATHS:
                    del self.paths[next(iter(self.paths))]
                return traces
        return self._trace_with(leaves, None)

    def _trace_recorded(self, leaves: Sequence[Any], *, watched: bool) -> tuple[Hashable, Sequence[Trace]]:
        """Traces a call, and records what it does with lengths. Raises TypeError if they were not numbers to some code,
        or if it was watched and asks for types."""
        recording = Recording([np.shape(x)[0] for x in leaves if np.ndim(x)])
        with told_of_types() if watched else contextlib.nullcontext(()) as asking:
            traces = self._trace_with(leaves, recording)
        if found := [*asking, *recording.asking]:
            raise TypeError(f"{found[0]} may ask for the type of a length")
        return Path.key(traces), traces

    def _found(self, leaves: Sequence[Any]) -> list[Form] | None:
        try:
            return self._found_by(leaves)
        except PinnedError:
            if not self.paths:
                raise
        self._records = False  # with lengths in its code it may be one program
        self.paths.clear()
        self.graphs.clear()
        return self._found_by(leaves)

    def _found_by(self, leaves: Sequence[Any]) -> list[Form] | None:
        if not self.graphs:
            try:
                traces = [trace for given in self.compiled.values() for trace in self._trace(given)]
            except QdError as error:
                raise PinnedError("it cannot be traced a second time") from error
            for trace in traces:
                self._graph_of(trace).skeletons.append(trace.skeleton)
        try:
            traces = self._trace(leaves)
        except PinnedError:
            if any(graph.made for graph in self.graphs.values()):
                return None  # at this length alone
            raise
        forms = [self._form_of(trace) for trace in traces]
        return [form for form in forms if form] if all(forms) else None

    def _form_of(self, trace: Trace) -> Form | None:
        mine, graph = trace.skeleton, self._graph_of(trace)
        if 0 in mine.lengths.values():
            return None  # places beside a check that fails are those of the first element
        if graph.made is not None and not graph.made.opened.is_long_enough(mine):
            return None
        values = graph.made and graph.made.opened.values(mine)
        if values is None and len(graph.skeletons) < MOST_SKELETONS:
            # of a new graph this one is the second length, or a number changes that was the same so far
            is_known = len(graph.skeletons) > 1
            if not is_known or graph.made is not None:
                graph.skeletons.append(mine)
            if is_known:
                graph.made = _made_of(graph.skeletons, trace)
                values = graph.made.opened.values(mine)
        if values is None or graph.made is None:
            return None
        sizes = graph.made.opened.sizes(mine)
        assert sizes is not None
        return _form(At(trace.operands, trace.results, trace.tree, sizes, [v.value for v in values]), graph.made)

    def _graph_of(self, trace: Trace) -> _Graph:
        return self.graphs.setdefault(trace.key, _Graph())


def _made_of(skeletons: Sequence[Skeleton], trace: Trace) -> _Made:
    try:
        return _made_from(opened(skeletons), trace)
    except PinnedError:
        made = opened(skeletons, LEAST)
        if not all(map(made.is_long_enough, skeletons)):
            raise
        return _made_from(made, trace)


def _made_from(made: Opened, trace: Trace) -> _Made:
    machine = backend("cpu")
    before, shorter = with_sizes([_to_run(program, trace) for program in made.programs], made)
    dims = _dims(before, shorter, made)
    first, other = (pipelines().optimise(p, trace.options, machine=machine.machine) for p in (before, shorter))
    same = _new_memory(first, before) == _new_memory(other, shorter)
    given = machine.compile_given(first, other, trace.options) if same else None
    if given is None:
        raise PinnedError("its code depends on the length")
    return _Made(made, dims, before, first, given)


def _to_run(program: Program, trace: Trace) -> Program:
    """Returns the program that runs: itself, or its adjoint if it is one of tangents."""
    if trace.transposed is None:
        return program
    try:
        return trace.transposed(replace(trace.staged, with_rules=program), backend("cpu").machine)
    except QdError as error:
        raise PinnedError(f"reverse mode does not know the number of iterations\n  {error}") from error


def _dims(first: Program, other: Program, of: Opened) -> Sequence[Dims]:
    """Returns the shapes of the memory of two programs of other lengths, with their numbers in place of lengths."""
    pairs = list(zip((*first.params, *first.buffers), (*other.params, *other.buffers), strict=False))
    numbers = {n: -1 - k for k, n in enumerate(of.larger)}

    def dim(a: int, b: int) -> int:
        if a != b and (a not in numbers or b != of.smaller[-1 - numbers[a]]):
            raise PinnedError("the size of an array of its own depends on the length")
        return a if a == b else numbers[a]

    shapes = [(ref_type(a).shape, ref_type(b).shape) for a, b in pairs]
    if len(first.buffers) != len(other.buffers) or any(len(a) != len(b) for a, b in shapes):
        raise PinnedError("its arrays depend on the length")
    return [tuple(map(dim, a, b)) for a, b in shapes]


def _new_memory(program: Program, before: Program) -> list[object]:
    """Returns what passes have decided on memory: initial contents, and types of references of their own."""
    known = {*before.params, *before.buffers}
    initial = [(k, program.initial[v]) for k, v in enumerate(program.buffers) if v in program.initial]
    return [*initial, *(v.type for v in (*program.params, *program.buffers, *program.results) if v not in known)]


def _like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) if isinstance(x, jax.Array) else x


def _form(at: At, made: _Made) -> Form:
    """Returns a call at some lengths."""
    pairs = zip((*made.before.params, *made.before.buffers), made.dims, strict=True)
    shapes = {v: tuple([n if n >= 0 else at.sizes[-1 - n] for n in dims]) for v, dims in pairs}
    params, memory = made.program.params, made.given.memory
    dtypes = [v.dtype.numpy for v in params]
    count = len(at.operands)
    numbers = [*at.numbers, *at.sizes][: len(params) - count]  # see `with_sizes`

    def place(var: Var, before: Var | None) -> Place:
        initial = made.program.initial.get(var)
        return Place(
            shapes.get(var, ref_type(var).shape),
            var.dtype.numpy,
            None if before is None else params.index(before),
            None if initial is None else initial.value,
        )

    def held(source: Source, dtype: np.dtype) -> int | Held:
        assert not isinstance(source, Made)
        return on_host(source.value, dtype) if isinstance(source, Known) else source

    known = {var for var, _ in memory[len(params) :]}
    kept = [(v, v) for v in dict.fromkeys(made.program.results) if v not in known]  # no task is left that writes them
    filled = [*memory[len(params) :], *kept]
    places = {var: k for k, (var, _) in enumerate(filled)}

    def result(source: Source) -> Source:
        return Made(places[made.program.results[source.number]], source.is_weak) if isinstance(source, Made) else source

    return Form(
        made.given,
        tuple([(held(s, dtype), dtype) for s, dtype in zip(at.operands, dtypes[:count], strict=True)]),
        tuple([on_host(np.array(x), dtype) for x, dtype in zip(numbers, dtypes[count:], strict=True)]),
        tuple([place(var, before) for var, before in filled]),
        tuple(map(result, at.results)),
        at.tree,
    )
