"""The key of a function that is to be traced: a description of all that it can look at (`described`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jaxlib
from jax.core import Tracer

from qdtrace.compose import pass_cache
from qdtrace.compose.described import Description, UnknownError
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.compose.described import Lines
    from qdtrace.config import Options
    from qdtrace.limits import Limits


@dataclass(frozen=True, eq=False)
class Request:
    """A function with the arguments, names and options that it is traced with."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    options: Options
    donations: tuple[Any, Any]
    given: Sequence[tuple[int, Limits]]
    """Limits of traced arguments, by their numbers."""

    def leaves(self) -> list[Any]:
        """Returns the tracers among the arguments."""
        return [x for x in jax.tree.leaves((self.args, self.kwargs)) if isinstance(x, Tracer)]


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


def key_of(request: Request) -> Key:
    """Returns the key of a function and its arguments. Raises UnknownError if they have no description."""
    if _is_watched():
        raise UnknownError("Python is watched")
    registry = sys.modules.get("qdtrace.trace.importer.registry")
    if registry is not None and registry.TAUGHT:
        raise UnknownError("import rule of the user")
    found, now = Description(), settings()
    found.add(request.f)
    function = found.digest()
    found.note(request.name, request.donations, pass_cache.settled(request.options), *now)
    found.note(*((number, repr(limits)) for number, limits in request.given))
    _describe_arguments(found, (request.args, request.kwargs))
    return Key(found.digest()[:32], function, now, found.lines)


def _is_watched() -> bool:
    """Returns whether a debugger, profiler or measure of coverage wants to see the function run."""
    monitoring = getattr(sys, "monitoring", None)
    tools = [] if monitoring is None else [monitoring.get_tool(k) for k in range(6)]
    return any(x is not None for x in (sys.gettrace(), sys.getprofile(), *tools))


def settings() -> tuple[str, ...]:
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
    elif type(tree) in (tuple, list, dict):
        found.note(type(tree).__name__, len(tree))
        for key in tree if type(tree) is dict else ():
            found.add(key)
        for inner in tree.values() if type(tree) is dict else tree:
            _describe_arguments(found, inner)
    elif any(isinstance(x, Tracer) for x in jax.tree.leaves(tree)):
        raise UnknownError(f"argument of {type(tree).__name__}")
    else:
        found.add(tree)
