"""`qd.profile`: which task takes the time.

It runs a function a few times while the handlers write down what they launch (`qdtrace.launches`), so whatever calls
tasks can be profiled, and what is timed is the code that runs otherwise too.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from qdtrace.analysis.traffic import Traffic, task_traffic
from qdtrace.api import block_until_ready, jit
from qdtrace.config import current
from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.launches import Listening
from qdtrace.trace.indexing import is_static_int
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.source import user_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qdtrace.errors import Loc
    from qdtrace.launches import Launch

COPIED = 1 << 24
"""Numbers of the copy that others are measured by, 64 MiB: more than caches hold."""
HEAD = ("launch", "time", "share", "times", "moved", "GB/s", "of a copy", "iterations")


@dataclass(frozen=True)
class Row:
    """One task of a profile, over all its launches in a call."""

    name: str
    """The name given to `qd.range`, else function and line."""
    seconds: float
    """In a call; the median of the runs."""
    launches: int
    """In a call."""
    bytes: int
    """What its launches must move between memory and the core (`Lowered.traffic`)."""
    exact: bool
    """False where that is the most, as accesses depend on data."""
    iterations: int
    """In a call, over all launches."""
    loc: Loc | None
    """The line of its loop; None for a fill."""
    task: str
    """Its name in `Lowered.tasks`; empty for a fill of a buffer with its initial value."""
    program: str
    """The program that it is of."""

    @property
    def gb_per_second(self) -> float:
        """10**9 bytes a second."""
        return self.bytes / self.seconds * 1e-9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """What `qd.profile` gives; printed as a table."""

    name: str
    """The function."""
    rows: tuple[Row, ...]
    """Tasks and fills in the order of their first launch."""
    call_seconds: float
    """A whole call until its results are there; the median of the runs."""
    runs: int
    copy_gb_per_second: float
    """Speed of a copy of 64 MiB, by a task on the same threads, read and written bytes together."""
    left_out: int = 0
    """Launches that were not timed, as there were too many."""

    @property
    def task_seconds(self) -> float:
        """All rows together."""
        return sum(row.seconds for row in self.rows)

    @property
    def other_seconds(self) -> float:
        """The rest of the call: JAX's dispatch, and operations of XLA."""
        return max(0.0, self.call_seconds - self.task_seconds)

    def __str__(self) -> str:
        cells = [HEAD, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [self._title()]
        for row in cells:
            texts = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            lines.append("  ".join(texts).rstrip())
        return "\n".join((*lines, *self._notes()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in HEAD)
        rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self._cells())
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<p>{escape(self._title())}</p><table><tr>{head}</tr>{rows}</table>{notes}"

    def plot(self, ax: Any = None) -> Any:
        """Draws the times as bars, by matplotlib (the extra `demo`); gives the axes.

        Args:
            ax: the matplotlib axes to draw on; new ones when None.

        Raises ImportError where matplotlib is not installed.
        """
        if ax is None:
            try:
                from matplotlib import pyplot  # only here: an extra
            except ImportError as error:
                raise ImportError(
                    "Profile.plot needs matplotlib: pip install matplotlib, or print the profile, or read its rows"
                ) from error
            ax = pyplot.figure(figsize=(8, 1 + 0.4 * (len(self.rows) + 1)), layout="constrained").add_subplot()
        names = [*(row.name for row in self.rows), "the rest of the call"]
        times = [*(1e3 * row.seconds for row in self.rows), 1e3 * self.other_seconds]
        places = range(len(names))
        bars = ax.barh(places, times, color=[*("tab:blue" for _ in self.rows), "lightgrey"])
        said = [*(f" {row.gb_per_second:.3g} GB/s, {self._of_copy(row)} of a copy" for row in self.rows), ""]
        ax.bar_label(bars, said)
        ax.set_yticks(places, names)
        ax.invert_yaxis()
        ax.margins(x=0.45)
        ax.set_xlim(left=0)
        ax.set_xlabel("ms a call")
        ax.set_title(self._title().partition(",")[0])
        return ax

    def _title(self) -> str:
        share = f"{self.task_seconds / self.call_seconds:.0%}" if self.call_seconds else "all"
        return (
            f"{self.name}: {_time(self.call_seconds)} a call (median of {self.runs}), {share} of it in the rows below; "
            f"a copy moves {self.copy_gb_per_second:.3g} GB/s"
        )

    def _cells(self) -> Iterable[tuple[str, ...]]:
        for row in self.rows:
            moved = ("" if row.exact else "<= ") + _bytes(row.bytes)
            speed = f"{row.gb_per_second:.3g}", self._of_copy(row)
            share = f"{row.seconds / self.call_seconds:.0%}" if self.call_seconds else ""
            iterations = f"{row.iterations:,}" if row.task else ""
            yield row.name, _time(row.seconds), share, str(row.launches), moved, *speed, iterations

    def _of_copy(self, row: Row) -> str:
        return f"{row.gb_per_second / self.copy_gb_per_second:.0%}"

    def _notes(self) -> list[str]:
        return [f"{self.left_out} more launches found no room"] if self.left_out else []


def profile(f: Callable[..., Any], *, runs: int = 5) -> Callable[..., Profile]:
    """`qd.profile(f)(*args)` runs `f` a few times and tells how long each of its tasks takes.

    `f` is any function that runs tasks: of `qd.jit` or `qd.vmap`, a derivative, a `jax.jit` function around several of
    them, or plain Python. It is called with these arguments once to be compiled, once more, and then `runs` times;
    arguments that it donates are copied before. On a CPU times are those of the thread that runs the call.

    Args:
        f: the function; it may be called several times with equal arguments.
        runs: how often it is timed; each time in the table is a median.

    Returns a function of the same arguments that gives a `Profile`: print it, or read `rows`.

    Raises:
        TraceTypeError: `f` is no function, or an argument is a traced value.
        TraceValueError: `runs` is no positive integer, or no task ran.

    >>> import jax.numpy as jnp, qdtrace as qd
    >>> @qd.jit
    ... def double(x):
    ...     for i in qd.range(x.shape[0], name="doubling"):
    ...         x[i] = 2 * x[i]
    ...     return x
    >>> profile = qd.profile(double)(jnp.arange(1000.0))
    >>> [(row.name, row.bytes, row.iterations) for row in profile.rows]
    [('doubling', 8000, 1000)]
    """
    if not callable(f):
        raise TraceTypeError(f"qd.profile needs a function, got {type(f).__name__}", loc=user_loc())
    if not is_static_int(runs) or runs < 1:
        raise TraceValueError(f"qd.profile needs runs to be a positive integer, got {runs!r}", loc=user_loc())
    name = getattr(f, "__name__", type(f).__name__)

    @functools.wraps(f)
    def profiled(*args: Any, **kwargs: Any) -> Profile:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))):
            raise TraceTypeError(
                f"qd.profile runs `{name}`, so it needs arrays, got a traced value",
                loc=user_loc(),
                help="call qd.profile around jax.jit, jax.grad and jax.vmap, not inside of them",
            )
        return _profiled(f, name, runs, args, kwargs)

    return profiled


def _profiled(f: Callable[..., Any], name: str, runs: int, args: Any, kwargs: Any) -> Profile:
    again = _arguments(f, args, kwargs)
    times: list[float] = []
    found: list[list[Launch]] = []
    left_out = 0
    for run in range(runs + 1):
        args, kwargs = again()
        jax.block_until_ready((args, kwargs))
        with Listening() as listening:
            began = time.perf_counter()
            block_until_ready(f(*args, **kwargs))
            seconds = time.perf_counter() - began
        if run:  # the first one may compile for arguments that are not copies
            times.append(seconds)
            found.append(listening.launches)
            left_out = max(left_out, listening.left_out)
    if not any(found):
        raise TraceValueError(
            f"qd.profile: no task ran in `{name}`",
            loc=user_loc(),
            notes=["with debug=True loops run in the interpreter, which has no tasks"] if current().debug else (),
            help="give a function that runs loops of qd.jit or qd.vmap",
        )
    return Profile(name, tuple(_rows(found)), statistics.median(times), runs, _copy_speed(), left_out)


def _arguments(f: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], Any]:
    """Runs the function once on copies; a function that gives its arguments, with copies of those that it donates."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    copies = list(map(_copied, leaves))
    given_args, given_kwargs = jax.tree.unflatten(tree, copies)
    block_until_ready(f(*given_args, **given_kwargs))
    donated = [isinstance(c, jax.Array) and c.is_deleted() for c in copies]

    def again() -> Any:
        fresh = [_copied(x) if gone else x for x, gone in zip(leaves, donated, strict=True)]
        return jax.tree.unflatten(tree, fresh)

    return again


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, jax.Array) else x


def _rows(runs: Sequence[Sequence[Launch]]) -> Iterable[Row]:
    """Launches of the same task together; times are medians over the runs."""
    groups: dict[tuple[int, int, bool], list[list[Launch]]] = defaultdict(lambda: [[] for _ in runs])
    for number, launches in enumerate(runs):
        for launch in launches:
            groups[id(launch.program), launch.number, launch.is_fill][number].append(launch)
    for each in groups.values():
        first, *_ = one = max(each, key=len)
        task = None if first.is_fill else first.program.tasks[first.number]
        moved = Traffic(0, first.filled) if task is None else task_traffic(task)
        yield Row(
            first.label,
            statistics.median(sum(launch.seconds for launch in run) for run in each),
            len(one),
            moved.total * len(one),
            moved.exact,
            sum(launch.iterations for launch in one),
            task.loc if task else None,
            task.name if task else "",
            first.program.name,
        )


def _copy(x: Any, out: Any) -> Any:
    for i in qd_range(x.shape[0]).over(_copy):
        out[i] = x[i]
    return out


_copies = jit(_copy, donate_argnames="out")


def _copy_speed() -> float:
    """10**9 bytes a second that a task which copies moves: the best of a few."""
    x, out = jnp.ones(COPIED, jnp.float32), jnp.zeros(COPIED, jnp.float32)
    times: list[float] = []
    for _ in range(6):
        with Listening() as listening:
            out = jax.block_until_ready(_copies(x, out))
        times += [launch.seconds for launch in listening.launches if launch.program.name == _copy.__name__]
    return 2 * x.nbytes / min(times) * 1e-9


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3f} {unit}"
    return f"{seconds / 1e-6:.1f} us"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
