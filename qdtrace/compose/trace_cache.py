"""The trace cache: what a function of one program was traced to, on disk, so that a process does without its Python.

The key is a description of all that the function can look at (`described`). A function without one is traced, and a
counter says why. So is one that is more than a call of a program: array code around the call has no faithful text.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jaxlib
import numpy as np
from jax.core import ShapedArray, Tracer

from qdtrace.backend import backend
from qdtrace.compose import derived_later, pass_cache
from qdtrace.compose.call import call
from qdtrace.compose.described import LARGE, Description, UnknownError
from qdtrace.compose.noted_warnings import noted_warnings
from qdtrace.compose.pass_cache import TRACES, GraphKey
from qdtrace.compose.staged import Programs, note_programs
from qdtrace.compose.staged_program import KeptSource, StagedProgram
from qdtrace.counters import miss
from qdtrace.errors import Loc, TraceValueError
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from qdtrace.compose.stager import Call
    from qdtrace.config import Options
    from qdtrace.ir.program import Limits

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


def results_of(request: Request) -> Any:
    """Returns the results of a function under `jax.jit`: of the call that is on disk, or traced."""
    key, entry = _found(request)
    if entry is not None:
        return _called(entry, request)
    with noted_warnings() as given:
        results, made = request.trace()
    if key:
        try:
            _keep(key, made, results, request, warned=bool(given))
        except UnknownError as error:
            miss(TRACES, str(error))
    return results


def _found(request: Request) -> tuple[str, _Entry | None]:
    """Returns the key of a function, empty if it has none, and what is on disk."""
    options = request.options
    if pass_cache.reason_against(options) or not options.offline_cache_traces:
        return "", None
    try:
        key = _key(_described(request))
    except UnknownError as error:
        miss(TRACES, str(error))
        return "", None
    data = backend("cpu").find_kept(TRACES, key, request.options)
    try:
        return key, None if data is None else _read(data)
    except Exception:
        miss(TRACES, "not readable")
        return key, None


def _keep(key: str, made: Call | None, results: Any, request: Request, *, warned: bool) -> None:
    """Writes a traced function. Raises UnknownError if it must not be found."""
    if warned:
        raise UnknownError("gives a warning")
    if made is None:
        raise UnknownError("more than one program")
    description = _described(request)
    if _key(description) != key:  # first, as keys of the equations take longer than the rest
        raise UnknownError("changes what it looks at")
    backend("cpu").keep(key, _written(made, results, request, description), request.options)


# ------------------------------------------------------------------ keys


def _key(description: Description) -> str:
    """Returns the key of a function of this description."""
    return description.digest()[:32]


def _described(request: Request) -> Description:
    """Returns the description of a function and its arguments. Raises UnknownError if it has none."""
    if _is_watched():
        raise UnknownError("Python is watched")
    registry = sys.modules.get("qdtrace.trace.importer.registry")
    if registry is not None and registry.TAUGHT:
        raise UnknownError("import rule of the user")
    found = Description()
    found.note(request.name, request.donations, pass_cache.settled(request.options), *_settings())
    numbers = {id(x): k for k, x in enumerate(request.leaves())}
    found.note(*((numbers[id(x)], repr(limits)) for x, limits in request.given))
    _describe_arguments(found, (request.args, request.kwargs))
    found.add(request.f)
    return found


def _is_watched() -> bool:
    """Returns whether a debugger, profiler or measure of coverage wants to see the function run."""
    monitoring = getattr(sys, "monitoring", None)
    tools = [] if monitoring is None else [monitoring.get_tool(k) for k in range(6)]
    return any(x is not None for x in (sys.gettrace(), sys.getprofile(), *tools))


def _settings() -> tuple[str, ...]:
    """Returns all settings of JAX that a trace can depend on. Raises UnknownError if they cannot be asked for."""
    values = getattr(jax.config, "values", None)
    if compat.settings is None or not isinstance(values, dict) or not hasattr(compat.source_lines, "context"):
        raise UnknownError("settings of JAX")
    now = [repr(getattr(value, "axis_sizes", value)) for value in compat.settings()]
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


# ------------------------------------------------------------------ entries


@dataclass(frozen=True, eq=False)
class _Entry:
    program: Any
    operands: tuple[Any, ...]
    """The number of an argument, or an array, for each operand."""
    results: Any
    """The pytree of results, with the number of an argument or of a result of the call (from -1 down) for each."""
    graph: GraphKey
    """Key of the program."""
    key: GraphKey
    """Key of the program's equations."""
    has_primal: bool


def _written(made: Call, all_results: Any, request: Request, description: Description) -> bytes:
    """Returns the bytes of a call. Raises UnknownError if it has no faithful text."""
    staged, arguments = made.staged, {id(x): k for k, x in enumerate(request.leaves())}
    if staged.source is None or staged.equations_key.reason:
        raise UnknownError("no source" if staged.source is None else staged.equations_key.reason)
    locs = staged.equations_key.locs
    if not all(description.has_line(loc.file, loc.line) for loc in locs):
        raise UnknownError("lines of other functions")
    outs = {id(x): -1 - k for k, x in enumerate(made.outs)}
    operands = tuple(arguments[id(x)] if id(x) in arguments else _array(x) for x in made.operands)
    places = {**arguments, **outs}
    leaves, tree = jax.tree.flatten(all_results)
    if not all(id(x) in places for x in leaves):
        raise UnknownError("array code around the program")
    results = jax.tree.unflatten(tree, [places[id(x)] for x in leaves])
    if not _is_plain(results):
        raise UnknownError("results in a class")
    lines = len(staged.key.locs)  # those of the graph come first
    facts = (staged.key.digest, lines, staged.equations_key.digest, None not in staged.source.primal)
    inner = pass_cache.written((staged.with_rules, operands, results, *facts), locs)
    data = None if inner is None else pass_cache.written(([(x.file, x.line, x.function) for x in locs], inner), ())
    if data is None:
        raise UnknownError("object of Python in the graph")
    return data


def _array(value: Any) -> Any:
    if isinstance(value, Tracer):
        raise UnknownError("array code around the program")
    if value.nbytes > LARGE:
        raise UnknownError("large array")
    return np.asarray(value)


def _is_plain(tree: Any) -> bool:
    if type(tree) is dict:
        return all(type(k) is str for k in tree) and all(map(_is_plain, tree.values()))
    return type(tree) is int or tree is None or (type(tree) in _CONTAINERS and all(map(_is_plain, tree)))


def _read(data: bytes) -> _Entry:
    lines, inner = pass_cache.read(data, ())
    locs = tuple(Loc(*line) for line in lines)
    program, operands, results, graph, count, equations, has_primal = pass_cache.read(inner, locs)
    keys = GraphKey(graph, locs[:count]), GraphKey(equations, locs)
    return _Entry(program, operands, results, *keys, has_primal)


def _called(entry: _Entry, request: Request) -> Any:
    """Returns the results of a call that was found."""
    again = partial(_traced_again, _without_tracers(request), entry.key)
    source = KeptSource(entry.graph, entry.key, entry.has_primal, again)
    staged = StagedProgram(entry.program, request.options, kept_source=source)
    note_programs((staged,))
    arguments = request.leaves()
    with jax.ensure_compile_time_eval():  # under `jax.jit` they would be tracers
        operands = [arguments[x] if type(x) is int else jax.numpy.asarray(x) for x in entry.operands]
    outs = call(staged, operands)
    return jax.tree.map(lambda k: arguments[k] if k >= 0 else outs[-1 - k], entry.results)


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


def _traced_again(request: Request, key: GraphKey) -> StagedProgram:
    """Returns the program that was read, with its source. Raises TraceValueError if the function is another one now."""
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

    with _own_lines():
        jax.make_jaxpr(run)(*traced)
    if len(made) != 1 or made[0].equations_key.digest != key.digest:
        raise TraceValueError(
            f"{request.name}: the program that was read from disk has no derivative there, and is another one now",
            help="change what it uses after its first derivative, or set the option offline_cache_traces=False",
        )
    return made[0]
