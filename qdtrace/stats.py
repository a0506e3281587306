"""`qd.stats`: what this process traced, derived, compiled and loaded so far."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from qdtrace import counters
from qdtrace.backend import backend
from qdtrace.config import current
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen
class Stats:
    """The counters of this process, as `qd.stats` returns them.

    The difference of two readings is the work between them. A process that finds everything on disk has the same
    `programs`, `linked`, `compiled + loaded` and `traces` as one that finds nothing.

    >>> work = qd.stats() - qd.stats()
    >>> work.compiled, work.misses
    (0, {})
    >>> print(work)  # doctest: +ELLIPSIS
    traces           0
    programs         0
    ...
    bytes_on_disk    ...
    """

    traces: int
    """Functions that were run with tracers: those of `qd.jit` and `qd.vmap`."""
    programs: int
    """Programs that were made runnable, those of derivatives included."""
    linked: int
    """Pieces of code that were made runnable: tasks, handlers, functions of maths, and the launcher."""
    compiled: int
    """Pieces of code that went through LLVM."""
    loaded: int
    """Pieces of code that were found on disk."""
    pipelines: int
    """Runs of passes over a program, which no cache had."""
    derivations: int
    """Programs of derivatives that were derived, as no cache had them."""
    size_reductions: int
    """Arrays of integers whose largest element and largest step were found, to bound loops."""
    hits: Mapping[str, int]
    """Look-ups that a cache on disk had, by cache: `code`, `pure`, `passes`, `tangents`, `derivations`."""
    misses: Mapping[str, int]
    """Look-ups that no cache had, by cache and reason: `code: not there`, `pure: large array`."""
    seconds: Mapping[str, float]
    """Seconds by stage: `tracing`, `importing`, `differentiating`, `optimising`, `compiling`. A stage inside of another
    counts for itself alone."""
    bytes_read: int
    """Bytes of caches on disk that were read."""
    bytes_written: int
    """Bytes that were written there."""
    bytes_on_disk: int
    """Bytes of all files of the cache now, of all processes and versions."""

    def __sub__(self, other: Stats) -> Stats:
        """Returns the work between two readings."""
        return Stats(**{f.name: _difference(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    def __str__(self) -> str:
        """Returns a table, a line for each counter."""
        rows: list[tuple[str, str]] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, int):
                size = f" ({value / 2**20:.1f} MiB)" if f.name.startswith("bytes") else ""
                rows.append((f.name, f"{value:,}{size}"))
            else:
                form = ".3f" if f.name == "seconds" else ","
                rows += [(f"{f.name}, {key}", f"{n:{form}}") for key, n in value.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {text}" for name, text in rows)

    __repr__ = __str__


def _difference(now: Any, before: Any) -> Any:
    if isinstance(now, int):
        return now - before
    return {key: left for key, n in now.items() if (left := n - before.get(key, 0))}


def stats() -> Stats:
    """The counters of this process so far: what was traced, derived, compiled and loaded, and how long it took.

    Subtract two readings to see the work between them.

    >>> before = qd.stats()
    >>> qd.jit(lambda x: x + 1)(jnp.zeros(3))
    Array([1., 1., 1.], dtype=float32)
    >>> work = qd.stats() - before
    >>> work.traces, work.programs
    (1, 0)
    """
    on_disk = backend("cpu").bytes_on_disk(current())
    with counters.lock:
        counted = {f.name: counters.counts[f.name] for f in fields(Stats) if f.type == "int"}
        told = {name: dict(getattr(counters, name)) for name in ("hits", "misses", "seconds")}
    return Stats(**{**counted, **told, "bytes_on_disk": on_disk})  # type: ignore[arg-type]
