"""The pass cache: graphs after passes and derived graphs on disk, so that a process with unchanged code makes none.

Passes and derivations are functions of the graph alone. A key is a hash of the graph's text before them, of the
options, the machine, the versions of NumPy, JAX and Python, and of this package's source. Whatever changes what a
user's function computes (a helper that it calls, a captured array, a default, x64) changes the text, so nothing is
asked of Python code. Nothing is kept of a graph that holds an object of Python, as a derivative rule is: it has no
faithful text.

Tangents, which JAX makes, are found by the traced equations (`source_key`): a process that finds all that is derived of
them makes none.

Source lines are no part of a key: an edit above a function moves them, and changes nothing else. A key has the pattern
of equal and different lines instead, and a kept graph refers to the lines of the graph that it is looked up for.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import platform
from dataclasses import asdict, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np

from qdtrace.analysis.machine import CPU
from qdtrace.backend import backend
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.config import PROCESS_KNOBS
from qdtrace.counters import count, miss
from qdtrace.errors import Loc
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import Primitive, primitive
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Block, Eqn, Literal, Program, Stage, Task, Var
from qdtrace.ir.types import DType
from qdtrace.sources import version_of
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options

T = TypeVar("T")
PASSES, TANGENTS, DERIVATIONS = "passes", "tangents", "derivations"
"""Names of what is kept, in the counters."""
_FORMAT = 2
_PRINTED = {DType, bool, int, float, str, tuple, type(None)}
"""Types of the parameters and hints that graphs show faithfully; tuples are shapes."""
_READABLE = ("qdtrace.ir.", "qdtrace.autodiff.", "qdtrace.limits.")
"""Modules whose classes a kept value may have."""
_NUMPY = {"dtype", "scalar", "_frombuffer", "ndarray", "_reconstruct"}


def pipelines() -> ModuleType:
    """Returns the module `qdtrace.passes.pipelines`."""
    # Loaded here: a process with a warm cache does without its 50 modules.
    from qdtrace.passes import pipelines as module

    return module


def optimised(
    program: Program,
    options: Options,
    *,
    machine: Machine = CPU,
    until: Stage = Stage.FINAL,
    differentiable: bool = False,
    key: Callable[[], GraphKey] | None = None,
) -> Program:
    """Returns the program at the stage `until`: see `optimise`. `key` returns the key of its graph."""

    def make() -> Program:
        count(pipelines=1)
        return pipelines().optimise(program, options, machine=machine, until=until, differentiable=differentiable)

    return kept(PASSES, key or (lambda: graph_key(program)), (machine, until, differentiable), options, make)


def reason_against(options: Options) -> str:
    """Returns the reason why options ask for no cache, or nothing."""
    if not (options.offline_cache and options.offline_cache_passes):
        return "off"
    dumps = options.dump_ir or options.dump_simplify or options.dump_cfg
    watched = dumps or options.print_ir or options.verify or options.fuse_tasks_diag
    return "passes are watched" if watched else ""


@frozen
class GraphKey:
    """Key of a graph."""

    digest: str
    locs: tuple[Loc, ...]
    """The source lines of the graph, in the order in which they come first."""
    reason: str = ""
    """The reason why nothing is kept of the graph."""


def graph_key(program: Program) -> GraphKey:
    """Returns the key of a graph."""
    locs: dict[Loc | None, int] = {None: 0}
    pattern, values = list[int](), list[object]()
    for task in program.tasks:
        pattern += [locs.setdefault(each.loc, len(locs)) for each in (task, *task.all_eqns)]
        values += task.hints.values()
        for eqn in task.all_eqns:
            values += eqn.params.values()
    reason = "" if {*map(type, values)} <= _PRINTED else "object of Python in the graph"
    text = (print_program(program), program.stage, pattern)
    return GraphKey(hashlib.sha256(repr(text).encode()).hexdigest(), tuple(loc for loc in locs if loc), reason)


def keyed(program: Program, options: Options) -> tuple[Program, GraphKey | None]:
    """Returns a derived program with its key, which is kept beside it, as a graph takes longer to print than to read;
    None where nothing is kept."""
    return program, None if reason_against(options) else graph_key(program)


def settings() -> tuple[str, ...] | None:
    """Returns all settings of JAX that a trace depends on, or None if they cannot be asked for."""
    if compat.settings is None:
        return None
    values = [getattr(value, "axis_sizes", value) for value in compat.settings()]
    return tuple(repr(None if value == () else value) for value in values)  # a mesh without axes is none


@paused_garbage_collection()
def kept(
    name: str,
    key: Callable[[], GraphKey],
    about: tuple[object, ...],
    options: Options,
    make: Callable[[], T],
    is_valid: Callable[[T], bool] = lambda value: True,
) -> T:
    """Returns what `make` makes of a graph, from disk if it was made before and still `is_valid`.

    `about` is what else it depends on: values with faithful `repr`.
    """
    reason = reason_against(options)
    graph = None if reason else key()
    if graph is None or graph.reason:
        miss(name, reason if graph is None else graph.reason)
        return make()
    parts = repr((name, graph.digest, about, *settled(options)))
    place = hashlib.sha256(parts.encode()).hexdigest()[:32]
    store = backend("cpu")
    data = store.find_kept(name, place, options)
    if data is not None:
        try:
            found: T = read(data, graph.locs)
            if is_valid(found):
                return found
            miss(name, "other memory")
        except Exception:
            miss(name, "not readable")
    value = make()
    if (data := written(value, graph.locs)) is not None:
        store.keep(place, data, options)
    return value


def settled(options: Options) -> tuple[object, ...]:
    """Returns what all kept values depend on, besides what they are made of: options and versions."""
    return {name: value for name, value in asdict(options).items() if name not in PROCESS_KNOBS}, _versions()


@functools.cache
def _versions() -> tuple[str, ...]:
    source = version_of(str(Path(__file__).parents[1]))
    return source, np.__version__, jax.__version__, platform.python_version(), str(_FORMAT)


def _reducer(kind: type[Any]) -> Callable[[object], tuple[type, tuple[object, ...]]]:
    parts = attrgetter(*(f.name for f in fields(kind)))
    return lambda value: (kind, parts(value))


_REDUCERS = {kind: _reducer(kind) for kind in (Var, Literal, Block, Eqn, Task, Program)}
"""Functions that write parts of a graph for their constructors, as `dataclasses` would look fields up each time."""


def written(value: object, locs: tuple[Loc, ...]) -> bytes | None:
    """Returns the bytes of a value, or None if it has Python objects of users or lines that are not among `locs`."""
    numbers = {loc: k for k, loc in enumerate(locs)}
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 5)
    pickler.dispatch_table = {
        Primitive: lambda p: (primitive, (p.name,)),
        Loc: lambda loc: (_loc_of, (numbers[loc],)),
        **_REDUCERS,
    }
    try:
        pickler.dump(value)
    except Exception:
        return None
    return out.getvalue()


def read(data: bytes, locs: tuple[Loc, ...]) -> Any:
    """Returns a value that was `written`, with other lines in the places of its own."""
    return _Reader(io.BytesIO(data), locs).load()


def _loc_of(number: int) -> Loc:
    raise pickle.UnpicklingError("a source line is read by `_Reader` alone")


class _Reader(pickle.Unpickler):
    """Reads a value whose source lines are those of a graph."""

    def __init__(self, file: io.BytesIO, locs: tuple[Loc, ...]) -> None:
        super().__init__(file)
        self._locs = locs

    def find_class(self, module_name: str, global_name: str, /) -> object:
        if (module_name, global_name) == (__name__, "_loc_of"):
            return self._locs.__getitem__
        if (module_name, global_name) == (__name__, "GraphKey"):
            return GraphKey
        of_numpy = module_name.partition(".")[0] == "numpy" and global_name in _NUMPY
        of_floats = module_name.partition(".")[0] == "ml_dtypes"
        if of_numpy or of_floats or f"{module_name}.".startswith(_READABLE):
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no part of a graph")
