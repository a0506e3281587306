"""The trace cache: what a function of one program was traced to, on disk, so that a process does without its Python.

The key is a description of all that the function can look at (`described`). A function without one is traced, and a
counter says why. So is one that is more than a call of a program: array code around the call has no faithful text.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
from jax.core import ShapedArray, Tracer

from qdtrace.compose import derived_later, pass_cache
from qdtrace.compose.call import call
from qdtrace.compose.described import UnknownError
from qdtrace.compose.kept_trace import TraceKeeper, find_call, find_equations_key, places_of
from qdtrace.compose.noted_warnings import noted_warnings
from qdtrace.compose.pass_cache import TRACES
from qdtrace.compose.staged import Programs, note_programs
from qdtrace.compose.staged_program import KeptSource, StagedProgram
from qdtrace.compose.trace_key import Request, key_of, settings
from qdtrace.counters import miss
from qdtrace.errors import TraceValueError
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from qdtrace.compose.pass_cache import GraphKey
    from qdtrace.compose.stager import Call
    from qdtrace.compose.trace_key import Key

derived_later.register()


def results_of(request: Request) -> Any:
    """Returns the results of a function under `jax.jit`: of the call that is on disk, or traced."""
    options = request.options
    # the interpreter of `debug=True` runs no pass, so there is no key to write a program with
    if pass_cache.reason_against(options) or options.debug or not options.offline_cache_traces:
        return _trace(request)[0]
    try:
        key = key_of(request)
    except UnknownError as error:
        miss(TRACES, str(error))
        return _trace(request)[0]
    if (found := find_call(key.name, options)) is not None:
        return _called(key, *found, request)
    with noted_warnings() as given:
        results, made = _trace(request)
    try:
        _keep(key, made, results, request, warned=bool(given))
    except UnknownError as error:
        miss(TRACES, str(error))
    return results


def _trace(request: Request) -> tuple[Any, Call | None]:
    """Returns the results of a function, and the call of a program if there is one alone."""
    # Only here: a process that finds what it needs on disk loads no tracer.
    from qdtrace.compose.tracing import staged_call

    return staged_call(request)


def _keep(key: Key, made: Call | None, results: Any, request: Request, *, warned: bool) -> None:
    """Has a traced function written when its graph has a key. Raises UnknownError if it must not be found."""
    if warned:
        raise UnknownError("gives a warning")
    if made is None:
        raise UnknownError("more than one program")
    if not made.staged.has_known_source:
        raise UnknownError("no source")
    if key_of(request).name != key.name:
        raise UnknownError("changes what it looks at")
    places = places_of(made, results, request.leaves())
    made.staged.keepers.append(TraceKeeper(key, request.f, request.options, places))


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
    args, kwargs = jax.tree.map(lambda x: x.aval if isinstance(x, Tracer) else x, (request.args, request.kwargs))
    return replace(request, args=args, kwargs=kwargs)


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

    def run(*values: Any) -> None:
        moving = iter(values)
        args, kwargs = jax.tree.unflatten(tree, [next(moving) if isinstance(x, ShapedArray) else x for x in leaves])
        with Programs().open():
            call_made = _trace(replace(request, args=args, kwargs=kwargs))[1]
        made.extend([] if call_made is None else [call_made.staged])

    is_set_as_before = settings() == key.settings
    if key.is_of(request.f):
        with _own_lines():
            jax.make_jaxpr(run)(*(x for x in leaves if isinstance(x, ShapedArray)))
    is_same = len(made) == 1 and made[0].key.digest == graph.digest
    if is_same and not is_set_as_before and (before := known()) is not None:
        is_same = made[0].equations_key.digest == before.digest
    if not is_same:
        raise TraceValueError(
            f"{request.name}: the program that was read from disk has no derivative there, and is another one now",
            help="change what it uses after its first derivative, or set the option offline_cache_traces=False",
        )
    if is_set_as_before:
        made[0].keepers.append(TraceKeeper(key, request.f, request.options))
    return made[0]
