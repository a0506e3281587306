"""Traces on disk: the call of a program that a function became, and apart from it the key of the program's equations.

A trace waits for neither. The first is written with the key of the graph, which is made when the program is compiled;
the second, which takes a fifth of a trace, when a derivative is asked for: without one there is none to be found.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.backend import backend
from qdtrace.compose import pass_cache
from qdtrace.compose.described import LARGE, UnknownError
from qdtrace.compose.own_rules import has_own_rules
from qdtrace.compose.pass_cache import TANGENTS, TRACES, GraphKey
from qdtrace.counters import miss
from qdtrace.errors import Loc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.compose.stager import Call
    from qdtrace.compose.trace_key import Key
    from qdtrace.config import Options


@dataclass(frozen=True, eq=False)
class TraceKeeper:
    """Writes a traced program, and the key of its equations, under the name of the trace."""

    key: Key
    f: Callable[..., Any]
    options: Options
    call: tuple[Any, Any] | None = None
    """The operands and results, as `places_of` gives them; None if the program is on disk."""

    def keep_program(self, staged: StagedProgram, graph: GraphKey) -> None:
        """Writes the program, given its key."""
        if self.call is not None:
            self._keep(TRACES, self.key.name, graph, (staged.with_rules, *self.call, staged.has_primal))

    def keep_equations(self, equations: GraphKey) -> None:
        """Writes the key of the program's equations."""
        self._keep(TANGENTS, _of_equations(self.key.name), equations, None)

    def _keep(self, kind: str, name: str, key: GraphKey, value: object) -> None:
        data, reason = None, key.reason
        if not reason and not all(loc in self.key.lines for loc in key.locs):
            reason = "lines of other functions"  # these change without this function
        elif not reason and not self.key.is_of(self.f):  # an array may be another one in place
            reason = "changed since it was traced"
        elif not reason:
            lines = [(loc.file, loc.line, loc.function) for loc in key.locs]
            inner = pass_cache.written(value, key.locs)
            data = None if inner is None else pass_cache.written((key.digest, lines, inner), ())
        if data is None:
            return miss(kind, reason or "object of Python in the graph")
        return backend("cpu").keep(name, data, self.options)


def find_call(name: str, options: Options) -> tuple[GraphKey, Any] | None:
    """Returns the key of the program that a function of that key became, with the program, the operands and results of
    its call, and whether each result has a variable. Returns None if they are not on disk."""
    return _find(TRACES, name, options)


def find_equations_key(name: str, options: Options) -> GraphKey | None:
    """Returns the key of a program's equations, if it is on disk and JAX's rules are its own."""
    found = _find(TANGENTS, _of_equations(name), options) if has_own_rules() else None
    return None if found is None else found[0]


def _find(kind: str, name: str, options: Options) -> tuple[GraphKey, Any] | None:
    data = backend("cpu").find_kept(kind, name, options)
    try:
        if data is not None:
            digest, lines, inner = pass_cache.read(data, ())
            locs = tuple(Loc(*line) for line in lines)
            return GraphKey(digest, locs), pass_cache.read(inner, locs)
    except Exception:
        miss(kind, "not readable")
    return None


def _of_equations(name: str) -> str:
    return hashlib.sha256(f"equations of {name}".encode()).hexdigest()[:32]


def places_of(made: Call, results: Any, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """Returns the number of an argument, or an array, for each operand of a call, and the pytree of the function's
    results, with the number of an argument or of a result of the call (from -1 down) for each. Raises UnknownError if
    there are other values."""
    numbers = {id(x): k for k, x in enumerate(arguments)}
    operands = tuple(numbers[id(x)] if id(x) in numbers else _array(x) for x in made.operands)
    known = {**numbers, **{id(x): -1 - k for k, x in enumerate(made.outs)}}
    leaves, tree = jax.tree.flatten(results)
    if not all(id(x) in known for x in leaves):
        raise UnknownError("array code around the program")
    placed = jax.tree.unflatten(tree, [known[id(x)] for x in leaves])
    if not _is_plain(placed):
        raise UnknownError("results in a class")
    return operands, placed


def _array(value: Any) -> Any:
    if isinstance(value, Tracer):
        raise UnknownError("array code around the program")
    if value.nbytes > LARGE:
        raise UnknownError("large array")
    return np.asarray(value)


def _is_plain(tree: Any) -> bool:
    if type(tree) is dict:
        return all(type(k) is str for k in tree) and all(map(_is_plain, tree.values()))
    return type(tree) is int or tree is None or (type(tree) in (tuple, list, dict) and all(map(_is_plain, tree)))
