"""Functions that their user calls pure: a process that finds one on disk does not trace it (docs/design/0039-pure.md).

What is kept is the call that a function became: one program, whose operands are arguments or captured arrays and whose
results are those of the function. Array code around a program has no faithful text, so such a function is traced.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import jax
import jaxlib
import numpy as np
from jax.core import ShapedArray, Tracer

from qdtrace.backend import backend
from qdtrace.compose import lazy_derivatives, pass_cache
from qdtrace.compose.call import call
from qdtrace.compose.pass_cache import GraphKey
from qdtrace.compose.pure_key import LARGE, Description, NoKeyError
from qdtrace.compose.source_on_disk import FoundSource
from qdtrace.compose.staged import Programs, note_programs
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.counters import miss
from qdtrace.errors import Loc, TraceValueError, user_loc
from qdtrace.frozen import frozen
from qdtrace.ir.printer import Printer
from qdtrace.trace import compat
from qdtrace.trace.lengths import recording

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

    from jax import Array
    from jax.typing import ArrayLike

    from qdtrace.compose.request import Request
    from qdtrace.compose.source import Source
    from qdtrace.compose.stager import Call
    from qdtrace.ir.program import Program, Var

PURE = "pure"
"""Name of what is kept, in the counters."""
lazy_derivatives.register()


@frozen(eq=False)
class Kept:
    """The call of a program that a function became."""

    name: str
    """The key of the function."""
    program: Program
    operands: Sequence[int | ArrayLike]
    """The number of an argument, or an array, for each operand of the call."""
    results: object
    """The function's results, with the number of an argument or of a result of the call (from -1 down) for each."""
    has_primal: bool
    """True if each result of the program has a variable."""
    graph: GraphKey
    source: GraphKey
    """Key of what was traced."""


def results_of(request: Request) -> object:
    """Returns the results of a pure function under `jax.jit`: of the call that is on disk, or traced.

    Raises TraceValueError with the option `pure_check` if both are there and differ.
    """
    options = request.options
    try:
        if reason := pass_cache.reason_against(options) or ("interpreter" if options.debug else ""):
            raise NoKeyError(reason)
        name = key_of(request)
    except NoKeyError as error:
        miss(PURE, str(error))
        return _trace(request)[0]
    found = _find(name, request)
    if found is not None and not options.pure_check:
        return _called(found, request)
    if recording() is not None:  # lengths are operands, which they are not in what is kept
        return _trace(request)[0]
    results, made = _trace(request)
    try:
        _note(_kept(name, made, results, request), found, request)
    except NoKeyError as error:
        miss(PURE, str(error))
    return results


def _trace(request: Request) -> tuple[object, Call | None]:
    """Returns the results of a function, and the call of a program if there is one alone."""
    # Only here: a process that finds what it needs on disk loads no tracer.
    from qdtrace.compose.tracing import staged_call

    return staged_call(request)


def key_of(request: Request) -> str:
    """Returns the key of a function and its arguments. Raises NoKeyError if they have no description."""
    registry = sys.modules.get("qdtrace.trace.importer.registry")
    found = Description()
    found.add(request.f, getattr(registry, "TAUGHT", {}))
    found.add(request.args, request.kwargs, tracers=True)
    at = user_loc() if hasattr(request.f, "looks_at") else None  # the loop of a `qd.vmap` is at its call
    given = [(number, repr(limits)) for number, limits in request.given]
    values, now = getattr(jax.config, "values", None), pass_cache.settings()
    if now is None or not isinstance(values, dict):
        raise NoKeyError("settings of JAX")
    machine = jaxlib.version.__version__, jax.default_backend(), repr(sys.flags)
    about = request.name, request.donations, given, str(at), pass_cache.settled(request.options)
    found.add(repr((about, now, sorted(values.items()), machine, np.geterr())))
    return found.digest()[:32]


# ------------------------------------------------------------------ what is kept


def _kept(name: str, made: Call | None, results: object, request: Request) -> Kept:
    """Returns what is kept of a function that was traced. Raises NoKeyError if that is not all of it."""
    if made is None:
        raise NoKeyError("more than one program")
    staged, source = made.staged, made.staged.source
    if source is None or source.unknown is not None:
        raise NoKeyError("no source")
    if staged.options != request.options:
        raise NoKeyError("options that the trace has changed")
    graph = staged.key
    if graph.reason:
        raise NoKeyError(graph.reason)
    numbers = {id(x): k for k, x in enumerate(request.leaves())}
    operands = tuple(numbers[id(x)] if id(x) in numbers else _array(x) for x in made.operands)
    known = {**numbers, **{id(x): -1 - k for k, x in enumerate(made.outs)}}
    leaves, tree = jax.tree.flatten(results)
    if not all(id(x) in known for x in leaves):
        raise NoKeyError("array code around the program")
    placed = jax.tree.unflatten(tree, [known[id(x)] for x in leaves])
    if not _is_plain(placed):
        raise NoKeyError("results in a class")
    return Kept(name, staged.with_rules, operands, placed, source.has_primal, graph, source.key)


def _array(value: Array) -> np.ndarray:
    if isinstance(value, Tracer):
        raise NoKeyError("array code around the program")
    if value.nbytes > LARGE:
        raise NoKeyError("large array")
    return np.asarray(value)


def _is_plain(tree: Any) -> bool:
    if type(tree) is dict:
        return all(type(k) is str for k in tree) and all(map(_is_plain, tree.values()))
    return type(tree) is int or tree is None or (type(tree) in (tuple, list) and all(map(_is_plain, tree)))


def _note(kept: Kept, found: Kept | None, request: Request) -> None:
    """Writes what is kept of a function, or compares it with what was found."""
    if found is not None:
        _compare(found.program, kept.program, request)
        one, other = (pass_cache.written((k.operands, k.results), ()) for k in (found, kept))
        if one != other:
            raise _not_pure(request, "other operands or results")
        return
    locs = *kept.graph.locs, *kept.source.locs
    lines = [(loc.file, loc.line, loc.function) for loc in locs]
    inner = pass_cache.written((kept.program, kept.operands, kept.results, kept.has_primal), locs)
    if inner is None:
        raise NoKeyError("object of Python in the graph")
    keys = kept.graph.digest, len(kept.graph.locs), kept.source.digest, kept.source.reason
    data = pass_cache.written((keys, lines, inner), ())
    assert data is not None
    backend("cpu").keep(kept.name, data, request.options)


def _find(name: str, request: Request) -> Kept | None:
    data = backend("cpu").find_kept(PURE, name, request.options)
    try:
        if data is not None:
            (digest, count, source, reason), lines, inner = pass_cache.read(data, ())
            locs = tuple(Loc(*line) for line in lines)
            graph = GraphKey(digest, locs[:count])
            program, operands, results, has_primal = pass_cache.read(inner, locs)
            key = GraphKey(name if reason else source, locs[count:], reason)  # else it has identities of a process
            return Kept(name, program, operands, results, has_primal, graph, key)
    except Exception:
        miss(PURE, "not readable")
    return None


# ------------------------------------------------------------------ programs that are found


def _called(found: Kept, request: Request) -> object:
    """Returns the results of a call that was found."""
    trace = partial(_traced_again, found, _without_tracers(request))
    source = FoundSource(found.source, found.has_primal, trace)
    staged = StagedProgram(found.program, request.options, source=source, known_key=found.graph)
    note_programs((staged,))
    arguments = request.leaves()
    with jax.ensure_compile_time_eval():  # under `jax.jit` they would be tracers
        operands = [arguments[x] if type(x) is int else jax.numpy.asarray(x) for x in found.operands]
    outs = call(staged, operands)
    return jax.tree.map(lambda k: arguments[k] if k >= 0 else outs[-1 - k], found.results)


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


def _traced_again(found: Kept, request: Request) -> Source:
    """Returns the source of a program that was found. Raises TraceValueError if the function is another one now."""
    made: list[StagedProgram] = []
    leaves, tree = jax.tree.flatten((request.args, request.kwargs))

    def run(*values: Array) -> None:
        moving = iter(values)
        args, kwargs = jax.tree.unflatten(tree, [next(moving) if isinstance(x, ShapedArray) else x for x in leaves])
        with Programs().open():
            call_made = _trace(replace(request, args=args, kwargs=kwargs))[1]
        made.extend([] if call_made is None else [call_made.staged])

    with _own_lines():
        jax.make_jaxpr(run)(*(x for x in leaves if isinstance(x, ShapedArray)))
    source: Any = made[0].source if len(made) == 1 else None
    if source is None:
        raise _not_pure(request, "not one program")
    _compare(found.program, made[0].with_rules, request)
    return source


class _Nameless(Printer):
    """Printer that gives variables numbers: names are those of the call, too."""

    def bind(self, var: Var, prefix: str = "v") -> str:
        name = self.names[var] = f"{prefix}{len(self.used)}"
        self.used.add(name)
        return name


def _compare(before: Program, now: Program, request: Request) -> None:
    """Raises TraceValueError if two programs of a function differ."""
    printers = _Nameless(), _Nameless()
    for printer, program in zip(printers, (before, now), strict=True):
        printer.program(program)
    for one, other in zip_longest(*(printer.lines for printer in printers)):
        if one != other:
            raise _not_pure(request, f"`{(other or 'nothing').strip()}` where there was `{(one or 'nothing').strip()}`")


def _not_pure(request: Request, what: str) -> TraceValueError:
    return TraceValueError(
        f"{request.name}: said to be pure, but another program now than the one on disk",
        notes=(f"it has {what}",),
        help="leave `pure` out, or pass what changes as an argument (docs/saving.md)",
    )
