"""Calls at lengths that a function was not compiled for: see docs/design/0065-any-length.md.

A function is compiled for the first lengths that it is called with. From then on it is only traced at a new length: if
that gives the graph of the first ones but for numbers, one program runs it, and otherwise it is compiled as before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding

from qdtrace.backend import backend
from qdtrace.compose.explain import failure_in
from qdtrace.errors import BoundsError, CheckError, QdError, warn
from qdtrace.frozen import frozen
from qdtrace.ir.program import ref_type
from qdtrace.lengths.memory import Form
from qdtrace.lengths.opened import PinnedError, opened
from qdtrace.lengths.skeleton import first_difference
from qdtrace.lengths.traced import trace_call
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from qdtrace.backend import Given
    from qdtrace.compose.staged import Programs
    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.lengths.opened import Opened
    from qdtrace.lengths.skeleton import Skeleton
    from qdtrace.lengths.traced import Trace

    Lengths = tuple[int, ...]

FIRST = 3
"""Lengths that a function is compiled for, before one program is made for all."""
KEPT = 256
"""The most lengths that are remembered: another one is traced again."""
LOOKING = (
    "jax_debug_nans", "jax_debug_infs", "jax_disable_jit", "jax_default_device", "jax_transfer_guard",
    "jax_transfer_guard_host_to_device", "jax_transfer_guard_device_to_host",
)  # fmt: skip
"""Settings of JAX by which it looks at each call and its arrays, or places them."""
UNSET = (False, None, "allow")
MOST_OTHERS = 16
"""The most further lengths that a function is compiled for, as they have other graphs. With more it is for each."""
MOST_SKELETONS = 6
"""The most lengths that a program is made of."""


class Calls:
    """The calls of one function with its options."""

    def __init__(self, name: str, staging: Callable[[Programs], Callable[..., Any]], options: Options) -> None:
        self.name, self.staging, self.options = name, staging, options
        self._kinds: dict[Hashable, _Kind] = {}
        self._lock = threading.RLock()  # a function that is traced may call another one, or itself

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Returns the result of a call, or None where it is to be compiled for its lengths."""
        if compat.settings is None or not compat.trace_ctx.is_top_level():
            return None
        if self.options.debug or self.options.deterministic:
            return None
        if any(getattr(jax.config, name) not in UNSET for name in LOOKING):
            return None
        leaves, structure = jax.tree.flatten((args, kwargs))
        kinds = [_kind_of(x) for x in leaves]
        if None in kinds:
            return None
        lengths = tuple([np.shape(x)[0] for x in leaves if np.ndim(x)])
        with self._lock:
            key = (structure, *kinds, compat.settings())
            kind = self._kinds.get(key) or self._kinds.setdefault(key, _Kind(self, structure))
            found = kind.form(lengths, leaves)
        if found is None:
            return None
        form, made = found
        try:
            return (form.run(leaves, made.program, made.given),)
        except Exception as error:
            if isinstance(failure_in(error), BoundsError | CheckError):
                return None  # the program of these lengths fails, too, and its error tells them
            raise


def _kind_of(x: object) -> Hashable:
    """Returns all of an argument but the length of its first axis; None if it is none that a processor has."""
    if isinstance(x, jax.Array):
        if isinstance(x, Tracer) or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return None
        is_here = isinstance(x.sharding, SingleDeviceSharding) and x.devices() == {jax.local_devices(backend="cpu")[0]}
        return (x.dtype, x.weak_type, x.ndim, x.shape[1:]) if is_here else None
    if isinstance(x, np.ndarray | np.generic):
        return (type(x), x.dtype, x.ndim, x.shape[1:]) if x.dtype.isnative else None
    return type(x) if type(x) in (bool, int, float) else None


@frozen(eq=False)
class _Made:
    """The program of all lengths at which a function is traced to one graph."""

    opened: Opened
    program: Program
    given: Given


@dataclass(eq=False)
class _Graph:
    """A graph that a function is traced to at some lengths."""

    skeletons: list[Skeleton] = field(default_factory=list["Skeleton"])
    """The graphs that its program is made of."""
    made: _Made | None = None
    """The program, once there are two lengths."""


class _Kind:
    """Calls whose arguments differ in lengths of first axes alone."""

    def __init__(self, calls: Calls, structure: Any) -> None:
        self.calls, self.structure = calls, structure
        self.compiled: dict[Lengths, Sequence[Any]] = {}
        """Lengths that the function is compiled for, with the types of the first ones' arguments."""
        self.is_pinned = False
        self.graphs: dict[tuple[str, Options], _Graph] = {}
        """Graphs by texts and options: arithmetic with lengths is done while tracing, and some may give another one."""
        self.forms: OrderedDict[Lengths, tuple[Form, _Made]] = OrderedDict()

    def form(self, lengths: Lengths, leaves: Sequence[Any]) -> tuple[Form, _Made] | None:
        """Returns what a call at these lengths needs, or None if it is to be compiled for them."""
        if self.is_pinned or lengths in self.compiled or 0 in lengths:
            return None
        if (found := self.forms.get(lengths)) is not None:
            self.forms.move_to_end(lengths)
            return found
        if len(self.compiled) < FIRST:
            self.compiled[lengths] = [_type_of(x) for x in leaves]
            return None
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
            return None
        self.forms[lengths] = found
        if len(self.forms) > KEPT:
            self.forms.popitem(last=False)
        return found

    def _pin(self, why: str) -> None:
        self.is_pinned = True
        warn(f"`{self.calls.name}` is compiled for each length, in spite of sizes='any': {why}", None)

    def _found(self, leaves: Sequence[Any]) -> tuple[Form, _Made] | None:
        if not self.graphs:
            try:
                traces = [self._trace(given) for given in self.compiled.values()]
            except QdError as error:
                raise PinnedError("it cannot be traced a second time") from error
            for trace in traces:
                self._graph_of(trace).skeletons.append(trace.skeleton)
        try:
            trace = self._trace(leaves)
        except PinnedError:
            if any(graph.made for graph in self.graphs.values()):
                return None  # at this length alone
            raise
        if 0 in trace.skeleton.lengths.values():
            return None  # places beside a check that fails are those of the first element
        mine, graph = trace.skeleton, self._graph_of(trace)
        values = graph.made and graph.made.opened.values(mine)
        if values is None and len(graph.skeletons) < MOST_SKELETONS:
            # of a new graph this one is the second length, or a number changes that was the same so far
            is_known = len(graph.skeletons) > 1
            if not is_known or graph.made is not None:
                graph.skeletons.append(mine)
            if is_known:
                graph.made = _made_of(graph.skeletons, trace.options)
                values = graph.made.opened.values(mine)
        if values is None or graph.made is None:
            return None
        return _form(trace, tuple([np.array(v.value) for v in values]), graph.made), graph.made

    def _trace(self, leaves: Sequence[Any]) -> Trace:
        return trace_call(self.calls.staging, leaves, self.structure)

    def _graph_of(self, trace: Trace) -> _Graph:
        return self.graphs.setdefault((trace.skeleton.text, trace.options), _Graph())


def _made_of(skeletons: Sequence[Skeleton], options: Options) -> _Made:
    from qdtrace.passes.pipelines import optimise  # only here: see `compose.pass_cache`

    made, machine = opened(skeletons), backend("cpu")
    first, other = (optimise(p, options, machine=machine.machine) for p in made.programs)
    same = _new_memory(first, made.programs[0]) == _new_memory(other, made.programs[1])
    given = machine.compile_given(first, other, options) if same else None
    if given is None:
        raise PinnedError("its code depends on the length")
    return _Made(made, first, given)


def _new_memory(program: Program, before: Program) -> list[object]:
    """Returns what passes have decided on memory: initial contents, and types of references of their own."""
    known = {*before.params, *before.buffers}
    initial = [(k, program.initial[v]) for k, v in enumerate(program.buffers) if v in program.initial]
    return [*initial, *(v.type for v in (*program.params, *program.buffers, *program.results) if v not in known)]


def _type_of(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) if isinstance(x, jax.Array) else x


def _form(trace: Trace, numbers: tuple[np.ndarray, ...], made: _Made) -> Form:
    """Returns a call at the lengths of a trace."""
    open_, mine = made.opened.programs[0], trace.skeleton.program
    pairs = zip((*open_.params, *open_.buffers), (*mine.params, *numbers, *mine.buffers), strict=True)
    shapes = {v: np.shape(like) if isinstance(like, np.ndarray) else ref_type(like).shape for v, like in pairs}
    kept = {v: shapes.get(v, ref_type(v).shape) for v, _ in made.given.memory}
    return Form(trace.operands, trace.results, trace.tree, numbers, kept)
