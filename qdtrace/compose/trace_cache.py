"""The trace cache: what a function of one program was traced to, on disk, so that a process does without its Python.

The key is a description of all that the function can look at (`described`). A function without one is traced, and a
counter says why. So is one that is more than a call of a program: array code around the call has no faithful text.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jaxlib
from jax.core import ShapedArray, Tracer

from qdtrace.compose import derived_later, pass_cache
from qdtrace.compose.call import call
from qdtrace.compose.described import Description, UnknownError
from qdtrace.compose.kept_trace import TraceKeeper, find_call, find_equations_key, places_of
from qdtrace.compose.noted_warnings import noted_warnings
from qdtrace.compose.pass_cache import TRACES
from qdtrace.compose.staged import Programs, note_programs
from qdtrace.compose.staged_program import KeptSource, StagedProgram
from qdtrace.counters import miss
from qdtrace.errors import TraceValueError
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from qdtrace.compose.described import Lines
    from qdtrace.compose.pass_cache import GraphKey
    from qdtrace.compose.stager import Call
    from qdtrace.config import Options
    from qdtrace.limits import Limits

derived_later.register()

_CONTAINERS = (tuple, list, dict)


@dataclass(frozen=True, eq=False)
class Request:
    """A function with the arguments, names and options that it is traced with."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    options: Options
    donations: tuple[Any, Any]
    given: Sequence[tuple[Any, Limits]]

    def leaves(self) -> list[Any]:
        """Returns the tracers among the arguments."""
        return [x for x in jax.tree.leaves((self.args, self.kwargs)) if isinstance(x, Tracer)]

    def trace(self) -> tuple[Any, Call | None]:
        """Returns the results, and the call of a program if there is one alone."""
        # Only here: a process that finds what it needs on disk loads no tracer.
        from qdtrace.compose.tracing import staged_call

        return staged_call(self.f, self.args, self.kwargs, self.name, self.options, self.donations, self.given)


@dataclass(frozen=True, eq=False)
class Key:
    """The key of a function with arguments."""

    name: str
    function: str
    """A hash of the function's description."""
    settings: tuple[str, ...]
    """JAX's settings."""
    lines: Lines

    def is_of(self, f: Callable[..., Any]) -> bool:
        """Returns whether a function has the description that the key was made of."""
        found = Description(self.lines.call)
        try:
            found.add(f)
        except UnknownError:
            return False
        return found.digest() == self.function

    def keeper(self, request: Request, call: tuple[Any, Any] | None = None) -> TraceKeeper:
        """Returns what writes the program that a request is traced to."""
        return TraceKeeper(self.name, request.options, self.lines, partial(self.is_of, request.f), call)


def results_of(request: Request) -> Any:
    """Returns the results of a function under `jax.jit`: of the call that is on disk, or traced."""
    key = _key(request)
    found = None if key is None else find_call(key.name, request.options)
    if key is not None and found is not None:
        return _called(key, *found, request)
    with noted_warnings() as given:
        results, made = request.trace()
    if key is not None:
        try:
            _keep(key, made, results, request, warned=bool(given))
        except UnknownError as error:
            miss(TRACES, str(error))
    return results


def _keep(key: Key, made: Call | None, results: Any, request: Request, *, warned: bool) -> None:
    """Has a traced function written when its graph has a key. Raises UnknownError if it must not be found."""
    if warned:
        raise UnknownError("gives a warning")
    if made is None:
        raise UnknownError("more than one program")
    if not made.staged.has_known_source:
        raise UnknownError("no source")
    if _described(request).name != key.name:
        raise UnknownError("changes what it looks at")
    made.staged.keepers.append(key.keeper(request, places_of(made, results, request.leaves())))


# ------------------------------------------------------------------ keys


def _key(request: Request) -> Key | None:
    """Returns the key of a function and its arguments, or None if it has none."""
    options = request.options
    # the interpreter of `debug=True` runs no pass, so there is no key to write a program with
    if pass_cache.reason_against(options) or options.debug or not options.offline_cache_traces:
        return None
    try:
        return _described(request)
    except UnknownError as error:
        miss(TRACES, str(error))
        return None


def _described(request: Request) -> Key:
    """Returns the key of a function and its arguments. Raises UnknownError if they have no description."""
    if _is_watched():
        raise UnknownError("Python is watched")
    registry = sys.modules.get("qdtrace.trace.importer.registry")
    if registry is not None and registry.TAUGHT:
        raise UnknownError("import rule of the user")
    found, settings = Description(), _settings()
    found.add(request.f)
    function = found.digest()
    found.note(request.name, request.donations, pass_cache.settled(request.options), *settings)
    numbers = {id(x): k for k, x in enumerate(request.leaves())}
    found.note(*((numbers[id(x)], repr(limits)) for x, limits in request.given))
    _describe_arguments(found, (request.args, request.kwargs))
    return Key(found.digest()[:32], function, settings, found.lines)


def _is_watched() -> bool:
    """Returns whether a debugger, profiler or measure of coverage wants to see the function run."""
    monitoring = getattr(sys, "monitoring", None)
    tools = [] if monitoring is None else [monitoring.get_tool(k) for k in range(6)]
    return any(x is not None for x in (sys.gettrace(), sys.getprofile(), *tools))


def _settings() -> tuple[str, ...]:
    """Returns all settings of JAX that a trace can depend on. Raises UnknownError if they cannot be asked for."""
    values, now = getattr(jax.config, "values", None), pass_cache.settings()
    if now is None or not isinstance(values, dict) or not hasattr(compat.source_lines, "context"):
        raise UnknownError("settings of JAX")
    fixed = jaxlib.version.__version__, jax.default_backend(), repr(sys.flags)
    return (*now, repr(sorted(values.items())), *fixed)


def _describe_arguments(found: Description, tree: Any) -> None:
    if isinstance(tree, Tracer):
        aval: Any = tree.aval
        facts = [getattr(aval, name, None) for name in ("weak_type", "sharding", "vma", "memory_space")]
        found.note("argument", type(aval).__name__, str(aval), repr(facts))
    elif type(tree) in _CONTAINERS:
        found.note(type(tree).__name__, len(tree))
        for key in tree if type(tree) is dict else ():
            found.add(key)
        for inner in tree.values() if type(tree) is dict else tree:
            _describe_arguments(found, inner)
    elif any(isinstance(x, Tracer) for x in jax.tree.leaves(tree)):
        raise UnknownError(f"argument of {type(tree).__name__}")
    else:
        found.add(tree)


# ------------------------------------------------------------------ programs that are found


def _called(key: Key, graph: GraphKey, found: tuple[Any, ...], request: Request) -> Any:
    """Returns the results of a call that was found."""
    program, places, results, has_primal = found
    on_disk = cache(partial(find_equations_key, key.name, request.options))
    again = cache(partial(_traced_again, _without_tracers(request), key, graph, on_disk))
    source = KeptSource(key.name, graph, has_primal, lambda: on_disk() or again().equations_key, again)
    staged = StagedProgram(program, request.options, kept_source=source)
    note_programs((staged,))
    arguments = request.leaves()
    with jax.ensure_compile_time_eval():  # under `jax.jit` they would be tracers
        operands = [arguments[x] if type(x) is int else jax.numpy.asarray(x) for x in places]
    outs = call(staged, operands)
    return jax.tree.map(lambda k: arguments[k] if k >= 0 else outs[-1 - k], results)


def _without_tracers(request: Request) -> Request:
    """Returns the request with the types of traced arguments in their places."""
    limits = {id(x): known for x, known in request.given}
    given = [(x.aval, limits[id(x)]) for x in request.leaves() if id(x) in limits]
    args, kwargs = jax.tree.map(lambda x: x.aval if isinstance(x, Tracer) else x, (request.args, request.kwargs))
    return replace(request, args=args, kwargs=kwargs, given=given)


@contextmanager
def _own_lines() -> Generator[None]:
    """Gives equations that a block traces their own lines; in a rule of JAX they would get those of its equation."""
    lines: Any = compat.source_lines
    before, lines.context = lines.context, compat.source_info_util.new_source_info()
    try:
        yield
    finally:
        lines.context = before


def _traced_again(request: Request, key: Key, graph: GraphKey, known: Callable[[], GraphKey | None]) -> StagedProgram:
    """Returns the program that was read, with its source. Raises TraceValueError if the function is another one now.

    `known` returns the key of its equations, if that is on disk.
    """
    made: list[StagedProgram] = []
    leaves, tree = jax.tree.flatten((request.args, request.kwargs))
    traced = [x for x in leaves if isinstance(x, ShapedArray)]
    limits = {id(x): known for x, known in request.given}

    def run(*values: Any) -> None:
        moving = iter(values)
        args, kwargs = jax.tree.unflatten(tree, [next(moving) if isinstance(x, ShapedArray) else x for x in leaves])
        given = [(new, limits[id(old)]) for new, old in zip(values, traced, strict=True) if id(old) in limits]
        with Programs().open():
            call_made = replace(request, args=args, kwargs=kwargs, given=given).trace()[1]
        made.extend([] if call_made is None else [call_made.staged])

    is_set_as_before = _settings() == key.settings
    if key.is_of(request.f):
        with _own_lines():
            jax.make_jaxpr(run)(*traced)
    is_same = len(made) == 1 and made[0].key.digest == graph.digest
    if is_same and not is_set_as_before and (before := known()) is not None:
        is_same = made[0].equations_key.digest == before.digest
    if not is_same:
        raise TraceValueError(
            f"{request.name}: the program that was read from disk has no derivative there, and is another one now",
            help="change what it uses after its first derivative, or set the option offline_cache_traces=False",
        )
    if is_set_as_before:
        made[0].keepers.append(key.keeper(request))
    return made[0]
